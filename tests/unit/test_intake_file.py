"""Histories as people keep them: read whatever they look like, refused by line and column, never quoting what they hold."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet
import pytest

from mailpipe.engagement import intake_file
from mailpipe.errors import EngagementError

AT = datetime(2026, 1, 5, 8, 30, tzinfo=UTC)
PLAIN = "recipient_id,event_type,opened_at\n7,open,2026-01-05T08:30:00Z\n"


def read(path: Path, content: bytes | str, name: str = "opens.csv") -> list[intake_file.Row]:
    file = path / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(intake_file.read(file))


def refused(path: Path, content: bytes | str, name: str = "opens.csv") -> str:
    with pytest.raises(EngagementError) as caught:
        read(path, content, name)
    return str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        PLAIN,
        "\ufeff" + PLAIN,
        PLAIN.encode("utf-16"),
        PLAIN.replace(",", ";").replace("\n", "\r\n"),
        PLAIN.replace(",", "\t"),
        PLAIN.replace(",", "|"),
        "Opens of January;;\n;;\n User ID ;Event-Type; Opened At \n7; Opened ;2026-01-05 08:30:00+00:00\n;;\n",
        'userId,"eventType",timestamp\n"7","email_open",1767601800\n',
        "id,Event,user_id,time\n1,sent,7,2026-01-04\n2,open,7,1767601800000\n",
        'recipient_id,event_type,opened_at,note\n7,open,2026-01-05T15:30:00+07:00,"two\nlines"\n',
        "opened_at,event_type,recipient_id\n2026-01-05 08:30:00 UTC,open,7",
    ],
)
def test_one_open_in_many_spellings(tmp_path: Path, content: bytes | str) -> None:
    (found,) = read(tmp_path, content)
    assert (found.recipient_id, found.kind, found.at) == ("7", "open", AT)


def test_times_without_an_offset_are_those_of_the_zone_that_was_said(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("recipient_id,event_type,opened_at\n7,click,2026-01-05 15:30\n")
    (found,) = intake_file.read(tmp_path / "a.csv", ZoneInfo("Asia/Ho_Chi_Minh"))
    assert (found.kind, found.at) == ("click", AT)


def test_parquet_is_read_with_its_own_types(tmp_path: Path) -> None:
    table = pa.table({"recipient_id": [7, 8], "event_type": ["open", "click"], "opened_at": [AT, AT],
                      "sent_at": [AT, None], "tz": ["Asia/Tokyo", None]})  # fmt: skip
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    found = list(intake_file.read(tmp_path / "a.parquet"))
    assert [(one.recipient_id, one.kind, one.at, one.sent_at, one.timezone) for one in found] == [
        ("7", "open", AT, AT, "Asia/Tokyo"),
        ("8", "click", AT, None, None),
    ]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("7,opn,2026-01-05", "line 3, column event_type: neither an open nor a click"),
        ("7,open,soon", "line 3, column opened_at: is no time"),
        ("7,open,", "line 3, column opened_at: is empty"),
        ("7,open,1969-01-01", "line 3, column opened_at: is no time of this century"),
        (",open,2026-01-05", "line 3, column recipient_id: is empty"),
        ("ana@shop.example.com,open,2026-01-05", "line 3, column recipient_id: is an address"),
        ("7,open", "line 3, column opened_at: is empty"),
    ],
)
def test_what_is_wrong_is_told_by_line_and_column(tmp_path: Path, line: str, told: str) -> None:
    text = refused(tmp_path, PLAIN + line + "\n")
    assert f"opens.csv: {told}" in text and "Nothing was brought in" in text
    assert "ana@" not in text


def test_a_mail_is_not_read_before_it_is_sent(tmp_path: Path) -> None:
    text = refused(tmp_path, "recipient_id,event_type,opened_at,sent_at\n7,open,2026-01-05,2026-01-06\n")
    assert "line 2, column sent_at: is after opened_at" in text


def test_many_wrong_lines_are_counted_and_some_are_named(tmp_path: Path) -> None:
    text = refused(tmp_path, PLAIN + "7,open,x\n" * 25)
    assert text.count("column opened_at") == intake_file.MOST_ERRORS and "and 15 more" in text


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("recipient_id,at\n7,2026-01-05\n", "opens.csv: line 1: has no column event_type. It has: recipient_id, at"),
        ("a;b\n1;2\n", "has no column recipient_id and no event_type and no opened_at. There is no header"),
        ("7,Ana,Smith\n", "has no column recipient_id"),
        ("", "has no column recipient_id"),
        (PLAIN.encode() + b"\xff\xfe\xfa,open,2026-01-05\n", "is not written in UTF-8"),
    ],
)
def test_a_file_that_is_no_history_is_refused_as_a_whole(tmp_path: Path, content: bytes | str, told: str) -> None:
    text = refused(tmp_path, content)
    assert told in text and "Smith" not in text


def test_a_file_that_is_no_parquet_or_not_there_is_told_so(tmp_path: Path) -> None:
    assert "is no Parquet file" in refused(tmp_path, "recipient_id", "a.parquet")
    with pytest.raises(EngagementError, match=r"missing.csv: cannot be read: No such file"):
        intake_file.digest(tmp_path / "missing.csv")
