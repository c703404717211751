ALTER TABLE mailpipe.pace
    ADD COLUMN order_rate       double precision CHECK (order_rate > 0),
    ADD COLUMN call_ceiling     double precision CHECK (call_ceiling > 0),
    ADD COLUMN call_rate        double precision CHECK (call_rate > 0),
    ADD COLUMN call_rate_at     timestamptz,
    ADD COLUMN ease             double precision NOT NULL DEFAULT 1 CHECK (ease > 0 AND ease <= 1),
    ADD COLUMN eased_at         timestamptz,
    ADD COLUMN marketing_share  double precision NOT NULL DEFAULT 0.5 CHECK (marketing_share > 0 AND marketing_share <= 1),
    ADD COLUMN reserve_share    double precision NOT NULL DEFAULT 0.05 CHECK (reserve_share >= 0 AND reserve_share < 1),
    ADD COLUMN most             smallint NOT NULL DEFAULT 50 CHECK (most BETWEEN 1 AND 50),
    ADD COLUMN provider_rates   jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN handed_at_read   bigint,
    ADD CHECK ((call_rate IS NULL) = (call_rate_at IS NULL));

DROP FUNCTION mailpipe.take_slot;

-- Who wants slots now: campaigns, and with campaign_id 0 the messages of a lane. Written once a second at the most.
CREATE TABLE mailpipe.pace_claim (
    lane        text NOT NULL CHECK (lane IN ('critical', 'high', 'normal', 'low')),
    campaign_id integer NOT NULL,
    since       timestamptz NOT NULL,                          -- wanted without a gap since then
    wanted_at   timestamptz NOT NULL,
    PRIMARY KEY (lane, campaign_id)
) WITH (fillfactor = 50);

-- The counters below, once a minute: the difference over 24 hours is what was handed over in them.
CREATE TABLE mailpipe.pace_count (
    at        timestamptz PRIMARY KEY,
    handed    bigint NOT NULL,
    marketing bigint NOT NULL
);

-- The limiter's state are the last slots that were given away: microseconds since 1970 times 128, and what kind of slot it was.
-- Sequences, not rows: they leave no dead versions behind, so they stay as fast while a dump holds a snapshot open (a row slowed
-- down 17-fold), and a rollback does not take a slot back. `pace_account` is the line of bulk, or of all; each campaign has one
-- beside it, `pace_campaign_ID`.
CREATE SEQUENCE mailpipe.pace_reserve;
CREATE SEQUENCE mailpipe.pace_calls;
CREATE SEQUENCE mailpipe.pace_provider_gmail;
CREATE SEQUENCE mailpipe.pace_provider_microsoft;
CREATE SEQUENCE mailpipe.pace_provider_yahoo;
CREATE SEQUENCE mailpipe.pace_provider_apple;
CREATE SEQUENCE mailpipe.pace_provider_other;
-- When somebody's share of bulk lets them have the next slot, in microseconds: messages here, each campaign has `pace_share_ID`.
CREATE SEQUENCE mailpipe.pace_share_normal;
CREATE SEQUENCE mailpipe.pace_share_low;
-- Recipients handed over since the beginning: all, and those of bulk.
CREATE SEQUENCE mailpipe.pace_handed;
CREATE SEQUENCE mailpipe.pace_marketing;

CREATE FUNCTION mailpipe.seconds_since(at timestamptz) RETURNS double precision LANGUAGE sql VOLATILE
RETURN CAST(extract(epoch FROM clock_timestamp() - at) AS double precision);

-- Note that somebody wants slots; `served` seconds without a word are a gap. Keeps the limiter's lock until the transaction ends.
CREATE FUNCTION mailpipe.claim_pace(own_lane text, own_campaign integer, served double precision) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    now_at timestamptz;
BEGIN
    -- A slot lost in a crash of the server is lost with less than a second of others: no flush for each.
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM pg_advisory_xact_lock(782638, 1);
    now_at := clock_timestamp();
    INSERT INTO mailpipe.pace_claim AS c VALUES (own_lane, own_campaign, now_at, now_at)
    ON CONFLICT (lane, campaign_id) DO UPDATE
    SET wanted_at = now_at, since = CASE WHEN c.wanted_at < now_at - make_interval(secs => served) THEN now_at ELSE c.since END
    WHERE c.wanted_at < now_at - interval '1 second';
    IF NOT EXISTS (SELECT FROM mailpipe.pace_count WHERE at > now_at - interval '1 minute') THEN
        INSERT INTO mailpipe.pace_count VALUES (now_at, coalesce(pg_sequence_last_value('mailpipe.pace_handed'), 0),
                                                coalesce(pg_sequence_last_value('mailpipe.pace_marketing'), 0));
        DELETE FROM mailpipe.pace_count
        WHERE at < (SELECT max(at) FROM mailpipe.pace_count WHERE at <= now_at - interval '24 hours');
        DELETE FROM mailpipe.pace_claim WHERE wanted_at < now_at - interval '1 day';
    END IF;
END;
$$;

-- Give away the next slot that all `lines` allow: each `gaps` microseconds after its own last one, `apart` after one of another kind
-- (`tags`), and `lead` seconds from now at the earliest. Not given away, only told, is a slot
-- - further away than `patience` seconds;
-- - that would leave more than `hole` seconds of the first line unused;
-- - that comes before `share` says, unless the first line is booked for less than `near` seconds; each slot moves it by `share_gap`
--   microseconds, within bounds, so that neither an idle time nor one alone weighs for long;
-- - for more `recipients` than a counter may still count (`spent`; `returned` were counted and not handed over);
-- - that was decided on before `valid_until` seconds since 1970, but comes later (`stale`).
-- Answers the slot, when to ask again, and the present, in seconds since 1970. The advisory lock makes the decision one step for
-- all processes; the clock is the database's alone.
CREATE FUNCTION mailpipe.take_slot(
    lines regclass[], gaps bigint[], tags integer[], apart bigint, share regclass, share_gap bigint, near double precision,
    hole double precision, counters regclass[], most bigint[], recipients integer, returned integer, valid_until double precision,
    lead double precision, patience double precision,
    OUT granted boolean, OUT slot double precision, OUT again double precision, OUT present double precision, OUT stale boolean,
    OUT spent boolean
) LANGUAGE plpgsql AS $$
DECLARE
    now_at bigint;
    first_at bigint;
    base_at bigint;
    slot_at bigint;
    again_at bigint;
    share_at bigint;
    last bigint;
BEGIN
    -- As in `claim_pace`.
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM pg_advisory_xact_lock(782638, 1);
    now_at := (extract(epoch FROM clock_timestamp()) * 1e6)::bigint;
    first_at := now_at + (lead * 1e6)::bigint;
    slot_at := first_at;
    base_at := first_at;
    FOR i IN 1 .. cardinality(lines) LOOP
        last := coalesce(pg_sequence_last_value(lines[i]), 0);
        IF last % 128 = tags[i] OR gaps[i] = 0 THEN
            slot_at := greatest(slot_at, last / 128 + gaps[i]);
        ELSE
            slot_at := greatest(slot_at, last / 128 + greatest(gaps[i], apart));
        END IF;
        IF i = 1 THEN
            base_at := slot_at;
        END IF;
    END LOOP;
    share_at := coalesce(pg_sequence_last_value(share), 0);
    stale := now_at > valid_until * 1e6;
    spent := false;
    FOR i IN 1 .. cardinality(counters) LOOP
        spent := spent OR coalesce(pg_sequence_last_value(counters[i]), 0) + recipients - returned > most[i];
    END LOOP;
    again_at := now_at;
    granted := NOT stale AND NOT spent;
    IF slot_at - now_at > patience * 1e6 THEN
        granted := false;
        again_at := greatest(again_at, slot_at - (patience * 1e6)::bigint);
    END IF;
    IF slot_at - base_at > hole * 1e6 THEN
        granted := false;
        again_at := greatest(again_at, slot_at - first_at + now_at - (hole * 1e6)::bigint);
    END IF;
    IF share IS NOT NULL AND slot_at < share_at AND slot_at - first_at > near * 1e6 THEN
        granted := false;
        again_at := greatest(again_at, least(share_at - (patience * 1e6)::bigint, slot_at - first_at + now_at - (near * 1e6)::bigint));
    END IF;
    IF granted THEN
        FOR i IN 1 .. cardinality(lines) LOOP
            PERFORM setval(lines[i], slot_at * 128 + tags[i]);
        END LOOP;
        IF share IS NOT NULL THEN
            PERFORM setval(share, least(greatest(share_at, slot_at - 4 * share_gap) + share_gap, slot_at + 2 * share_gap));
        END IF;
        FOR i IN 1 .. cardinality(counters) LOOP
            PERFORM setval(counters[i], greatest(1, coalesce(pg_sequence_last_value(counters[i]), 0) + recipients - returned));
        END LOOP;
    END IF;
    slot := slot_at / 1e6;
    again := again_at / 1e6;
    present := extract(epoch FROM clock_timestamp());
END;
$$;

DO $$
DECLARE
    number integer;
BEGIN
    FOR number IN SELECT campaign_id FROM mailpipe.campaign LOOP
        EXECUTE format('CREATE SEQUENCE mailpipe.pace_share_%s', number);
    END LOOP;
END;
$$;
