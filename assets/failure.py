"""How a failure looks in Dagster: a person's mistake as one sentence, a fault as a fault, and no address in either."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from mailpipe.errors import UserError

_ADDRESS = re.compile(r"[^\s\"'<>()=,;]+@[^\s\"'<>()=,;]+")


@contextmanager
def explained() -> Iterator[None]:
    """Run a call into the library. A UserError becomes the run's failure, in its own words and without a traceback.

    Everything else keeps its traceback, unless its text quotes an address (PostgreSQL quotes whole rows): Dagster keeps
    events for ever, so then only the kind of fault and the masked text are told.
    """
    try:
        yield
    except UserError as error:
        raise dg.Failure(description=str(error), allow_retries=False) from None
    except Exception as error:
        if isinstance(error, dg.Failure) or not any(_ADDRESS.search(str(link)) for link in _chain(error)):
            raise
        text = _ADDRESS.sub("<address>", str(error))
        raise dg.Failure(description=f"{type(error).__name__}: {text}", allow_retries=False) from None


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__
