"""Files that only grow: the journal of accepted messages, the log of remembered changes, and what both need
to be trusted.

A line is handed to the operating system before the answer leaves, so the journal holds whatever a client may
have been told, even if this process is killed the moment after. It is not a guard against the machine losing
power.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from mailpipe.simulator.message import Envelope, Message
from mailpipe.simulator.wire import JsonObject, quote


class AppendFile:
    """A file that is only appended to. Directories are made, what is there already is kept."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def append(self, data: bytes) -> None:
        written = os.write(self._descriptor, data)
        while written < len(data):
            written += os.write(self._descriptor, data[written:])

    def close(self) -> None:
        os.close(self._descriptor)


class Journal:
    """One line per accepted message:

    `message_id, at (epoch seconds), to (addresses, joined by ", " if several), recipients, campaign, seq,
    attempt (from the tags of these names, null without; seq and attempt are integers), tags, headers (names),
    outcome (a fate, or "rendering_failure"), operation, template, configuration_set, from`, and with
    rendering `subject_sha256, html_sha256, text_sha256`.
    """

    def __init__(self, path: Path, render: bool) -> None:
        self._file = AppendFile(path)
        self._render = render

    def write(self, envelope: Envelope, messages: Sequence[Message]) -> None:
        template = envelope.template.name if envelope.template else ""
        tail = (
            f'"operation":{quote(envelope.operation)},"template":{quote(template)},'
            f'"configuration_set":{quote(envelope.configuration_set)},"from":{quote(envelope.sender)}'
        )
        line = self._rendered_line if self._render else _line
        self._file.append("".join([line(message, f"{envelope.at:.6f}", tail) for message in messages]).encode())

    def _rendered_line(self, message: Message, at: str, tail: str) -> str:
        parts = message.rendered()
        if parts is not None:
            for name, part in (("subject", parts.subject), ("html", parts.html), ("text", parts.text)):
                if part is not None:
                    tail += f',"{name}_sha256":"{hashlib.sha256(part.encode()).hexdigest()}"'
        return _line(message, at, tail)

    def close(self) -> None:
        self._file.close()


def _line(message: Message, at: str, tail: str) -> str:
    # Tags are checked to be letters, digits, '_' and '-', and the id is our own: neither needs escaping.
    tags = message.tags
    campaign = tags.get("campaign")
    tag_text = ",".join([f'"{name}":"{value}"' for name, value in tags.items()])
    header_names = ",".join([quote(name) for name, _ in message.headers])
    recipients = quote(", ".join(message.recipients))
    outcome = "rendering_failure" if message.missing else message.fates[0]
    return (
        f'{{"message_id":"{message.message_id}","at":{at},"to":{recipients},'
        f'"recipients":{len(message.recipients)},'
        f'"campaign":{quote(campaign) if campaign is not None else "null"},'
        f'"seq":{_number(tags.get("seq"))},"attempt":{_number(tags.get("attempt"))},'
        f'"tags":{{{tag_text}}},"headers":[{header_names}],"outcome":"{outcome}",{tail}}}\n'
    )


def _number(tag: str | None) -> str:
    return str(int(tag)) if tag is not None and tag.isdecimal() else "null"


class ChangeLog:
    """Remembers what SES would: every change of templates, configuration sets and suppression list, replayed
    at the start."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: AppendFile | None = None

    def changes(self) -> list[JsonObject]:
        """Everything remembered so far, oldest first. A torn last line (the process was killed) is left
        out."""
        if self._path is None or not self._path.exists():
            return []
        whole, _, _ = self._path.read_bytes().rpartition(b"\n")
        return [json.loads(line) for line in whole.splitlines() if line.strip()]

    def start(self) -> None:
        """From here on `remember` writes. Called once the old changes were replayed."""
        if self._path is not None:
            self._file = AppendFile(self._path)
            self._file.append(b"\n")

    def remember(self, change: JsonObject) -> None:
        if self._file is not None:
            self._file.append(json.dumps(change).encode() + b"\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
