"""The family of errors that mailpipe raises on purpose. A new kind of mistake gets its class here; what only one
module raises and catches itself stays in that module.

`UserError` is for what a person can mend: its text names the file, line or field, and says what to do. The command line
prints the text and exits with 2; a Dagster face shows it as the run's failure. Everything else is a fault of ours or
of a service, and keeps its traceback.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any


def of_fields(items: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Each wrong field with what is wrong, from `pydantic.ValidationError.errors()`. A list whose items are wrong is not called too
    short as well: pydantic does not count those."""
    return [
        (".".join(map(str, item["loc"])), of_field(item))
        for item in items
        if item["type"] != "too_short"
        or not any(
            len(one["loc"]) > len(item["loc"]) and one["loc"][: len(item["loc"])] == item["loc"] for one in items
        )
    ]


def of_field(item: Mapping[str, Any]) -> str:
    """What is wrong with one field of a file, in plain words, from an entry of `pydantic.ValidationError.errors()`."""
    match item["type"]:
        case "extra_forbidden":
            return "there is no such field"
        case "missing":
            return "is missing"
        case "string_pattern_mismatch" if words := _in_words(str(item["ctx"]["pattern"])):
            return words
        # Of JSON it is said in JSON's words already: an object, an array.
        case "model_type" | "model_attributes_type" | "dict_type" if "dictionary" in item["msg"]:
            return "expected fields, as `name: value`"
        case "tuple_type" | "list_type" if "array" not in item["msg"]:
            return "expected a list, as [a, b]"
        case "too_short":
            return f"expected at least {item['ctx']['min_length']}"
        case "too_long":
            return f"expected at most {item['ctx']['max_length']}"
        case _:
            return str(item["msg"]).removeprefix("Value error, ")


def _in_words(pattern: str) -> str | None:
    """What a pattern such as `^[a-z0-9_-]{1,63}$` expects; None: it is not of that form."""
    found = re.fullmatch(r"\^\[((?:\w-\w)*)([^\]]*)\]\{(\d+),(\d+)\}\$", pattern)
    if found is None:
        return None
    ranges, others, least, most = found.groups()
    characters = [*re.findall(r"\w-\w", ranges), *others]
    return f"expected {least} to {most} of {', '.join(characters[:-1])} and {characters[-1]}"


class MailpipeError(Exception):
    """Root of all errors raised on purpose."""


class UserError(MailpipeError):
    """Something that the caller asked for cannot be done as asked; the text says what to change."""


class SettingsError(UserError):
    """An environment variable is missing or has a value that mailpipe cannot use."""


class SegmentError(UserError):
    """A segment file cannot be used: its header, its SQL, its columns or its parameters."""


class TemplateError(UserError):
    """A template folder cannot be used: a part is missing, a variable is undeclared, a tag is not understood."""


class CampaignError(UserError):
    """A campaign file is wrong, a campaign does not exist, or its state forbids the move."""


class SnapshotError(UserError):
    """A snapshot was refused; nothing of it was kept."""


class SuppressionError(UserError):
    """A suppression cannot be made or lifted as asked: a wrong scope, reason, file or line."""


class ZoneError(UserError):
    """A name that is no time zone."""


class CronError(UserError):
    """A cron expression that cannot be used: its syntax, or it never fires, or too often."""


class ScheduleError(UserError):
    """A schedule file is wrong, a schedule does not exist, or what it is told to do is refused."""


class OrdersError(UserError):
    """The query of MAILPIPE_ORDERS cannot be used, or somebody asks for orders and there is none."""


class EngagementError(UserError):
    """A day cannot be folded (yet, or out of order), or a history cannot be brought in; the text names file, line and column."""


class RestoredDatabase(UserError):
    """The database is behind what was sent with it; a person has to say what becomes of it."""


class ServiceError(MailpipeError):
    """A service that mailpipe depends on (PostgreSQL, SES) answered in a way that leaves no way on."""


class DatabaseUnavailable(ServiceError):
    """PostgreSQL cannot be reached or cannot be started."""


class UnsafeDatabase(ServiceError):
    """The server does not make commits durable, so a call could be made twice after its crash."""
