"""Runs of a campaign for tests, and what else would take them time: no test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from mailpipe.send import Outcome
from mailpipe.ses.client import connect
from tests.support import World


def quick(scene: World, *, read_timeout: float = 0.4) -> World:
    """The same world with a client that does not wait long for an answer."""
    settings = scene.with_settings(read_timeout=read_timeout)
    return replace(scene, settings=settings, ses=connect(settings, endpoint=scene.stand_in.url, connections=8))


@contextmanager
def sending(scene: World, key: str, *, slices: tuple[int, int] = (0, 99), **options: Any) -> Iterator[Future[Outcome]]:
    """A run in a thread of its own; it is over at the end, and ended when the test fails."""
    stop: threading.Event = options.setdefault("stop", threading.Event())
    with ThreadPoolExecutor(1) as pool:
        try:
            yield pool.submit(scene.send, key, slices, **options)
        except BaseException:
            stop.set()
            raise


def due_now(scene: World, key: str) -> None:
    """Let the time pass for which chunks are left alone."""
    scene.execute(
        "UPDATE mailpipe.chunk SET due_at = now() WHERE campaign_id = %(id)s AND state = 'pending'",
        {"id": scene.campaign(key).campaign_id},
    )


def unblock(scene: World) -> None:
    """Let the time pass for which everybody waits for SES."""
    scene.execute("UPDATE mailpipe.pace SET blocked_until = NULL, blocked_reason = NULL")


def accepted(scene: World, key: str) -> int:
    return len(scene.journal(key))
