"""Named queries: parameters become psycopg's, and nothing else is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from mailpipe.db.queries import Queries, beside, to_psycopg


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("SELECT :name", b"SELECT %(name)s"),
        ("SELECT :a_1 + :b", b"SELECT %(a_1)s + %(b)s"),
        ("SELECT x::text", b"SELECT x::text"),
        ("SELECT '2020-01-01 10:30:00'", b"SELECT '2020-01-01 10:30:00'"),
        ("SELECT CAST(:a AS text)::bytea", b"SELECT CAST(%(a)s AS text)::bytea"),
        ("SELECT 10 % 3 WHERE a LIKE 'x%'", b"SELECT 10 %% 3 WHERE a LIKE 'x%%'"),
        ("SELECT a[1:2], :ab", b"SELECT a[1:2], %(ab)s"),
        ("SELECT :name = :name", b"SELECT %(name)s = %(name)s"),
        ("SELECT make_interval(secs => :seconds)", b"SELECT make_interval(secs => %(seconds)s)"),
    ],
)
def test_parameters_become_psycopg_s(given: str, wanted: bytes) -> None:
    assert to_psycopg(given) == wanted


def test_a_file_is_read_by_name(tmp_path: Path) -> None:
    (tmp_path / "thing.sql").write_text(
        "-- what this file is for\n\n-- name: one\nSELECT 1;\n\n-- name: two\n-- why\nSELECT :x, -- and why\n  'a--b';\n"
    )
    queries = Queries(tmp_path / "thing.sql")
    assert queries.texts == {"one": "SELECT 1;", "two": "SELECT :x,\n'a--b';"}
    assert queries["two"] == b"SELECT %(x)s,\n'a--b';"
    assert beside(str(tmp_path / "thing.py")).texts == queries.texts


def test_a_part_stands_in_the_queries_that_name_it(tmp_path: Path) -> None:
    (tmp_path / "thing.sql").write_text(
        "-- part: shared\nx = :x\n-- name: one\nSELECT {{shared}}\n-- name: two\nDELETE {{shared}}\n"
    )
    assert Queries(tmp_path / "thing.sql").texts == {"one": "SELECT x = :x", "two": "DELETE x = :x"}


def test_fragments_of_our_own_settings_are_filled_in(tmp_path: Path) -> None:
    (tmp_path / "thing.sql").write_text("-- name: one\nSELECT {{what}} FROM t WHERE x LIKE 'a%' AND y = :y\n")
    filled = Queries(tmp_path / "thing.sql").filled("one", what="z % 2")
    assert filled == b"SELECT z %% 2 FROM t WHERE x LIKE 'a%%' AND y = %(y)s"


def test_a_query_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "thing.sql").write_text("-- name: one\nSELECT 1\n")
    with pytest.raises(KeyError):
        Queries(tmp_path / "thing.sql")["other"]
