"""Reading a YAML file of fields. What the fields mean is told by who reads it: campaign files, schedule files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from mailpipe.errors import UserError


def read(path: Path, error: type[UserError], *, example: str) -> dict[str, Any]:
    """The fields of a file; `example` names some that it should have.

    Raises:
        error: the file cannot be read, is no YAML (the text names the line), or has no fields.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as failure:
        raise error(f"{path}: cannot be read: {failure.strerror}") from failure
    except UnicodeDecodeError as failure:
        raise error(f"{path}: cannot be read: it is no UTF-8 text") from failure
    except yaml.YAMLError as failure:
        mark = getattr(failure, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise error(f"{path}{line}: not valid YAML: {getattr(failure, 'problem', failure)}") from failure
    if not isinstance(content, dict):
        raise error(f"{path}: expected fields such as {example}")
    return content
