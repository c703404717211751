"""What every reply of an SMTP server, at each step, means for a person and for the campaign."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailpipe.adapters.smtp_reply import Step, is_good, of_loss, of_reply
from mailpipe.ses.answer import Kind

MAIL_STEPS = [Step.RECIPIENT, Step.DATA, Step.END]


@pytest.mark.parametrize("step", Step)
@pytest.mark.parametrize(
    ("code", "text"),
    [(421, "closing"), (454, "4.7.0 Throttling failure: Maximum sending rate exceeded."), (450, "4.7.28 unusual")],
)
def test_what_is_not_the_mails_fault_counts_for_nobody(step: Step, code: int, text: str) -> None:
    verdict = of_reply(step, code, text.encode())
    assert verdict.result.kind is Kind.AGAIN
    assert verdict.halt is None
    assert verdict.closed or code != 421


@pytest.mark.parametrize("step", [Step.SENDER, *MAIL_STEPS])
def test_other_refusals_for_now_are_tried_again_and_counted(step: Step) -> None:
    verdict = of_reply(step, 451, b"4.3.0 greylisted, come back")
    assert (verdict.result.kind, verdict.result.reason) == (Kind.RETRY, "deferred")
    assert (verdict.halt, verdict.closed) == (None, False)


@pytest.mark.parametrize("step", MAIL_STEPS)
def test_refusals_for_good_fail_this_mail_alone(step: Step) -> None:
    verdict = of_reply(step, 550, b"5.1.1 <anna@mail.example.com> unknown")
    assert verdict.result.kind is Kind.FAILED
    assert (verdict.halt, verdict.closed) == (None, False)
    assert verdict.result.detail == "550 5.1.1 <<address>> unknown"


@pytest.mark.parametrize("step", [Step.CONNECT, Step.LOGIN, Step.SENDER])
def test_what_concerns_everybody_halts_and_fails_nobody(step: Step) -> None:
    verdict = of_reply(step, 550, b"no")
    assert verdict.result.kind is Kind.AGAIN
    assert verdict.halt is not None
    assert "550 no" in verdict.halt


@pytest.mark.parametrize("code", [502, 503, 530, 534, 535, 538])
@pytest.mark.parametrize("step", Step)
def test_a_conversation_that_cannot_work_halts(step: Step, code: int) -> None:
    verdict = of_reply(step, code, b"no")
    assert (verdict.result.kind, verdict.halt is not None) == (Kind.AGAIN, True)


@pytest.mark.parametrize("step", [Step.SENDER, Step.DATA, Step.END])
def test_a_mail_that_is_too_large_fails_alone(step: Step) -> None:
    verdict = of_reply(step, 552, b"too big")
    assert (verdict.result.kind, verdict.result.reason, verdict.halt) == (Kind.FAILED, "too_large", None)


@given(st.sampled_from(list(Step)), st.integers(-1, 999), st.binary(max_size=600))
def test_only_the_reply_to_the_last_dot_leaves_doubt_and_only_without_a_clear_code(
    step: Step, code: int, text: bytes
) -> None:
    if is_good(step, code):
        return
    verdict = of_reply(step, code, text)
    unclear = step is Step.END and code // 100 not in (4, 5)
    assert (verdict.result.kind is Kind.UNKNOWN) == unclear
    assert verdict.result.kind is not Kind.SENT
    assert verdict.result.kind is not Kind.FAILED or code // 100 == 5
    assert len(verdict.result.detail or "") <= 300


@pytest.mark.parametrize("step", Step)
@pytest.mark.parametrize("error", [ConnectionResetError(), TimeoutError(), OSError("x@mail.example.com")])
def test_a_loss_leaves_doubt_only_after_the_last_dot(step: Step, error: OSError) -> None:
    verdict = of_loss(step, error)
    assert verdict.result.kind is (Kind.UNKNOWN if step is Step.END else Kind.AGAIN)
    assert verdict.closed
    assert "@" not in repr(verdict)


def test_a_silent_server_and_a_lost_one_are_told_apart() -> None:
    assert of_loss(Step.END, TimeoutError()).result.reason == "read_timeout"
    assert of_loss(Step.END, ConnectionResetError()).result.reason == "connection_lost"
