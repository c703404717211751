"""By how much the ways of two calls to SES may differ; who is beyond their share asks again soon, not at once."""

from pathlib import Path

from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    # Straight to the driver: many statements at once, and percent signs that are no placeholders.
    driver = op.get_bind().connection.driver_connection
    assert driver is not None
    driver.execute(Path(__file__).with_suffix(".sql").read_text(encoding="utf-8"))
