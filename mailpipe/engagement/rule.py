"""The arithmetic of engagement: how fresh a mail is, how much it was exposed at each hour, what people behind a proxy count. Pure.

A mail that nobody has reacted to is at risk for 24 hours after its send, most of it in the first. A reaction ends the risk. So the
hours at which somebody *could* have reacted are known beside those at which they did, and an hour is not thought good only because
everything was sent then.
"""

from __future__ import annotations

from collections.abc import Sequence

HOURS = 24
CLICK, OPEN = 2.0, 1.0
"""What a mail adds to the hour of its first human click, or else of its first human open."""

_FALL = 1.2
_shares = [(age + 1.0) ** -_FALL for age in range(HOURS)]
DEFAULT_FRESHNESS = tuple(share / sum(_shares) for share in _shares)
"""The part of the reactions within a day that falls to each hour after the send, before there are own ones: a third in the first
hour and three quarters within six, as published studies of times to open say."""

PRIOR_REACTIONS = 1_000.0
PRIOR_MAILS = 5_000.0
"""The published curve counts like so many reactions to so many mails of our own."""
_PRIOR_OPENS, _PRIOR_CLICKS = 900.0, 100.0


def freshness(ages: Sequence[float], mails: float) -> list[float]:
    """The curve g: element a is the chance that a mail unread after a hours is reacted to in the hour that follows, scaled so that
    all 24 add up to 1. `ages[a]` counts reactions a hours after the send, `mails` all the mails they belong to."""
    told = [own + PRIOR_REACTIONS * share for own, share in zip(ages, DEFAULT_FRESHNESS, strict=True)]
    unread = mails + PRIOR_MAILS
    hazards = []
    for one in told:
        hazards.append(one / max(unread, one, 1.0))
        unread -= one
    return [hazard / sum(hazards) for hazard in hazards]


def exposure(curve: Sequence[float], send_hour: int, last_age: int) -> list[float]:
    """How much a mail sent at `send_hour` was at risk at each of the 24 hours of the day, when its risk ended in hour `last_age`
    after the send (23: it was never read)."""
    made = [0.0] * HOURS
    for age in range(last_age + 1):
        made[(send_hour + age) % HOURS] += curve[age]
    return made


def exposures(curve: Sequence[float]) -> list[tuple[int, list[float]]]:
    """All 576 of them, by `place`: send_hour * 24 + last_age."""
    return [(hour * HOURS + age, exposure(curve, hour, age)) for hour in range(HOURS) for age in range(HOURS)]


def thinning(opens: float, clicks: float) -> float:
    """What the exposure of somebody behind Apple's proxy counts: their opens are invisible, so it is the part of everybody else's
    weight that clicks bring. `opens` are mails that were opened and not clicked."""
    clicked, opened = CLICK * (clicks + _PRIOR_CLICKS), OPEN * (opens + _PRIOR_OPENS)
    return clicked / (clicked + opened)
