"""From the library's errors to what a terminal shows: one place decides about texts and exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click
import psycopg
import sqlalchemy

from mailpipe.errors import MailpipeError, UserError
from mailpipe.ses.answer import without_addresses


class Mistake(click.ClickException):
    """What the person can mend."""

    exit_code = 2


class Trouble(click.ClickException):
    """What a service did not do, or what came out otherwise than it should."""

    exit_code = 1


@contextmanager
def explained() -> Iterator[None]:
    """Turn errors raised on purpose, and those of the database, into text without a traceback."""
    try:
        yield
    except UserError as error:
        raise Mistake(str(error)) from error
    except MailpipeError as error:
        raise Trouble(str(error)) from error
    except psycopg.Error as error:
        raise Trouble(_of_database(error)) from error
    except sqlalchemy.exc.DBAPIError as error:
        raise Trouble(_of_database(error.orig or error)) from error


def _of_database(error: BaseException) -> str:
    message = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    # The text of an error may quote a value, and a value may be somebody's address.
    return f"PostgreSQL: {without_addresses(message or str(error)) or type(error).__name__}"
