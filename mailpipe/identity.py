"""Which database this is, and whether it is still the one that this machine has sent with.

A dump that is restored, or a copy of a volume, shows people as pending who have their mail by now, and nothing inside the
database can tell. So a file outside of it, `instance.json` below MAILPIPE_VAR, remembers how far the database had come: its
high-water mark, which grows once a second while somebody sends. A database behind its marker sends nothing until a person
has looked at it. A machine that was not the last to send (a new worker, one of several) cannot know by its marker how far the
others came; there SES's own count of the last day is the witness.
What a person may do with a campaign after that is `campaign`'s duty.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from mailpipe import campaign, outbox
from mailpipe.db import Connection, queries
from mailpipe.errors import CampaignError, RestoredDatabase, SettingsError
from mailpipe.ses.client import Ses
from mailpipe.settings import Settings

QUERIES = queries.beside(__file__)

SHARE = 0.05
"""Part of what we know to have sent in a day by which SES's own count may be larger: the two do not count at the same instant."""
REASON = "database was restored"
LAG = timedelta(minutes=1)
"""A marker that is further behind the database than this: another machine was the last to send. Processes of one machine share a
marker, and are at most a second apart."""
LOCK_PATIENCE = 10.0
"""Seconds that a process waits for others of its machine that write their marker. Who holds the lock may stand still for ever."""

_ADVICE = (
    'Nothing was sent, nothing was changed. `mailpipe db confirm-restore --as NAME --reason "..."` pauses every campaign'
    " and lets this database be used from here on; resume only campaigns of which nothing was sent since"
)


@dataclass(frozen=True)
class Marker:
    """What a machine remembers of a database: its high-water mark, and the name of the machine."""

    mark: datetime
    host: str


class Guard:
    """The right to send with a database, and the upkeep of its mark while it is used."""

    def __init__(self, path: Path, instance_id: str, known: datetime | None) -> None:
        self._path = path
        self._instance_id = instance_id
        self._known = known

    def advance(self, connection: Connection) -> None:
        """Move the mark, first in the database and then in the file: so the file is never ahead of what is on disk.

        Raises:
            RestoredDatabase: another or an older database answers than a moment ago.
            SettingsError: the file cannot be written, or another process keeps it locked.
        """
        row = connection.execute(
            QUERIES["advance"], {"instance_id": self._instance_id, "known": self._known}
        ).fetchone()
        if row is None:
            raise RestoredDatabase(f"the database was replaced by an older one while it was sent with. {_ADVICE}")
        self._known = row[0]
        _write(self._path, self._instance_id, row[0])


def admit(connection: Connection, settings: Settings, ses: Ses | None) -> Guard:
    """Let this machine send with this database, and note that it does. `ses`: None where the mails do not leave through SES, which
    then is no witness of them.

    Raises:
        RestoredDatabase: the database is behind its marker; or another machine was the last to send, and SES has sent
            clearly more in the last 24 hours than the database knows of. Nothing is changed.
        SettingsError: the marker cannot be read or written.
        ServiceError: SES's count is needed and cannot be read.
    """
    path = marker_path(settings)
    # The file before the database, which is always the first to move: else another run of this machine, moving both in between,
    # would make the database look old.
    markers = read(path)
    instance_id, mark, confirmed = _row(connection)
    marker = markers.get(instance_id)
    if marker is not None and (mark is None or mark < marker.mark):
        raise RestoredDatabase(
            f"this database is older than what was sent with it: it knows of nothing after"
            f" {_written(mark)}, but this machine sent with it until {_written(marker.mark)} ({path})."
            " It was restored from a dump, or is a copy: people are pending in it who have their mail."
            f" Bring back the newer database if there is one. {_ADVICE}"
        )
    if (
        ses is not None
        and mark is not None
        and (marker is None or marker.host != socket.gethostname() or mark - marker.mark > LAG)
    ):
        _ask_provider(connection, settings, ses, confirmed)
    guard = Guard(path, instance_id, mark)
    guard.advance(connection)
    return guard


def confirm(connection: Connection, settings: Settings, ses: Ses, *, actor: str, reason: str) -> list[str]:
    """Accept the database as it is, on a person's word: every campaign that could send is paused, messages that may have been sent
    already are `unknown`, and the mark moves beyond all markers. What SES has sent without this database's knowledge is accepted
    for a day, on every machine. Answers the keys of the paused campaigns.

    Raises:
        CampaignError: actor or reason is empty.
        SettingsError, ServiceError: as `admit`.
    """
    if not reason.strip():
        raise CampaignError("reason: say what happened; it is kept for ever")
    path = marker_path(settings)
    instance_id, mark, _ = _row(connection)
    marker = read(path).get(instance_id)
    sent, known = _last_day(connection, ses)
    with connection.transaction():
        paused = campaign.pause_all(connection, actor=actor, reason=REASON)
        held = outbox.hold(connection, before=None if marker is None else marker.mark)
        campaign.note(
            connection,
            None,
            actor=actor,
            action="confirm_restore",
            detail={
                "reason": reason,
                "mark": None if mark is None else mark.isoformat(),
                "marker": None if marker is None else marker.mark.isoformat(),
                "sent_last_day": sent,
                "accepted_last_day": known,
                "paused": paused,
                "messages_held": held,
            },
        )
        row = connection.execute(
            QUERIES["confirm"],
            {"known": None if marker is None else marker.mark, "surplus": max(0.0, sent - known)},
        ).fetchone()
    assert row is not None
    _write(path, instance_id, row[0])
    return paused


def marker_path(settings: Settings) -> Path:
    return settings.var / "instance.json"


def read(path: Path) -> Mapping[str, Marker]:
    """The markers of this machine by the id of their database; one machine may work with several.

    Raises:
        SettingsError: the file is not readable.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {
            instance_id: Marker(datetime.fromisoformat(entry["mark"]), str(entry["host"]))
            for instance_id, entry in found.items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SettingsError(
            f"{path}: cannot be read ({type(error).__name__}). It says how far the database had come when this machine"
            " last sent with it. Put it back, or move it away: then SES's count of the last day is asked instead"
        ) from error


def _row(connection: Connection) -> tuple[str, datetime | None, float]:
    row = connection.execute(QUERIES["read"]).fetchone()
    assert row is not None
    return str(row[0]), row[1], float(row[2])


def _ask_provider(connection: Connection, settings: Settings, ses: Ses, confirmed: float) -> None:
    sent, known = _last_day(connection, ses)
    if sent - known <= max(settings.foreign_sent, SHARE * known) + confirmed:
        return
    raise RestoredDatabase(
        f"SES has sent to {sent:,.0f} recipients in the last 24 hours, this database knows of {known:,}, and this machine"
        " was not the last to send with it. Either the database is a restored dump or a copy, and people are pending in"
        " it who have their mail; or somebody else sends from the same SES account. If it is somebody else, set"
        f" MAILPIPE_FOREIGN_SENT (now {settings.foreign_sent:,.0f}) above what they send in a day. {_ADVICE}"
    )


def _last_day(connection: Connection, ses: Ses) -> tuple[float, int]:
    """Recipients of the last 24 hours: as SES counts them, and as this database knows them."""
    sent = ses.account().sent_last_day
    row = connection.execute(QUERIES["accepted_last_day"]).fetchone()
    assert row is not None
    return sent, int(row[0])


def _write(path: Path, instance_id: str, mark: datetime) -> None:
    """Put a mark into the file, unless another process of this machine has put a later one there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            entries = {key: {"mark": one.mark.isoformat(), "host": one.host} for key, one in read(path).items()}
            before = entries.get(instance_id)
            if before is not None:
                mark = max(mark, datetime.fromisoformat(before["mark"]))
            entries[instance_id] = {"mark": mark.isoformat(), "host": socket.gethostname()}
            draft = path.with_suffix(".new")
            with draft.open("w", encoding="utf-8") as file:
                json.dump(entries, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
    except OSError as error:
        raise SettingsError(
            f"{path}: cannot be written ({error.strerror}). Without it a restored database could mail people twice;"
            " let MAILPIPE_VAR name a folder that can be written"
        ) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    until = time.monotonic() + LOCK_PATIENCE
    with path.open("a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise SettingsError(
                        f"{path}: another process has held this lock for {LOCK_PATIENCE:g} s, for which milliseconds are enough."
                        " Find the process of mailpipe that stands still, and end it"
                    ) from None
                time.sleep(0.02)
            else:
                break
        yield


def _written(at: datetime | None) -> str:
    return "its creation" if at is None else f"{at:%Y-%m-%d %H:%M:%S %Z}"
