"""The fault table of docs/reliability.md names only tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(tests/\w+/\w+\.py)::(\w+)`")


def test_every_test_that_the_fault_table_names_exists() -> None:
    named = NAMED.findall((ROOT / "docs" / "reliability.md").read_text())
    assert len(named) > 40
    missing = [f"{file}::{test}" for file, test in named if f"def {test}(" not in (ROOT / file).read_text()]
    assert not missing
