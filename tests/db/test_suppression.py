"""Suppressed addresses and opt-outs: one normal form at every entry, scopes, the strongest reason, and a trace of removals."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailpipe import address, suppression
from mailpipe.db import Database
from mailpipe.errors import SuppressionError
from mailpipe.suppression import Entry

LOCAL = st.text("abIİK.+_-09zZ", min_size=1, max_size=12)


def entry(text: str, reason: suppression.Reason = "manual", scope: str = "all", **more: Any) -> Entry:
    return Entry(text, scope, reason, "test", **more)


@given(
    LOCAL, st.sampled_from(["Mail.Example.COM", "mail.example.com", "bücher.example.com", "XN--BCHER-KVA.example.com"])
)
def test_a_key_is_the_same_however_its_address_was_spelt(local: str, domain: str) -> None:
    try:
        sent = address.send_form(f" {local}@{domain}\t")
    except address.AddressError:
        return
    key = suppression.key(sent)
    assert key == suppression.key(f"{local.upper()}@{domain}") == suppression.key(key) == key.lower()


def test_the_database_makes_the_same_key_whatever_its_collation(database: Database) -> None:
    spellings = ["INFO@Mail.Example.com", "a+B@mail.example.com", "ready@XN--BCHER-KVA.example.com"]
    with database.connection() as connection:
        # Not every server has the Turkish ones.
        collations = connection.execute(
            "SELECT collname FROM pg_collation WHERE collencoding IN (-1, 6)"
            " AND collname IN ('default', 'C', 'tr-x-icu', 'tr_TR.utf8')"
        ).fetchall()
        assert len(collations) >= 2
        for text in spellings:
            for (collation,) in collations:
                query = f'SELECT mailpipe.email_key(%s COLLATE "{collation}")'
                assert connection.execute(query.encode(), (text,)).fetchone() == (suppression.key(text),)


def test_a_look_up_by_key_uses_the_index(database: Database) -> None:
    with database.connection() as connection:
        connection.execute(
            "INSERT INTO mailpipe.suppression SELECT 'p' || i || '@mail.example.com', 'all', 'manual', 'test'"
            " FROM generate_series(1, 5000) i; ANALYZE mailpipe.suppression"
        )
        plan = connection.execute(
            "EXPLAIN SELECT (SELECT true FROM mailpipe.suppression s WHERE s.email_key = mailpipe.email_key(r.email)"
            " AND s.scope = ANY(%s) LIMIT 1), (SELECT true FROM mailpipe.opt_out o WHERE o.person_id = r.user_id"
            " AND o.topic = ANY(%s) LIMIT 1) FROM mailpipe.recipient r",
            (suppression.scopes("news"), suppression.topics("news")),
        ).fetchall()
    text = "\n".join(row[0] for row in plan)
    assert "suppression_pkey" in text, text
    assert "Seq Scan on suppression" not in text, text


def test_an_address_is_suppressed_in_every_spelling(database: Database) -> None:
    with database.connection() as connection:
        assert suppression.suppress(connection, [entry("  Reader@Example.COM ")]) == 1
        assert [one.email_key for one in suppression.find(connection, "reader@example.com")] == ["reader@example.com"]
        assert suppression.suppress(connection, [entry("READER@example.com")]) == 0


def test_the_strongest_reason_stays_in_whatever_order_they_come(database: Database) -> None:
    at = datetime(2026, 3, 2, 9, tzinfo=UTC)
    with database.connection() as connection:
        for text, reasons in (("a@example.com", ("manual", "complaint")), ("b@example.com", ("complaint", "manual"))):
            for reason in reasons:
                suppression.suppress(connection, [entry(text, reason, at=at)])  # type: ignore[arg-type]
        both = [entry("c@example.com", "soft_bounces"), entry("C@example.com", "hard_bounce", at=at)]
        assert suppression.suppress(connection, both) == 1
        found = [suppression.find(connection, f"{name}@example.com")[0] for name in "abc"]
    assert [(one.reason, one.at) for one in found] == [("complaint", at), ("complaint", at), ("hard_bounce", at)]


def test_scopes_stand_beside_each_other(database: Database) -> None:
    with database.connection() as connection:
        for scope in ("all", "marketing", "topic:news"):
            suppression.suppress(connection, [entry("a@example.com", scope=scope)])
        assert [one.scope for one in suppression.find(connection, "a@example.com")] == [
            "all",
            "marketing",
            "topic:news",
        ]
        with pytest.raises(SuppressionError, match="scope 'letters'"):
            suppression.suppress(connection, [entry("b@example.com"), entry("b@example.com", scope="letters")])
        with pytest.raises(address.AddressError):
            suppression.suppress(connection, [entry("b@example.com"), entry("nobody")])
        assert suppression.find(connection, "b@example.com") == []


def test_lifting_needs_a_reason_and_leaves_a_trace(database: Database) -> None:
    with database.connection() as connection:
        for scope in ("all", "topic:news"):
            suppression.suppress(connection, [entry("a@example.com", scope=scope)])
        with pytest.raises(SuppressionError, match="say why"):
            suppression.lift(connection, "a@example.com", None, actor="ana", reason=" ")
        lifted = suppression.lift(connection, "A@example.com", "all", actor="ana", reason="asked for it")
        assert [one.scope for one in lifted] == ["all"]
        assert [one.scope for one in suppression.find(connection, "a@example.com")] == ["topic:news"]
        assert suppression.lift(connection, "a@example.com", None, actor="ana", reason="asked")[0].scope == "topic:news"
        assert suppression.lift(connection, "a@example.com", None, actor="ana", reason="asked") == []
        kept = connection.execute(
            "SELECT email_key, scope, actor, why FROM mailpipe.suppression_removed ORDER BY removal_id"
        ).fetchall()
    assert kept == [
        ("a@example.com", "all", "ana", "asked for it"),
        ("a@example.com", "topic:news", "ana", "asked"),
    ]


def test_a_person_opts_out_of_a_topic_and_back_in(database: Database) -> None:
    with database.connection() as connection:
        assert suppression.unsubscribe(connection, "42", "news")
        assert not suppression.unsubscribe(connection, "42", "news")
        assert suppression.unsubscribe(connection, "42", "marketing", source="page")
        assert suppression.opt_outs(connection, "43") == []
        found = suppression.opt_outs(connection, "42")
        assert [(one.topic, one.source) for one in found] == [("marketing", "page"), ("news", "link")]
        assert suppression.resubscribe(connection, "42", "news")
        assert not suppression.resubscribe(connection, "42", "news")
        assert [one.topic for one in suppression.opt_outs(connection, "42")] == ["marketing"]
