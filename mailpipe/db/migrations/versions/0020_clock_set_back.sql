CREATE OR REPLACE FUNCTION mailpipe.seconds_since(at timestamptz) RETURNS double precision LANGUAGE sql VOLATILE
RETURN CASE WHEN at IS NOT NULL THEN greatest(0, CAST(extract(epoch FROM clock_timestamp() - at) AS double precision)) END;

CREATE OR REPLACE FUNCTION mailpipe.claim_pace(own_lane text, own_campaign integer, served double precision) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    now_at timestamptz;
BEGIN
    -- A slot lost in a crash of the server is lost with less than a second of others: no flush for each.
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM pg_advisory_xact_lock(782638, 1);
    now_at := clock_timestamp();
    INSERT INTO mailpipe.pace_claim AS c VALUES (own_lane, own_campaign, now_at, now_at)
    ON CONFLICT (lane, campaign_id) DO UPDATE
    SET wanted_at = now_at,
        since = CASE WHEN c.wanted_at < now_at - make_interval(secs => served) THEN now_at ELSE least(c.since, now_at) END
    WHERE c.wanted_at < now_at - interval '1 second' OR c.wanted_at > now_at;
    IF NOT EXISTS (SELECT FROM mailpipe.pace_count WHERE at > now_at - interval '1 minute') THEN
        INSERT INTO mailpipe.pace_count VALUES (now_at, coalesce(pg_sequence_last_value('mailpipe.pace_handed'), 0),
                                                coalesce(pg_sequence_last_value('mailpipe.pace_marketing'), 0));
        DELETE FROM mailpipe.pace_count
        WHERE at < (SELECT max(at) FROM mailpipe.pace_count WHERE at <= now_at - interval '24 hours');
        DELETE FROM mailpipe.pace_claim WHERE wanted_at < now_at - interval '1 day';
    END IF;
END;
$$;

CREATE OR REPLACE FUNCTION mailpipe.take_slot(
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
    furthest CONSTANT bigint := greatest(1, patience) * 1e6;
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
        IF last / 128 > now_at + furthest THEN
            last := (now_at + furthest) * 128 + 127;
            PERFORM setval(lines[i], last);
        END IF;
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
        -- Others may book the line up to there at any moment, so it is asked again soon, but not at once.
        again_at := greatest(again_at, now_at + 20000,
                             least(share_at - (patience * 1e6)::bigint, slot_at - first_at + now_at - (near * 1e6)::bigint));
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
