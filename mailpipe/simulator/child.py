"""Starting the stand-in as a child process and talking to its control door: for tests, benchmarks, the demo.

It is a client: nothing of the stand-in's own state is in this process.
"""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

JsonObject = dict[str, Any]

_START_DEADLINE_S = 20.0
_STOP_DEADLINE_S = 10.0


class StandInFailedError(RuntimeError):
    """The child process ended, or did not listen in time; the text ends with what it printed."""


class StandIn:
    """A running stand-in. Journal, events and log lie in `folder`; leaving the context ends the process."""

    def __init__(self, folder: Path, **options: object) -> None:
        """Starts it and waits until it listens.

        `options` are fields of `Options` (`rate=500, render=True`); journal, events and ready file are set.
        Raises StandInFailedError.
        """
        folder = folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        self.journal_file = folder / "journal.jsonl"
        self.events_file = folder / "events.jsonl"
        self._log_file = folder / "simulator.log"
        ready_file = folder / "ready"
        ready_file.unlink(missing_ok=True)
        given = {"journal": self.journal_file, "events": self.events_file, "ready_file": ready_file} | options
        command = [sys.executable, "-m", "mailpipe.simulator", *_arguments(given)]
        with self._log_file.open("ab") as log:
            # The directory that holds the package, so that a checkout need not be installed.
            root = Path(__file__).parents[2]
            self.process = subprocess.Popen(command, cwd=root, stdout=log, stderr=log)
        self.url = self._wait_until_ready(ready_file)

    def _wait_until_ready(self, ready_file: Path) -> str:
        deadline = time.monotonic() + _START_DEADLINE_S
        while not ready_file.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise StandInFailedError(f"the stand-in did not start:\n{self._log_file.read_text()[-2000:]}")
            time.sleep(0.01)
        return ready_file.read_text().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> int:
        """Asks it to end (SIGTERM) and returns its exit code, 0 unless something went wrong."""
        self.process.terminate()
        try:
            return self.process.wait(_STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """Ends it at once (SIGKILL): what was accepted is in the journal all the same."""
        self.process.kill()
        self.process.wait()

    def state(self) -> JsonObject:
        """The counters; see `control.Control.state`."""
        state: JsonObject = self._control("GET", "state")
        return state

    def add_faults(self, *rules: JsonObject) -> None:
        """Puts fault rules in force; see `faults`."""
        self._control("POST", "faults", list(rules))

    def clear_faults(self) -> None:
        self._control("DELETE", "faults")

    def change(self, **settings: object) -> None:
        """Changes quotas, switches or latency while it runs."""
        self._control("PATCH", "settings", settings)

    def enqueue(self, events: Sequence[str]) -> None:
        """Puts these events into its SQS queue."""
        self._control("POST", "queue", list(events))

    def message(self, message_id: str) -> JsonObject:
        """One of the newest accepted messages, rendered."""
        message: JsonObject = self._control("GET", f"messages/{message_id}")
        return message

    def journal(self) -> list[JsonObject]:
        """Every accepted message, in order."""
        return _lines(self.journal_file)

    def events(self) -> list[JsonObject]:
        """Every event written so far."""
        return _lines(self.events_file)

    def _control(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/_control/{path}", data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                raise ValueError(f"{method} {path}: {json.load(error)['message']}") from None


def _arguments(options: JsonObject) -> list[str]:
    arguments = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            arguments.append(flag)
        elif value is not None and value is not False:
            arguments += [flag, str(value)]
    return arguments


def _lines(path: Path) -> list[JsonObject]:
    """The whole lines of a file that may be growing."""
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return [json.loads(line) for line in whole.splitlines()]
