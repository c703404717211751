"""Whoever is left out, and whichever way the people of a segment are written: the rows are those of a small model."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mailpipe import address
from mailpipe.settings import Cap
from tests.support import World

HEADER = "-- title: For one test\n-- owner: team:growth\n-- description: Made by a test.\n"
SPELLINGS = [
    "ana@mail.example.com",
    "Ana@Mail.example.com",
    " ana@mail.example.com",
    "ben@mail.example.com",
    "BEN@mail.example.com\t",
    "x@bücher.example.com",
    "X@xn--bcher-kva.example.com",
    " x@bücher.example.com ",
    "y@bücher.example.com",
    "gone@mail.example.com",
    "GONE@mail.example.com",
    "gone@bücher.example.com",
    "no address",
    "NO ADDRESS",
    "two..dots@mail.example.com",
    "",
    "  ",
]
SUPPRESSED = {"gone@mail.example.com", "gone@xn--bcher-kva.example.com"}
NO_CONSENT = {"u3", "u17"}
# Plenty, so that nobody is left out for it; but then all are written a second time.
CAP = Cap(mails=1000, days=1)


@dataclass(frozen=True)
class Row:
    user_id: str
    email: str


def model(rows: list[Row]) -> tuple[list[tuple[int, str, str]], dict[str, int]]:
    """Who gets which number under which address, and how many are left out for which reason."""
    excluded: Counter[str] = Counter()
    left: list[tuple[str, str]] = []
    for row in rows:
        form = row.email.strip(address.TRIMMED)
        if not form.isascii():
            form = address.send_form(form)
        if form.lower() in SUPPRESSED:
            excluded["suppressed"] += 1
        elif row.user_id in NO_CONSENT:
            excluded["opted_out"] += 1
        else:
            left.append((row.user_id, form))
    people = once(left, address_of)
    # Nobody may be lost: only where somebody is still there twice, the same user is looked for first.
    if len(once(people, user_of)) < len(people):
        people = once(once(left, user_of), address_of)
    excluded["duplicate"] = len(left) - len(people)
    return [(seq, *person) for seq, person in enumerate(people, 1)], dict(+excluded)


def user_of(person: tuple[str, str]) -> str:
    return person[0]


def address_of(person: tuple[str, str]) -> str:
    return person[1].lower()


def once(people: list[tuple[str, str]], key: Callable[[tuple[str, str]], str]) -> list[tuple[str, str]]:
    """The first of those who have a key in common; without one, everybody."""
    first = {key(person): place for place, person in reversed(list(enumerate(people)))}
    return [person for place, person in enumerate(people) if not key(person) or first[key(person)] == place]


def made(seed: int) -> list[Row]:
    """A segment: mostly people of their own, in some seeds people who come twice, are suppressed or without consent."""
    dice = random.Random(seed)
    users = [f"u{number}" for number in range(dice.choice([6, 40, 4000]))]
    spellings = dice.sample(SPELLINGS, dice.choice([0, 0, 2, 5, len(SPELLINGS)]))
    rows = []
    for number in range(dice.randint(1, 40)):
        email = dice.choice(spellings) if spellings and dice.random() < 0.4 else f"p{number}@mail.example.com"
        rows.append(Row(f"own{number}" if dice.random() < 0.7 else dice.choice(users), email))
    return rows


def test_both_ways_of_writing_give_what_the_model_says(scene: World) -> None:
    consent = f"person.user_id NOT IN ({', '.join(repr(user) for user in sorted(NO_CONSENT))})"
    worlds = [changed(scene, consent=consent), changed(scene, consent=consent, frequency_cap=CAP)]
    for key in SUPPRESSED:
        scene.execute("INSERT INTO mailpipe.suppression VALUES (%(key)s, 'all', 'manual', 'test')", {"key": key})
    adopted = set()
    for seed in range(24):
        rows = made(seed)
        wanted = model(rows)
        for world in worlds:
            assert frozen(world, rows) == wanted, f"seed {seed}, cap {world.settings.frequency_cap}"
        adopted.add(len(rows) == len(wanted[0]))
    assert adopted == {True, False}


def test_a_stage_that_is_kept_is_a_table_like_the_others(scene: World) -> None:
    """Logged, of the columns of its parent, and without dead versions that keep its indexes from being used."""
    rows = [Row(f"u{number}", f"p{number}@bücher.example.com") for number in range(40, 60)]
    tables = set()
    for cap in (None, CAP):
        frozen(changed(scene, consent="true", frequency_cap=cap), rows)
    for persistence, columns, waits, kept in scene.execute(
        "SELECT c.relpersistence, (SELECT array_agg(a.attname ORDER BY a.attname) FROM pg_attribute a"
        " WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),"
        " (SELECT bool_or(x.indcheckxmin) FROM pg_index x WHERE x.indrelid = c.oid),"
        " (SELECT bool_or(a.attisdropped) FROM pg_attribute a WHERE a.attrelid = c.oid)"
        " FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'mailpipe.recipient'::regclass"
    ):
        tables.add((persistence, tuple(columns), waits, kept))
    columns = ("campaign_id", "email", "locale", "seq", "timezone", "user_id", "variables")
    assert tables == {("p", columns, False, True), ("p", columns, False, False)}


def changed(world: World, **settings: Any) -> World:
    return World(world.database, world.with_settings(**settings), world.stand_in, world.ses, world.numbers)


def frozen(world: World, rows: list[Row]) -> tuple[list[tuple[Any, ...]], dict[str, int]]:
    name = f"staged_{next(world.numbers)}"
    values = ", ".join(f"({number}, {row.user_id!r}, {row.email!r})" for number, row in enumerate(rows))
    values = values.replace("\\t", "\t")
    (world.settings.segments / f"{name}.sql").write_text(
        f"{HEADER}SELECT user_id, email FROM (VALUES {values}) AS x(place, user_id, email) ORDER BY place\n"
    )
    key = world.create(segment=name)
    taken = world.freeze(key)
    people = world.execute(
        "SELECT seq, user_id, email FROM mailpipe.recipient WHERE campaign_id = %(id)s ORDER BY seq",
        {"id": taken.campaign_id},
    )
    assert taken.recipients == len(people)
    return people, taken.excluded
