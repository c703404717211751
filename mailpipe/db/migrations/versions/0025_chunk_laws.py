"""The laws of a chunk in one function."""

from pathlib import Path

from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    # Straight to the driver: many statements at once, and percent signs that are no placeholders.
    driver = op.get_bind().connection.driver_connection
    assert driver is not None
    driver.execute(Path(__file__).with_suffix(".sql").read_text(encoding="utf-8"))
