"""An older database arrives at the present schema with a campaign in the middle of its send, and goes on with it."""

from __future__ import annotations

import json
from pathlib import Path

import sqlalchemy
from alembic import command
from alembic.config import Config
from sqlalchemy.engine import URL

from mailpipe import campaign, reconcile, template
from mailpipe.db import Database, migrate
from mailpipe.send import End
from tests.conftest import clone
from tests.support import TEMPLATE, make_world

OLD = """
INSERT INTO mailpipe.template_version (name, template, content) VALUES (%(version)s, 'hello', %(content)s);
INSERT INTO mailpipe.campaign (key, state, spec, template_version, rate, due_at, author, approver, approved_at)
VALUES ('old', 'sending', %(spec)s, %(version)s, 300, now() - interval '1 hour', 'ana', 'ben', now());
INSERT INTO mailpipe.snapshot (campaign_id, segment, segment_sha256, segment_sql, as_of, parameters, variables, returned, excluded,
                               recipients)
VALUES (1, 'everybody', 'x', 'SELECT', now(), '{}', '{first_name,city}', 301, '{"duplicate": 1}', 300);
CREATE TABLE mailpipe.recipient_1 PARTITION OF mailpipe.recipient FOR VALUES IN (1);
INSERT INTO mailpipe.recipient SELECT 1, i, i::text, 'Person' || i || '@mail.example.com', NULL, NULL, ARRAY['Name' || i, 'Hanoi']
FROM generate_series(1, 300) AS i;
CREATE SEQUENCE mailpipe.pace_campaign_1;
SELECT setval('mailpipe.pace_campaign_1', CAST(extract(epoch FROM clock_timestamp()) * 1e6 AS bigint)),
       setval('mailpipe.pace_account', CAST(extract(epoch FROM clock_timestamp()) * 1e6 AS bigint));
UPDATE mailpipe.pace SET account_rate = 100000, daily_quota = -1, sent_last_day = 0, account_read_at = now();
INSERT INTO mailpipe.chunk (campaign_id, chunk_no, slice, first_seq, size, due_at, state, fence, owner, leased_until, calls, opened,
                            finished, sent, failed, unknown)
VALUES (1, 0, 0, 1, 100, now(), 'done', 1, NULL, NULL, 2, repeat('0', 100)::varbit, repeat('1', 100)::varbit, 98, 1, 1),
       (1, 1, 50, 101, 100, now(), 'leased', 3, 'gone', now() - interval '1 minute', 2,
        (repeat('0', 50) || repeat('1', 10) || repeat('0', 40))::varbit, (repeat('1', 50) || repeat('0', 50))::varbit, 50, 0, 0),
       (1, 2, 99, 201, 100, now(), 'pending', 1, NULL, NULL, 1, repeat('0', 100)::varbit, repeat('0', 100)::varbit, 0, 0, 0);
INSERT INTO mailpipe.call (campaign_id, chunk_no, no, seconds, positions, accepted, codes, message_ids)
VALUES (1, 0, 1, 0.1, (repeat('1', 50) || repeat('0', 50))::varbit, 50, NULL, decode(repeat('ab', 1200), 'hex')),
       (1, 0, 2, 0.1, (repeat('0', 50) || repeat('1', 50))::varbit, 48, repeat('s', 48) || 'fu', decode(repeat('ab', 1152), 'hex')),
       (1, 1, 1, 0.1, (repeat('1', 50) || repeat('0', 50))::varbit, 50, NULL, decode(repeat('ab', 1200), 'hex')),
       (1, 2, 1, 0.1, ('1' || repeat('0', 99))::varbit, 0, 'r', NULL);
INSERT INTO mailpipe.outcome (campaign_id, seq, chunk_no, state, reason, tries)
VALUES (1, 99, 0, 'failed', 'rejected', 0), (1, 100, 0, 'unknown', 'no_answer', 0), (1, 201, 2, 'retry', 'transient', 1);
INSERT INTO mailpipe.event_mask VALUES (1, 0, 'bounce', 1, ('1' || repeat('0', 99))::varbit);
INSERT INTO mailpipe.suppression (email_key, reason, source)
VALUES ('person1@mail.example.com', 'bounce', 'ses'), ('person300@mail.example.com', 'bounce', 'ses');
"""
"""A hundred people are done, of a hundred fifty are done and ten in the call of a worker that is gone, a hundred wait."""


def to(url: URL, revision: str) -> None:
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", str(migrate.MIGRATIONS))
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def test_a_campaign_that_was_being_sent_at_the_first_schema_is_finished_at_the_present_one(
    server_url: URL, tmp_path: Path
) -> None:
    folder = tmp_path / "old" / "hello"
    folder.mkdir(parents=True)
    for name, text in TEMPLATE.items():
        (folder / name).write_text(text)
    hello = template.load(folder.parent, "hello")
    spec: dict[str, object] = {
        "key": "old", "segment": "everybody", "parameters": {}, "as_of": None, "template": "hello",
        "sender": "Shop <news@mail.example.com>", "reply_to": None, "topic": "marketing", "rate": 300, "lane": "normal",
        "finish_within": None, "chunk_size": 100, "due_at": None, "default_timezone": None,
    }  # fmt: skip
    with clone(server_url, "template1") as url:
        to(url, "0001")
        rows = OLD
        for name, value in {
            "version": hello.version,
            "content": json.dumps(hello.to_json()),
            "spec": json.dumps(spec),
        }.items():
            rows = rows.replace(f"%({name})s", "'" + value.replace("'", "''") + "'")
        with sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool).begin() as connection:
            driver = connection.connection.driver_connection
            assert driver is not None
            driver.execute(rows)
        migrate.upgrade(url)
        assert migrate.is_current(url)
        database = Database(url, pool_size=10, allow_unsafe_durability=True)
        with make_world(database, tmp_path) as world:
            world.people(300)
            with database.connection() as connection:
                assert campaign.publish(connection, world.settings, world.ses, "hello") == hello.version
                assert world.balance("old") == {"sent": 148, "failed": 1, "unknown": 1, "sending": 10, "pending": 140}
                reconcile.run(connection)
            outcome = world.send("old")
            assert outcome.end is End.COMPLETE, outcome.text
            assert world.campaign("old").state == "done"
            assert world.balance("old") == {"sent": 148 + 139, "failed": 1, "unknown": 11, "skipped": 1}
            mailed = [int(line["seq"]) for line in world.journal("old")]
            assert sorted(mailed) == [*range(161, 300)], "who waited, each once, and nobody who was done or in a call"
            assert world.states("old")[300] == ("skipped", "suppressed")
        database.close()
