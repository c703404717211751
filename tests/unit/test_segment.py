"""Reading segment files: the header, the one SELECT, and what becomes of its parameters. No server."""

from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path

import pytest

from mailpipe import segment
from mailpipe.errors import SegmentError

HEADER = "-- title: A title\n-- owner: team:growth\n-- description: A description\n"
AS_OF = datetime(2026, 3, 29, 8, 30, tzinfo=UTC)


def write(folder: Path, text: str, name: str = "people.sql") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def with_body(folder: Path, body: str, *, params: str = "") -> segment.Segment:
    return segment.load(write(folder, f"{HEADER}{params}\n{body}"))


def refusal(path: Path) -> str:
    with pytest.raises(SegmentError) as caught:
        segment.load(path)
    return str(caught.value)


def test_a_header_is_read_whole(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "-- title: People: who came back\n"
        "-- owner: team:growth\n"
        "--\n"
        "-- description: First line,\n"
        "--   second line.\n"
        "-- param days int = 30: how far back\n"
        "--   a login counts\n"
        "-- param share float = 0.5\n"
        "-- param tier text = 'pro: it''s': a text with a colon\n"
        "-- param country text = null: all countries\n"
        "-- param since date = 2026-01-31\n"
        "-- param all_of_them bool = false: or not\n"
        "\n"
        "-- a comment of the analyst's own: not a key\n"
        "SELECT user_id, email FROM users -- :days in a comment is none\n"
        "WHERE ARRAY[:days, :share, :tier, :country, :since, :all_of_them] IS NOT NULL;\n\n",
    )
    found = segment.load(path)
    assert (found.name, found.title, found.owner) == ("people", "People: who came back", "team:growth")
    assert found.description == "First line, second line."
    assert [(p.name, p.type, p.default) for p in found.parameters] == [
        ("days", "int", 30),
        ("share", "float", 0.5),
        ("tier", "text", "pro: it's"),
        ("country", "text", None),
        ("since", "date", date(2026, 1, 31)),
        ("all_of_them", "bool", False),
    ]
    assert found.parameters[0].description == "how far back a login counts"
    assert found.body_line == 14
    assert found.sql.startswith("-- a comment of the analyst's own") and found.sql.endswith("IS NOT NULL")
    assert len(found.sha256) == 64


def test_a_bom_and_windows_line_ends_change_nothing(tmp_path: Path) -> None:
    plain = with_body(tmp_path, "SELECT user_id,\n email FROM users")
    path = tmp_path / "windows.sql"
    path.write_bytes(b"\xef\xbb\xbf" + f"{HEADER}\nSELECT user_id,\n email FROM users".replace("\n", "\r\n").encode())
    windows = segment.load(path)
    assert (windows.sql, windows.title, windows.body_line) == (plain.sql, plain.title, plain.body_line)


@pytest.mark.parametrize(
    ("header", "line", "words"),
    [
        ("-- title: x\n-- owner: team:growth\n", 2, "no description"),
        ("-- title:\n-- owner: team:growth\n-- description: d\n", 3, "no title"),
        ("", 1, "no title"),
        (f"{HEADER}-- titel: x\n", 4, "unknown key 'titel'"),
        (f"{HEADER}-- title: again\n", 4, "title is given twice"),
        ("-- title: x\n-- owner: growth\n-- description: d\n", 2, "`team:growth`"),
        (f"{HEADER}-- just words\n", 4, "not understood"),
        (f"{HEADER}-- param days int: how far\n", 4, "`-- param days int = 30"),
        (f"{HEADER}-- param days = 3: how far\n", 4, "`-- param days int = 30"),
        (f"{HEADER}-- param Days int = 3: how far\n", 4, "`-- param days int = 30"),
        (f"{HEADER}-- param days integer = 3: how far\n", 4, "unknown type 'integer'. Use one of int, float"),
        (
            f"{HEADER}-- param days int = soon: how far\n",
            4,
            "parameter days: the default is not a whole number",
        ),
        (f"{HEADER}-- param days int = 3000000000: how far\n", 4, "at most 32 bits"),
        (f"{HEADER}-- param since date = 2026-02-30: from\n", 4, "is not a date like 2026-03-29"),
        (f"{HEADER}-- param since date = 20.02.2026: from\n", 4, "is not a date like 2026-03-29"),
        (f"{HEADER}-- param on bool = 1: switch\n", 4, "true or false"),
        (f"{HEADER}-- param share float = inf: part\n", 4, "a finite number"),
        (f"{HEADER}-- param as_of date = 2026-01-01: x\n", 4, "as_of exists already"),
        (f"{HEADER}-- param a int = 1\n-- param a int = 2\n", 5, "a exists already"),
    ],
)
def test_a_wrong_header_is_refused_with_its_line(tmp_path: Path, header: str, line: int, words: str) -> None:
    path = write(tmp_path, f"{header}\nSELECT user_id, email FROM users")
    text = refusal(path)
    assert text.startswith(f"{path}:{line}: ")
    assert words in text


@pytest.mark.parametrize(
    ("body", "line", "words"),
    [
        ("", 5, "no SELECT"),
        ("-- nothing\n/* here */", 5, "no SELECT"),
        ("DELETE FROM users", 5, "one SELECT"),
        ("\n\nVALUES (1, 'a')", 7, "one SELECT"),
        ("EXPLAIN ANALYZE SELECT 1", 5, "one SELECT"),
        ("SELECT 1;\nDROP TABLE users", 6, "follows the final semicolon"),
        ("SELECT 1;;", 5, "follows the final semicolon"),
        ("SELECT 1\n) x; DROP TABLE users; SELECT * FROM (SELECT 1", 6, "closes nothing"),
        ("SELECT (1,\n(2)", 5, "not closed"),
        ("SELECT 'abc\nFROM users", 5, "quotation that starts here does not end"),
        ('SELECT 1 AS\n"abc FROM users', 6, "quotation that starts here does not end"),
        ("SELECT 1\n/* /* nested */ FROM users", 6, "comment does not end"),
        ("SELECT 1\nWHERE a = :city", 6, ":city is not declared. Add `-- param city"),
        ("SELECT\n$1", 6, "$1 is no parameter here"),
        ("SELECT ':days'", 5, "days is declared and not used"),
    ],
)
def test_a_body_that_is_not_one_select_is_refused_with_its_line(
    tmp_path: Path, body: str, line: int, words: str
) -> None:
    params = "-- param days int = 30: days\n" if ":days" in body else ""
    path = write(tmp_path, f"{HEADER}{params}\n{body}")
    text = refusal(path)
    assert text.startswith(f"{path}:{line + bool(params)}: ")
    assert words in text


@pytest.mark.parametrize("name", ["Two.sql", "2nd.sql", "two words.sql", "a-b.sql", "é.sql"])
def test_a_file_name_that_is_no_asset_name_is_refused(tmp_path: Path, name: str) -> None:
    assert "file name" in refusal(write(tmp_path, f"{HEADER}\nSELECT 1", name))


def test_a_file_in_another_encoding_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.sql"
    path.write_bytes(f"{HEADER}\nSELECT 'Zürich'".encode("latin-1"))
    assert refusal(path).startswith(f"{path}:5: not UTF-8")


def test_a_missing_file_is_a_segment_error(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(tmp_path / "absent.sql")


def test_a_broken_file_does_not_break_the_others(tmp_path: Path) -> None:
    write(tmp_path, f"{HEADER}\nSELECT 1", "b.sql")
    write(tmp_path, "SELECT 1", "a.sql")
    write(tmp_path, f"{HEADER}\nSELECT 2", "c.sql")
    write(tmp_path, "not a segment", "README.md")
    found, problems = segment.load_all(tmp_path)
    assert [one.name for one in found] == ["b", "c"]
    assert [str(problem).split(":")[0] for problem in problems] == [str(tmp_path / "a.sql")]


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    write(tmp_path, f"{HEADER}\nSELECT 1", "b.sql")
    write(tmp_path, "broken", "a.sql")
    with pytest.raises(SegmentError, match="There are: a, b"):
        segment.find(tmp_path, "../b")
    assert segment.find(tmp_path, "b").name == "b"


def test_only_real_parameters_become_placeholders(tmp_path: Path) -> None:
    found = with_body(
        tmp_path,
        "SELECT user_id::text, email, '10% :days' AS a, E'it\\'s :days' AS b, \"x:days%\", a[1:days],\n"
        "$$ :days $$ AS d, $x$ $$ :days $x$ AS e, 'it''s :days' AS f -- :days 5%\n"
        "/* :days /* :days */ 7% */ FROM users WHERE n % 2 = :days::int AND t <= :as_of",
        params="-- param days int = 30: days\n",
    )
    assert segment.statement(found).decode() == (
        "SELECT user_id::text, email, '10%% :days' AS a, E'it\\'s :days' AS b, \"x:days%%\", a[1:days],\n"
        "$$ :days $$ AS d, $x$ $$ :days $x$ AS e, 'it''s :days' AS f -- :days 5%%\n"
        "/* :days /* :days */ 7%% */ FROM users WHERE n %% 2 = %(days)s::integer::int"
        " AND t <= %(as_of)s::timestamptz"
    )


PARAMS = (
    "-- param n int = 30\n-- param x float = 0.5\n-- param t text = pro\n-- param d date = 2026-01-31\n"
    "-- param b bool = true\n-- param maybe text = null\n"
)
ALL = "SELECT :n, :x, :t, :d, :b, :maybe"


def test_defaults_and_given_values_are_bound_with_their_types(tmp_path: Path) -> None:
    found = with_body(tmp_path, ALL, params=PARAMS)
    local = AS_OF.astimezone(timezone(timedelta(hours=7)))
    assert segment.bind(found, {}, local) == {
        "n": 30, "x": 0.5, "t": "pro", "d": date(2026, 1, 31), "b": True, "maybe": None, "as_of": AS_OF,
    }  # fmt: skip
    given = segment.bind(found, {"n": "7", "x": 2, "t": "30", "d": "2026-02-28", "b": "False", "maybe": "x"}, AS_OF)
    assert given == {
        "n": 7, "x": 2.0, "t": "30", "d": date(2026, 2, 28), "b": False, "maybe": "x", "as_of": AS_OF,
    }  # fmt: skip
    assert type(given["x"]) is float
    assert segment.bind(found, {"maybe": None}, AS_OF)["maybe"] is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", "soon"), ("n", 1.5), ("n", True), ("n", 2**31), ("n", 10**400), ("n", None), ("n", [1]),
        ("x", "nan"), ("x", False), ("t", 5), ("t", "a\0b"),
        ("d", "yesterday"), ("d", AS_OF), ("d", 20260101), ("b", 1), ("b", "yes"),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_type_is_refused_by_name(tmp_path: Path, name: str, value: object) -> None:
    found = with_body(tmp_path, ALL, params=PARAMS)
    with pytest.raises(SegmentError, match=f"parameter {name}: expected "):
        segment.bind(found, {name: value}, AS_OF)


def test_an_unknown_parameter_lists_the_known_ones(tmp_path: Path) -> None:
    found = with_body(tmp_path, ALL, params=PARAMS)
    with pytest.raises(SegmentError, match=r"no parameter 'day'. The segment has: n, x, t, d, b, maybe"):
        segment.bind(found, {"day": 1}, AS_OF)


def test_a_moment_without_zone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="time zone"):
        segment.bind(with_body(tmp_path, "SELECT 1"), {}, datetime(2026, 1, 1))


def test_the_segments_of_the_project_are_readable() -> None:
    found, problems = segment.load_all(Path(__file__).parents[2] / "assets" / "segments")
    assert problems == []
    assert {"active_opted_in", "engaged_30d", "win_back"} <= {one.name for one in found}
    assert all(segment.bind(one, {}, AS_OF)["as_of"] == AS_OF for one in found)
