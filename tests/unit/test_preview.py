"""How a preview masks rows and sums up counts, without a server."""

from datetime import date
from decimal import Decimal

import pandas as pd

from mailpipe import preview


def test_a_text_that_few_share_keeps_its_first_character_only() -> None:
    rows = pd.DataFrame(
        {
            "user_id": range(12),
            "email": ["info@shop.example.com"] * 12,
            "tier": ["pro"] * 10 + ["gold"] * 2,
            "nick": ["me@home.example.org"] * 12,
            "born": [date(2000, 1, 1)] + [None] * 11,
            "spent": [Decimal("1.50")] * 12,
            "active": [True] * 12,
        },
        dtype=object,
    )
    seen = preview.masked(rows)
    assert set(seen["email"]) == set(seen["nick"]) - {"m***"} | {"i***"} == {"i***"}
    assert list(seen["tier"]) == ["pro"] * 10 + ["g***"] * 2
    assert list(seen["born"])[:2] == ["2***", None]
    assert seen["spent"].iloc[0] == "1.50"
    assert seen["user_id"].iloc[11] == 11 and seen["active"].iloc[0] is True


def test_a_breakdown_keeps_the_top_and_sums_the_rest() -> None:
    counted = pd.Series({f"z{n:02}": 20 - n for n in range(15)} | {None: 100})
    table = preview.breakdown(counted)
    assert list(table["value"]) == [preview.NONE, *(f"z{n:02}" for n in range(9)), preview.OTHER]
    assert table["people"].iloc[-1] == sum(20 - n for n in range(9, 15))
    assert table["people"].sum() == counted.sum()
