"""A restored or copied database sends nothing until a person has looked at it, and a missed campaign is not sent late by itself."""

from __future__ import annotations

import fcntl
import json
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mailpipe import campaign, identity, settings
from mailpipe.cli import main
from mailpipe.errors import CampaignError, RestoredDatabase, SettingsError
from mailpipe.send import End
from tests.support import World

LEDGER = ("outcome", "call", "chunk", "event_mask")
"""Everything that a send changes, beside the campaign and the instance."""


class Dump:
    """The state of the tables that a send writes, and the way back to it: yesterday's dump, restored."""

    def __init__(self, world: World) -> None:
        self._world = world
        for table in (*LEDGER, "instance", "campaign"):
            world.execute(f"CREATE TABLE dump_{table} AS SELECT * FROM mailpipe.{table}")

    def restore(self) -> None:
        with self._world.database.transaction() as connection:
            for table in LEDGER:
                connection.execute(f"DELETE FROM mailpipe.{table}".encode())
                connection.execute(f"INSERT INTO mailpipe.{table} SELECT * FROM dump_{table}".encode())
            connection.execute("UPDATE mailpipe.instance i SET mark = d.mark FROM dump_instance d")
            connection.execute(
                "UPDATE mailpipe.campaign g SET state = d.state FROM dump_campaign d WHERE d.campaign_id = g.campaign_id"
            )


def everything(world: World) -> list[list[tuple[Any, ...]]]:
    tables = (*LEDGER, "instance", "campaign", "audit")
    return [sorted(world.execute(f"SELECT CAST(t AS text) FROM mailpipe.{table} t")) for table in tables]


def refusal(world: World, key: str) -> str:
    """How a run is refused; it must not have changed or sent anything."""
    before, mails = everything(world), len(world.journal(key))
    with pytest.raises(RestoredDatabase) as caught:
        world.send(key)
    assert everything(world) == before
    assert len(world.journal(key)) == mails
    return str(caught.value)


def confirm(world: World) -> list[str]:
    with world.database.connection() as connection:
        return identity.confirm(connection, world.settings, world.ses, actor="cleo", reason="disk failed")


def send_from(world: World, machine: str, monkeypatch: pytest.MonkeyPatch, key: str) -> End:
    """Send from another machine, which has a MAILPIPE_VAR of its own."""
    other = world.with_settings(var=world.settings.var.with_name(machine))
    monkeypatch.setattr(world, "settings", other)
    monkeypatch.setattr("socket.gethostname", lambda: machine)
    return world.send(key).end


@pytest.mark.parametrize("state_in_dump", ["sending", "approved"])
def test_yesterdays_dump_does_not_mail_todays_people_again(world: World, state_in_dump: str) -> None:
    world.people(300)
    earlier, key = world.ready(), world.create()
    world.send(earlier)
    world.approve(key)
    world.freeze(key)
    if state_in_dump == "sending":
        world.execute("UPDATE mailpipe.campaign SET state = 'sending' WHERE key = %(key)s", {"key": key})
    dump = Dump(world)
    world.send(key)
    assert world.keep_promises(key) == {"sent": 300}

    dump.restore()
    words = refusal(world, key)
    assert "older than what was sent with it" in words
    assert "confirm-restore" in words

    assert confirm(world) == [key]
    found = world.campaign(key)
    assert (found.state, found.state_reason) == ("paused", "database was restored")
    assert world.send(key).end is End.NOT_SENDING
    ((actor, action, detail),) = world.execute(
        "SELECT actor, action, detail FROM mailpipe.audit WHERE campaign_id IS NULL"
    )
    assert (actor, action) == ("cleo", "confirm_restore")
    assert (detail["reason"], detail["paused"]) == ("disk failed", [key])
    assert len(world.journal(key)) == 300
    with world.database.connection() as connection:
        campaign.cancel(connection, key, actor="cleo", reason="it was sent")
    assert world.send(world.ready()).accepted == 300, "the database is in use again"


def test_a_database_that_is_restored_in_the_middle_of_a_send_is_noticed(world: World) -> None:
    world.people(6_000)
    key = world.ready(rate=2_000.0)
    restored = threading.Event()

    def tick(_connection: Any) -> None:
        if not restored.is_set() and world.progress(key).sent > 1_000:
            world.execute("UPDATE mailpipe.instance SET mark = mark - interval '1 hour'")
            restored.set()

    with pytest.raises(RestoredDatabase, match="while it was sent with"):
        world.send(key, on_tick=tick)
    assert restored.is_set()
    progress = world.progress(key)
    assert (progress.sending, progress.unknown, progress.processing_chunks) == (0, 0, 0)
    assert progress.pending > 0


def test_a_new_worker_machine_may_send(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no marker, but SES has sent what the database knows of."""
    world.people(2_400)
    world.send(world.ready())
    assert send_from(world, "second", monkeypatch, world.ready()) is End.COMPLETE
    assert list(identity.read(identity.marker_path(world.settings))) == [
        str(world.execute("SELECT instance_id FROM mailpipe.instance")[0][0])
    ]


@pytest.mark.parametrize("moved_with_its_files", [False, True])
def test_a_copy_on_another_machine_is_refused_when_ses_has_sent_more(
    world: World, monkeypatch: pytest.MonkeyPatch, moved_with_its_files: bool
) -> None:
    world.people(1_200)
    first, key = world.ready(), world.ready()
    world.send(first)
    dump = Dump(world)
    marker = identity.marker_path(world.settings).read_text()
    world.send(key)
    dump.restore()
    if moved_with_its_files:
        copied = world.settings.var.with_name("copy") / "instance.json"
        copied.parent.mkdir()
        copied.write_text(marker)
    before = everything(world)
    with pytest.raises(RestoredDatabase) as caught:
        send_from(world, "copy", monkeypatch, key)
    for words in ("2,400 recipients", "knows of 1,200", "a copy", "somebody else", "MAILPIPE_FOREIGN_SENT"):
        assert words in str(caught.value)
    assert everything(world) == before

    assert confirm(world) == [key]
    later = world.ready()
    assert world.send(later).end is End.COMPLETE
    # What was confirmed once holds on every machine: what SES sent without us stays in its count for a day.
    assert send_from(world, "third", monkeypatch, world.ready()) is End.COMPLETE
    assert len(world.journal(key)) == 1_200


def test_one_of_several_machines_asks_ses_too_when_another_was_the_last_to_send(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own marker is older than the dump, so it cannot tell how far the others came."""
    world.people(1_200)
    first, key = world.ready(), world.ready()
    with monkeypatch.context() as second:
        send_from(world, "second", second, world.ready())
    world.send(first)
    world.execute("UPDATE mailpipe.instance SET mark = mark + interval '2 minutes'")
    dump = Dump(world)
    world.execute("UPDATE mailpipe.instance SET mark = mark - interval '2 minutes'")
    world.send(key)
    dump.restore()
    with pytest.raises(RestoredDatabase, match=r"3,600 recipients.* knows of 2,400"):
        send_from(world, "second", monkeypatch, key)
    assert len(world.journal(key)) == 1_200


def test_other_senders_of_the_account_can_be_allowed_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.people(1_200)
    first, key = world.ready(), world.ready()
    world.send(first)
    world.execute("UPDATE mailpipe.call SET at = at - interval '25 hours'")
    with pytest.raises(RestoredDatabase):
        send_from(world, "second", monkeypatch, key)
    monkeypatch.setattr(world, "settings", world.with_settings(foreign_sent=1_200.0))
    assert world.send(key).end is End.COMPLETE


def test_a_database_that_never_sent_asks_nobody(world: World) -> None:
    """A first run on an account that others have used for long."""
    world.people(1_200)
    world.send(world.ready())
    world.execute("UPDATE mailpipe.instance SET instance_id = gen_random_uuid(), mark = NULL")
    world.execute("UPDATE mailpipe.call SET at = at - interval '25 hours'")
    assert world.send(world.ready()).end is End.COMPLETE
    assert len(identity.read(identity.marker_path(world.settings))) == 2


def test_the_marker_is_never_ahead_of_the_database_and_follows_it_to_the_end_of_a_run(world: World) -> None:
    world.people(100)
    ahead = []

    def look() -> None:
        (marker,) = identity.read(identity.marker_path(world.settings)).values()
        ((mark,),) = world.execute("SELECT mark FROM mailpipe.instance")
        ahead.append(marker.mark > mark)

    world.send(world.ready(), on_tick=lambda _connection: look())
    (marker,) = identity.read(identity.marker_path(world.settings)).values()
    ((mark, last),) = world.execute("SELECT mark, (SELECT max(at) FROM mailpipe.call) FROM mailpipe.instance")
    assert ahead and not any(ahead)
    assert marker.mark == mark > last, "a dump that lacks the last answer is behind"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"x": {}}', '{"x": {"mark": "yesterday", "host": "a"}}'])
def test_a_marker_that_cannot_be_read_is_named(world: World, content: str) -> None:
    world.people(60)
    key = world.ready()
    path = identity.marker_path(world.settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    with pytest.raises(SettingsError, match=r"instance\.json: cannot be read"):
        world.send(key)
    assert world.campaign(key).state == "approved"


def test_without_a_place_for_the_marker_nothing_is_sent(world: World) -> None:
    world.people(60)
    key = world.ready()
    world.settings.var.parent.mkdir(exist_ok=True)
    world.settings.var.write_text("a file where a folder should be")
    with pytest.raises(SettingsError, match=r"instance\.json: cannot be"):
        world.send(key)
    assert world.journal(key) == []


def test_a_process_that_stands_still_with_the_marker_in_its_hands_holds_up_nobody_for_ever(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "LOCK_PATIENCE", 0.2)
    world.people(60)
    key = world.ready()
    path = identity.marker_path(world.settings).with_suffix(".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(SettingsError, match=r"instance\.lock: another process has held this lock for 0\.2 s"):
            world.send(key)
        assert world.journal(key) == []
        threading.Timer(0.1, fcntl.flock, (other, fcntl.LOCK_UN)).start()
        monkeypatch.setattr(identity, "LOCK_PATIENCE", 10.0)
        assert world.send(key).accepted == 60, "it is waited for"


def test_markers_of_several_databases_stand_beside_each_other(world: World) -> None:
    world.people(60)
    path = identity.marker_path(world.settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"another": {"mark": "2026-01-01T00:00:00+00:00", "host": "a"}}))
    world.send(world.ready())
    markers = identity.read(path)
    assert len(markers) == 2
    assert markers["another"].mark == datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(("actor", "reason"), [(" ", "why"), ("cleo", " ")])
def test_a_confirmation_has_a_name_and_a_reason(world: World, actor: str, reason: str) -> None:
    key = world.create()
    world.approve(key)
    with world.database.connection() as connection, pytest.raises(CampaignError):
        identity.confirm(connection, world.settings, world.ses, actor=actor, reason=reason)
    assert world.campaign(key).state == "approved"


def mailpipe(world: World, *arguments: str) -> Result:
    """A command, as a person types it."""
    environment = {
        "MAILPIPE_HOME": str(world.settings.home),
        "MAILPIPE_VAR": str(world.settings.var),
        "MAILPIPE_DATABASE_URL": world.database.url.render_as_string(hide_password=False),
        "MAILPIPE_SES_ENDPOINT": world.stand_in.url,
        "MAILPIPE_ALLOW_UNSAFE_DURABILITY": "1",
        "MAILPIPE_THREADS": "4",
        "MAILPIPE_USER": "cleo",
    }
    return CliRunner().invoke(main, arguments, env=environment)


def test_on_the_command_line_a_restore_is_refused_and_confirmed(world: World) -> None:
    world.people(60)
    key = world.ready()
    world.send(world.ready())
    world.execute("UPDATE mailpipe.instance SET mark = mark - interval '1 day'")
    before = everything(world)
    refused = mailpipe(world, "campaign", "start", key)
    assert refused.exit_code == 2
    assert "older than what was sent with it" in refused.stderr
    assert everything(world) == before
    confirmed = mailpipe(world, "db", "confirm-restore", "--reason", "disk failed")
    assert confirmed.exit_code == 0
    assert f"mailpipe campaign resume {key}" in confirmed.stdout
    assert world.campaign(key).state_reason == "database was restored"
    assert mailpipe(world, "campaign", "resume", key).exit_code == 0
    assert "60 sent" in mailpipe(world, "campaign", "start", key).stdout


def test_on_the_command_line_a_missed_campaign_is_started_with_late(world: World) -> None:
    world.people(60)
    key = world.ready(due_at=hours_ago(7))
    refused = mailpipe(world, "campaign", "start", key)
    assert refused.exit_code == 2
    assert "--late" in refused.stderr
    assert "60 sent" in mailpipe(world, "campaign", "start", key, "--late").stdout


def test_grace_and_other_senders_are_settings() -> None:
    chosen = settings.load({"MAILPIPE_MISFIRE_GRACE": "600", "MAILPIPE_FOREIGN_SENT": "50000"})
    assert (chosen.misfire_grace, chosen.foreign_sent) == (600.0, 50_000.0)
    with pytest.raises(SettingsError, match="MAILPIPE_MISFIRE_GRACE"):
        settings.load({"MAILPIPE_MISFIRE_GRACE": "soon"})


def hours_ago(hours: float) -> str:
    return (datetime.now(UTC) - timedelta(hours=hours)).isoformat()


def test_a_campaign_that_was_missed_is_not_started_by_itself(world: World) -> None:
    """Down at the due time, or a restored server: the offer of 8:00 is not sent at 15:00 without somebody's word."""
    world.people(60)
    key = world.ready(due_at=hours_ago(6.1))
    with pytest.raises(CampaignError, match=r"missed.*--late"):
        world.send(key)
    assert world.campaign(key).state == "approved"
    assert world.journal(key) == []
    assert world.send(key, late=True).accepted == 60
    with world.database.connection() as connection:
        history = campaign.history(connection, world.campaign(key).campaign_id)
    assert [one["detail"] for one in history if one["action"] == "start"] == [{"late": True}]


def test_within_its_grace_a_campaign_is_started(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.people(60)
    assert world.send(world.ready(due_at=hours_ago(5.9))).accepted == 60
    monkeypatch.setattr(world, "settings", world.with_settings(misfire_grace=3_600.0))
    with pytest.raises(CampaignError, match="missed"):
        world.send(world.ready(due_at=hours_ago(1.1)))


def test_a_draft_that_waited_long_for_its_approval_is_not_missed(world: World) -> None:
    world.people(60)
    key = world.ready()
    world.execute("UPDATE mailpipe.campaign SET due_at = due_at - interval '9 days'")
    world.execute("UPDATE mailpipe.chunk SET due_at = due_at - interval '9 days'")
    assert world.send(key).accepted == 60


def test_a_campaign_in_the_middle_of_its_send_goes_on_however_late(world: World) -> None:
    world.people(120)
    key = world.ready(due_at=hours_ago(1))
    world.send(key, (0, 49))
    world.execute("UPDATE mailpipe.campaign SET due_at = due_at - interval '2 days'")
    world.send(key)
    assert world.keep_promises(key) == {"sent": 120}
