"""What a mail costs that is made here: rendering, the message, the conversation with an SMTP server.

    python -m benchmarks.adapters [--mails N]

The mail is that of the template `flash_sale`. `..._us` are microseconds of this process's own time for each mail. The pool makes
the same messages in two other processes, four threads asking for ten at a time. The SMTP server (aiosmtpd) is a process of its own,
and needs most of a core: the mails per second are its limit.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from email import policy
from email.headerregistry import Address
from email.message import EmailMessage
from functools import cache
from pathlib import Path

from benchmarks.ground import emit, say
from mailpipe import template
from mailpipe.adapters.mime import Renderer, build, message_id
from mailpipe.adapters.protocol import Mail, Templated
from mailpipe.adapters.smtp import SmtpAdapter
from mailpipe.adapters.smtp_session import server
from mailpipe.links import ONE_CLICK
from mailpipe.ses.answer import Kind

CALL = 10
THREADS = 4
URL = "https://unsubscribe.example.com/u/1.k1.bWFya2V0aW5nOjQy.hnYQ6cGqBnMkXGqG9mJ2Dw"
SERVER = """\
import asyncio
from aiosmtpd.smtp import SMTP
class Handler:
    async def handle_DATA(self, server, session, envelope):
        return "250 OK"
async def main():
    made = lambda: SMTP(Handler(), hostname="stand-in.example.com")
    server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
Raw = tuple[str, dict[str, str]]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.adapters", description="What a mail costs that is made here."
    )
    parser.add_argument("--mails", type=int, default=2_000)
    number = parser.parse_args().mails
    sample = {variable.name: variable.sample for variable in loaded().variables.values()}
    raws = [(f"person{n}@mail.example.net", loaded().data(sample, unsubscribe_url=URL)) for n in range(number)]
    mails = [mail(raw) for raw in raws]
    say("rendering")
    renderer = Renderer()
    renderer.render(mails[0])
    render = own_time(lambda: [renderer.render(one) for one in mails], number)
    preview = own_time(
        lambda: [loaded().render(sample, unsubscribe_url=URL) for _ in range(number // 10)], number // 10
    )
    say("messages")
    started = time.perf_counter()
    message = own_time(lambda: made(raws), number)
    alone = number / (time.perf_counter() - started)
    library = own_time(lambda: [by_library(one, renderer) for one in mails[: number // 10]], number // 10)
    say("a pool of processes")
    with ProcessPoolExecutor(2) as pool, ThreadPoolExecutor(THREADS) as asking:
        pool.submit(made, raws[:1]).result()
        started = time.perf_counter()
        batches = [raws[at : at + CALL] for at in range(0, number, CALL)]
        asked = own_time(lambda: list(asking.map(lambda batch: pool.submit(made, batch).result(), batches)), number)
        pooled = number / (time.perf_counter() - started)
    say("SMTP")
    conversation, per_second = by_smtp(mails)
    emit(
        {
            "mails": number,
            "bytes": len(made(raws[:1])[0]),
            "render_us": round(render, 1),
            "preview_us": round(preview, 1),
            "message_us": round(message, 1),
            "email_message_us": round(library, 1),
            "pool_us": round(asked, 1),
            "mails_per_second": round(alone),
            "pool_mails_per_second": round(pooled),
            "smtp_us": round(conversation, 1),
            "smtp_mails_per_second": round(per_second),
        }
    )


@cache
def loaded() -> template.Template:
    return template.load(Path("assets/templates"), "flash_sale")


@cache
def renderer_here() -> Renderer:
    return Renderer()


def mail(raw: Raw) -> Mail:
    to, data = raw
    return Mail(
        sender="Shop <news@mail.example.com>",
        to=to,
        content=Templated(loaded(), data),
        configuration_set="",
        headers=[("List-Unsubscribe", f"<{URL}>"), ONE_CLICK],
        tags={"campaign": "spring", "seq": "1", "attempt": "1"},
    )


def made(raws: Sequence[Raw]) -> list[bytes]:
    """The messages; also what a process of the pool does."""
    return [build(one, renderer_here().render(one), message_id()) for one in map(mail, raws)]


def by_library(one: Mail, renderer: Renderer) -> bytes:
    """The same message by `EmailMessage`."""
    rendered = renderer.render(one)
    message = EmailMessage(policy=policy.SMTP)
    message["From"] = Address("Shop", "news", "mail.example.com")
    message["To"] = one.to
    message["Subject"] = rendered.subject
    message["Message-ID"] = f"<{message_id()}@mail.example.com>"
    message.set_content(rendered.text, cte="quoted-printable")
    message.add_alternative(rendered.html, subtype="html", cte="quoted-printable")
    return message.as_bytes()


def by_smtp(mails: Sequence[Mail]) -> tuple[float, float]:
    """Own time of each mail, its making included, and mails per second."""
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            url = f"smtp://127.0.0.1:{int(running.stdout.readline())}"
            adapter = SmtpAdapter(server(url, password=None, connect_timeout=5, read_timeout=30))
            batches = iter([mails[at : at + CALL] for at in range(0, len(mails), CALL)])
            lock = threading.Lock()

            def work() -> None:
                while True:
                    with lock:
                        batch = next(batches, None)
                    if batch is None:
                        return
                    assert {result.kind for result in adapter.send(batch).results} == {Kind.SENT}

            threads = [threading.Thread(target=work) for _ in range(THREADS)]

            def run() -> None:
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()

            started = time.perf_counter()
            conversation = own_time(run, len(mails))
            seconds = time.perf_counter() - started
            adapter.close()
            return conversation, len(mails) / seconds
        finally:
            running.kill()


def own_time(step: Callable[[], object], number: int) -> float:
    """Microseconds of this process for each of `number` mails."""
    start = time.process_time()
    step()
    return (time.process_time() - start) / number * 1e6


if __name__ == "__main__":
    main()
