"""The desk for `unknown` people: a second attempt exists only by a person's order, and nothing of the first one can disturb it."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mailpipe import campaign, event, ledger, report, unknown
from mailpipe import invariant as promises
from mailpipe.cli import main
from mailpipe.errors import CampaignError
from mailpipe.ledger import Lease, Opened
from mailpipe.ses.answer import Kind
from tests.db.ledger_table import (
    AGAIN,
    FAILED,
    RETRY,
    SENT,
    UNKNOWN,
    Table,
    answer,
    somebody_waits_for_a_lock,
)
from tests.support import World, opening, wait_for


def lose(scene: World, people: int, *, accept: bool, **fields: Any) -> str:
    """A finished campaign whose first call was lost, before or after SES had accepted its people; answers its key."""
    scene.people(people)
    key = scene.ready(**fields)
    scene.stand_in.add_faults({"kind": "reset_after_accept" if accept else "reset_before_accept", "count": 1})
    scene.send(key)
    assert scene.campaign(key).state == "done"
    return key


def resolve(
    scene: World, key: str, verdict: unknown.Verdict, *seqs: int, actor: str = "ana", reason: str = "no trace of them"
) -> unknown.Resolved:
    with scene.database.connection() as connection:
        return unknown.resolve(connection, key, verdict, seqs=seqs or None, actor=actor, reason=reason)


def history(scene: World, key: str) -> list[dict[str, Any]]:
    with scene.database.connection() as connection:
        return campaign.history(connection, scene.campaign(key).campaign_id)


def attempts(scene: World, key: str) -> Counter[int]:
    """How many people of the journal were accepted at which attempt."""
    return Counter(line["attempt"] for line in scene.journal(key))


class TestResend:
    @pytest.mark.parametrize("accept", [False, True], ids=["they had no mail", "they had it"])
    def test_it_mails_them_once_more_as_a_new_attempt(self, scene: World, accept: bool) -> None:
        key = lose(scene, 70, accept=accept)
        lost = scene.keep_promises(key)["unknown"]
        done = resolve(scene, key, "resend")
        assert (done.people, done.settled, done.reopened) == (lost, 0, True)
        assert scene.campaign(key).state == "sending"
        assert scene.keep_promises(key) == {"sent": 70 - lost, "pending": lost}
        scene.send(key)
        assert scene.keep_promises(key) == {"sent": 70}
        assert scene.campaign(key).state == "done"
        assert attempts(scene, key) == ({1: 70, 2: lost} if accept else {1: 70 - lost, 2: lost})

    def test_the_attempt_and_the_order_stay_visible(self, scene: World, tmp_path: Path) -> None:
        key = lose(scene, 50, accept=False)
        resolve(scene, key, "resend", actor="ben", reason="the log of SES has no trace")
        scene.send(key)
        with scene.database.connection() as connection:
            (fate,) = report.who(connection, key, "7")
            reasons = report.reasons(connection, key)
            assert promises.accepted_twice(connection, key) == 0
        assert (fate.state, fate.reason, fate.attempt) == ("sent", "resend", 2)
        assert fate.message_id is not None
        assert [(one.state, one.reason, one.people) for one in reasons] == [("sent", "resend", 50)]
        step = history(scene, key)[-1]
        assert (step["actor"], step["action"]) == ("ben", "resend")
        assert step["detail"] == {
            "reason": "the log of SES has no trace",
            "people": 50,
            "seqs": [[1, 50]],
            "reopened": True,
        }
        report.export(scene.database, key, tmp_path / "all.csv")
        with (tmp_path / "all.csv").open() as rows:
            assert {row["attempt"] for row in csv.DictReader(rows)} == {"2"}

    def test_a_third_attempt_needs_a_second_order(self, scene: World) -> None:
        key = lose(scene, 20, accept=False)
        resolve(scene, key, "resend")
        scene.stand_in.add_faults({"kind": "reset_after_accept", "count": 1})
        scene.send(key)
        assert scene.keep_promises(key) == {"unknown": 20}
        assert scene.send(key).calls == 0
        resolve(scene, key, "resend", 3, 4, 9)
        scene.send(key)
        assert scene.keep_promises(key) == {"unknown": 17, "sent": 3}
        assert attempts(scene, key) == {2: 20, 3: 3}
        assert scene.ordered(key) == Counter(range(1, 21)) + Counter([3, 4, 9])

    def test_the_promises_notice_an_attempt_that_nobody_ordered(self, scene: World) -> None:
        key = lose(scene, 5, accept=False)
        scene.execute(
            "UPDATE mailpipe.outcome SET attempt = 2 WHERE campaign_id = %(id)s AND seq = 3",
            {"id": scene.campaign(key).campaign_id},
        )
        with pytest.raises(AssertionError, match="attempts and orders disagree"):
            scene.keep_promises(key)

    def test_only_unknown_people_are_sent_again_whoever_is_asked_for(self, scene: World) -> None:
        """In one chunk: people who are sent, failed and skipped, beside those of a lost call."""
        scene.people(70)
        scene.execute("UPDATE users SET city = NULL WHERE user_id = 1")
        scene.execute("UPDATE users SET email = 'nowhere' WHERE user_id = 2")
        key = scene.ready()
        scene.stand_in.add_faults({"kind": "reset_before_accept", "count": 1})
        scene.send(key)
        before = scene.states(key)
        lost = {seq for seq, (state, _) in before.items() if state == "unknown"}
        assert {state for state, _ in before.values()} == {"sent", "failed", "skipped", "unknown"}
        assert resolve(scene, key, "resend", *before).people == len(lost)
        changed = {seq for seq, state in scene.states(key).items() if state != before[seq]}
        assert changed == lost

    def test_who_has_opted_out_since_is_skipped(self, scene: World) -> None:
        key = lose(scene, 10, accept=False)
        scene.execute("INSERT INTO mailpipe.suppression VALUES ('person4@mail.example.com', 'all', 'manual', 'test')")
        resolve(scene, key, "resend")
        scene.send(key)
        assert scene.keep_promises(key) == {"sent": 9, "skipped": 1}
        assert scene.states(key)[4] == ("skipped", "suppressed")

    def test_a_paused_campaign_stays_paused(self, scene: World) -> None:
        key = lose(scene, 60, accept=False)
        lost = scene.progress(key).unknown
        scene.execute("UPDATE mailpipe.campaign SET state = 'paused' WHERE key = %(key)s", {"key": key})
        assert not resolve(scene, key, "resend").reopened
        assert scene.campaign(key).state == "paused"
        assert scene.send(key).calls == 0
        assert scene.keep_promises(key) == {"sent": 60 - lost, "pending": lost}

    def test_in_a_cancelled_campaign_it_is_refused(self, make: Any) -> None:
        table: Table = make(3)
        table.call(table.hold(), 1, 2)
        campaign.cancel(table.connection, table.key, actor="test", reason="why not")
        table.expire()
        with pytest.raises(CampaignError, match="is cancelled"):
            unknown.resolve(table.connection, table.key, "resend", seqs=None, actor="ana", reason="because")
        assert table.row() == "uux"
        unknown.resolve(table.connection, table.key, "sent", seqs=[2], actor="ana", reason="because")
        assert table.row() == "usx"


class TestWordOfAPerson:
    def test_they_count_as_sent_and_the_word_is_visible(self, scene: World) -> None:
        key = lose(scene, 60, accept=False)
        lost = scene.progress(key).unknown
        done = resolve(scene, key, "sent", reason="they said so on the phone")
        assert (done.people, done.reopened) == (lost, False)
        assert scene.campaign(key).state == "done"
        assert scene.send(key).calls == 0
        assert scene.keep_promises(key) == {"sent": 60}
        with scene.database.connection() as connection:
            assert [(one.state, one.reason, one.people) for one in report.reasons(connection, key)] == [
                ("sent", "resolved", lost)
            ]
        assert history(scene, key)[-1]["action"] == "resolve_as_sent"

    def test_a_proof_of_ses_against_it_wins(self, make: Any) -> None:
        table: Table = make(2)
        table.call(table.hold())
        table.expire()
        unknown.resolve(table.connection, table.key, "sent", seqs=None, actor="ana", reason="because")
        event.fold(table.connection, [event.Event("send", table.key, 1), event.Event("reject", table.key, 2)])
        assert event.settle(table.connection, table.campaign_id) == 1
        assert table.row() == "sf"


class TestWho:
    def test_only_those_asked_for_and_only_while_they_are_unknown(self, scene: World) -> None:
        key = lose(scene, 20, accept=False)
        done = resolve(scene, key, "sent", 9, 2, 3, 20, 400)
        assert (done.people, done.seqs) == (4, [(2, 3), (9, 9), (20, 20)])
        before = len(history(scene, key))
        again = resolve(scene, key, "resend", 9, 2, 3, 20, 400)
        assert (again.people, again.seqs, again.reopened) == (0, [], False)
        assert len(history(scene, key)) == before, "an order that changed nobody is no part of the history"
        assert scene.keep_promises(key) == {"sent": 4, "unknown": 16}

    @pytest.mark.parametrize(("actor", "reason", "text"), [("", "because", "who you are"), ("ana", "  ", "say why")])
    def test_without_a_name_or_a_reason_nothing_happens(self, scene: World, actor: str, reason: str, text: str) -> None:
        key = lose(scene, 5, accept=False)
        with pytest.raises(CampaignError, match=text):
            resolve(scene, key, "resend", actor=actor, reason=reason)
        assert scene.keep_promises(key) == {"unknown": 5}

    def test_what_events_prove_already_is_not_sent_again(self, scene: World) -> None:
        key = lose(scene, 30, accept=True)
        with scene.database.connection() as connection:
            event.fold(connection, [event.Event("delivery", key, seq) for seq in range(1, 21)])
        done = resolve(scene, key, "resend")
        assert (done.settled, done.people, done.seqs) == (20, 10, [(21, 30)])

    def test_two_orders_at_once_concern_each_person_once(self, scene: World) -> None:
        scene.people(400)
        key = scene.ready(chunk_size=100)
        scene.stand_in.add_faults({"kind": "reset_before_accept", "count": 4})
        scene.send(key)
        lost = scene.progress(key).unknown
        assert lost == 200
        with ThreadPoolExecutor(4) as pool:
            orders = [pool.submit(resolve, scene, key, verdict) for verdict in ("resend", "sent", "resend", "sent")]
        assert sorted(order.result().people for order in orders) == [0, 0, 0, lost]
        scene.balance(key)

    def test_an_order_waits_for_an_event_and_finds_it_settled(self, make: Any) -> None:
        table: Table = make(3)
        table.call(table.hold())
        table.expire()
        world = table.world
        with world.database.connection() as settling, ThreadPoolExecutor(1) as pool:
            with settling.transaction():
                ledger.settle_unknown(settling, table.campaign_id, 0, [(2, "sent", "delivery", 1)])
                order = pool.submit(resolve, world, table.key, "resend")
                wait_for(lambda: somebody_waits_for_a_lock(table.connection), "the order to meet the event")
            assert order.result().seqs == [(1, 1), (3, 3)]
        assert table.row() == "-s-"


def open_people(table: Table, held: Lease) -> Opened:
    """Open a call for everybody of the chunk who is left, as a worker does."""
    opened = ledger.open_calls(
        table.connection, held, [table.people(held)], opening=opening(table.campaign_id), seconds=60
    )
    assert opened is not None
    return opened[0]


def order(table: Table, *seqs: int) -> None:
    unknown.resolve(table.connection, table.key, "resend", seqs=seqs or None, actor="ana", reason="because")


def rows(table: Table) -> list[tuple[Any, ...]]:
    return table.connection.execute(
        "SELECT seq, state, reason, tries, attempt FROM mailpipe.outcome WHERE campaign_id = %s ORDER BY seq",
        (table.campaign_id,),
    ).fetchall()


class TestSecondAttempt:
    @pytest.mark.parametrize(
        ("kind", "letter", "row"),
        [
            (SENT, "s", (1, "sent", "resend", 0, 2)),
            (FAILED, "f", (1, "failed", "because_failed", 0, 2)),
            (RETRY, "-", (1, "retry", "because_retry", 1, 2)),
            (AGAIN, "-", (1, "retry", "resend", 0, 2)),
            (UNKNOWN, "u", (1, "unknown", "because_unknown", 0, 2)),
        ],
    )
    @pytest.mark.parametrize("late", [False, True])
    def test_every_answer_keeps_the_attempt(
        self, make: Any, kind: Kind, letter: str, row: tuple[Any, ...], late: bool
    ) -> None:
        table: Table = make(1)
        table.call(table.hold())
        table.expire()
        order(table)
        held = table.hold()
        opened = open_people(table, held)
        assert opened.attempts == {1: 2}
        if late:
            table.expire()
        table.record(held, opened, answer(kind))
        if late and kind is UNKNOWN:
            row = (1, "unknown", "no_answer", 0, 2)
        assert table.row() == letter
        assert rows(table) == [row]

    def test_counted_refusals_begin_anew_and_end_well(self, make: Any) -> None:
        table: Table = make(1)
        held = table.hold()
        table.record(held, table.call(held), answer(RETRY))
        table.record(held, table.call(held), answer(UNKNOWN), {1: 1})
        order(table)
        held = table.hold()
        assert [(one.tries, one.attempt) for one in table.people(held)] == [(0, 2)]
        table.record(held, open_people(table, held), answer(RETRY))
        assert [(one.tries, one.attempt) for one in table.people(held)] == [(1, 2)]
        table.record(held, open_people(table, held), answer(SENT), {1: 1})
        assert table.row() == "s"
        assert rows(table) == [(1, "sent", "resend", 1, 2)]

    @pytest.mark.parametrize(
        ("kind", "letter"), [(SENT, "s"), (FAILED, "u"), (RETRY, "u"), (AGAIN, "u"), (UNKNOWN, "u")]
    )
    def test_a_late_answer_of_the_first_frees_and_fails_nobody(self, make: Any, kind: Kind, letter: str) -> None:
        """That SES had accepted the first is enough to call the person sent: then nobody orders a third."""
        table: Table = make(1)
        slow = table.hold("slow")
        first = table.call(slow)
        table.expire()
        order(table)
        open_people(table, table.hold("quick"))
        table.expire()
        assert table.row() == "u"
        table.record(slow, first, answer(kind))
        assert table.row() == letter
        assert table.lease() is None

    @pytest.mark.parametrize("kind", [SENT, FAILED, RETRY, AGAIN, UNKNOWN])
    @pytest.mark.parametrize("opened", [False, True])
    def test_a_late_answer_of_the_first_changes_nothing_of_one_under_way(
        self, make: Any, kind: Kind, opened: bool
    ) -> None:
        table: Table = make(1)
        slow = table.hold("slow")
        first = table.call(slow)
        table.expire()
        order(table)
        held = table.hold("quick")
        if opened:
            second = open_people(table, held)
        table.record(slow, first, answer(kind))
        assert table.row() == ("o" if opened else "-")
        if not opened:
            second = open_people(table, held)
        table.record(held, second, answer(SENT))
        assert table.row() == "s"
        assert rows(table) == [(1, "sent", "resend", 0, 2)]
        assert promises.accepted_twice(table.connection, table.key) == 0

    def test_somebody_accepted_at_both_attempts_is_no_breach(self, make: Any) -> None:
        table: Table = make(2)
        slow = table.hold("slow")
        first = table.call(slow)
        table.expire()
        order(table, 2)
        held = table.hold()
        second = open_people(table, held)
        table.record(slow, first, answer(SENT, SENT))
        table.record(held, second, answer(SENT))
        assert table.row() == "ss"
        assert promises.accepted_twice(table.connection, table.key) == 0
        table.connection.execute("UPDATE mailpipe.outcome SET attempt = 1, reason = 'resolved'")
        assert promises.accepted_twice(table.connection, table.key) == 1

    def test_it_waits_for_the_holder_of_its_chunk(self, make: Any) -> None:
        """A worker who holds the chunk goes on with its own people; the next lease finds those of the order."""
        table: Table = make(4)
        held = table.hold("one")
        table.record(held, table.call(held, 1, 2), answer(UNKNOWN, SENT))
        order(table)
        assert table.row() == "-s--"
        assert table.lease("two") is None
        assert table.record(held, table.call(held, 3, 4), answer(SENT, SENT))
        ledger.release(table.connection, held)
        assert table.row() == "-sss"
        held = table.hold("two")
        table.record(held, open_people(table, held), answer(SENT))
        assert table.row() == "ssss"
        assert table.chunk()["state"] == "done"

    def test_an_event_fails_nobody_for_an_earlier_attempt(self, make: Any) -> None:
        table: Table = make(3)
        table.call(table.hold())
        table.expire()
        order(table)
        held = table.hold()
        table.record(held, open_people(table, held), answer(SENT, SENT, UNKNOWN))
        key = table.key
        event.fold(table.connection, [event.Event("rendering_failure", key, 1), event.Event("reject", key, 3)])
        assert event.settle(table.connection, table.campaign_id) == 0
        assert table.row() == "ssu"
        event.fold(
            table.connection,
            [event.Event("rendering_failure", key, 2, attempt=2), event.Event("reject", key, 3, attempt=2)],
        )
        assert event.settle(table.connection, table.campaign_id) == 2
        assert table.row() == "sff"

    @pytest.mark.parametrize("attempt", [1, 2])
    def test_an_event_of_any_attempt_proves_that_somebody_has_the_mail(self, make: Any, attempt: int) -> None:
        table: Table = make(2)
        table.call(table.hold())
        table.expire()
        order(table)
        open_people(table, table.hold())
        table.expire()
        assert table.row() == "uu"
        event.fold(table.connection, [event.Event("delivery", table.key, 2, attempt)])
        assert event.settle(table.connection, table.campaign_id) == 1
        assert table.row() == "us"
        assert rows(table)[1][3:] == (0, 2)
        event.fold(table.connection, [event.Event("reject", table.key, 2, attempt=3 - attempt)])
        assert event.settle(table.connection, table.campaign_id) == 0
        assert table.row() == "us"


Mailpipe = Callable[..., Result]


@pytest.fixture
def mailpipe(world: World) -> Mailpipe:
    """Run a command; it must end with the exit code that is expected, and never by a traceback."""
    environment = {
        "MAILPIPE_HOME": str(world.settings.home),
        "MAILPIPE_VAR": str(world.settings.var),
        "MAILPIPE_DATABASE_URL": world.database.url.render_as_string(hide_password=False),
        "MAILPIPE_SES_ENDPOINT": world.stand_in.url,
        "MAILPIPE_ALLOW_UNSAFE_DURABILITY": "1",
        "MAILPIPE_THREADS": "4",
        "MAILPIPE_USER": "ana",
    }

    def run(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(main, arguments, env=environment)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert result.exit_code == code, result.output
        return result

    return run


def test_the_desk_as_a_person_types_it(world: World, mailpipe: Mailpipe, tmp_path: Path) -> None:
    key = lose(world, 50, accept=False)
    desk = ("campaign", "unknown")
    listed = json.loads(mailpipe(*desk, "list", key, "--json").stdout)
    assert [one["seq"] for one in listed] == list(range(1, 51))
    assert {(one["reason"], one["attempt"]) for one in listed} == {("connection_lost", 1)}
    assert "50 people" in mailpipe(*desk, "list", key).stdout
    assert "@" not in mailpipe(*desk, "list", key).stdout
    file = tmp_path / "unknown.csv"
    assert json.loads(mailpipe(*desk, "export", key, str(file), "--json").stdout)["recipients"] == 50
    assert file.read_text().count("@mail.example.com") == 50

    for wrong in (
        ("--all", "--reason", "x"),
        ("--all", "--reason", "x", "--resend", "--outcome", "sent"),
        ("--resend", "--reason", "x"),
        ("--resend", "--reason", "x", "--all", "--seq", "3"),
        ("--resend", "--all"),
        ("--resend", "--all", "--reason", " "),
        ("--resend", "--seq", "0", "--reason", "x"),
    ):
        mailpipe(*desk, "resolve", key, *wrong, code=2)
    assert world.keep_promises(key) == {"unknown": 50}

    said = mailpipe(*desk, "resolve", key, "--outcome", "sent", "--seq", "7", "--seq", "8", "--reason", "on the phone")
    assert "2 people" in said.stdout and "seq 7-8" in said.stdout
    order = (*desk, "resolve", key, "--resend", "--reason", "no trace of them", "--as", "ben")
    done = json.loads(mailpipe(*order, "--all", "--json").stdout)
    assert (done["people"], done["seqs"], done["reopened"]) == (48, [[1, 6], [9, 50]], True)
    assert "1 of those asked for were not unknown" in mailpipe(*order, "--seq", "7").stdout
    mailpipe("campaign", "start", key)
    assert world.keep_promises(key) == {"sent": 50}
    assert attempts(world, key) == {2: 48}

    shown = mailpipe("campaign", "show", key).stdout
    assert "no trace of them; 48 people: seq 1-6, 9-50" in shown and "ben" in shown
    steps = json.loads(mailpipe("campaign", "show", key, "--json").stdout)["history"]
    assert [(step["action"], step["actor"]) for step in steps[-2:]] == [("resolve_as_sent", "ana"), ("resend", "ben")]
