"""Fixtures of the tests that have a database and no more."""

from __future__ import annotations

from typing import Any

import pytest

from tests.db.ledger_table import Table
from tests.support import World


@pytest.fixture
def make(scene: World) -> Any:
    with scene.database.connection() as connection:
        yield lambda *sizes: Table(scene, connection, sizes)
