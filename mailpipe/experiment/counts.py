"""What came back of the arms of an experiment, as of an instant: the numbers that decide it. Reads only.

A click counts when it is a person's and has settled (`feedback.machine`): not in the last 60 seconds, and not by a scanner. Where
variants differ in their hour, only what comes within `decide_after` of a person's own mail counts, so that the early ones have no
head start.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from psycopg.rows import class_row

from mailpipe import campaign, orders
from mailpipe.campaign import Campaign
from mailpipe.db import Connection, queries
from mailpipe.errors import OrdersError
from mailpipe.experiment.rule import RATIO_ALARM, Arm, sample_ratio
from mailpipe.experiment.spec import Experiment
from mailpipe.feedback import machine
from mailpipe.feedback.machine import Visit
from mailpipe.settings import Settings

QUERIES = queries.beside(__file__)


def arms(connection: Connection, settings: Settings, found: Campaign, *, at: datetime) -> list[Arm]:
    """The arms of an experiment in the order of its file, the control first. Where no delivery was told of anybody, those count as
    delivered whose mail was taken.

    Raises:
        OrdersError: it goes by orders, and there is no query of orders, or it cannot be used.
    """
    experiment = found.spec.experiment
    assert experiment is not None
    successes = _successes(connection, settings, found, experiment, at)
    given = {"campaign_id": found.campaign_id, "at": at}
    complaints = {name: int(people) for name, people in connection.execute(QUERIES["complaints"], given)}
    return [
        replace(
            arm, successes=min(successes.get(arm.variant, 0), arm.delivered), complaints=complaints.get(arm.variant, 0)
        )
        for arm in reached(connection, found)
    ]


def reached(connection: Connection, found: Campaign) -> list[Arm]:
    """The arms with the numbers of their people and of those who got the mail, and nothing else."""
    assert found.spec.experiment is not None
    rows = connection.execute(QUERIES["arms"], {"campaign_id": found.campaign_id}).fetchall()
    sizes = {variant: (int(assigned), int(sent), int(delivered)) for variant, assigned, sent, delivered in rows}
    told = any(delivered for _, _, delivered in sizes.values())
    made = []
    for name in found.spec.experiment.names:
        assigned, sent, delivered = sizes.get(name, (0, 0, 0))
        made.append(Arm(name, assigned, delivered if told else sent, 0))
    return made


def _successes(
    connection: Connection, settings: Settings, found: Campaign, experiment: Experiment, at: datetime
) -> dict[str, int]:
    within = experiment.decide_after if experiment.by_hour else None
    if experiment.metric == "clicks":
        return {name: _clickers(connection, found.campaign_id, name, at, within) for name in experiment.names}
    relation = orders.relation(connection, settings)
    if relation is None:
        raise OrdersError(
            "MAILPIPE_ORDERS: not set, but the experiment goes by orders. Give a query with user_id and ordered_at"
        )
    given = {"campaign_id": found.campaign_id, "key": found.key, "at": at, "within": within}
    return {name: int(people) for name, people in connection.execute(QUERIES.filled("buyers", orders=relation), given)}


def _clickers(connection: Connection, campaign_id: int, variant: str, at: datetime, within: int | None) -> int:
    """People of an arm who clicked."""
    with connection.transaction(), connection.cursor("arm_visits", row_factory=class_row(Visit)) as cursor:
        cursor.itersize = 10_000
        found = cursor.execute(QUERIES["visits"], {"campaign_id": campaign_id, "variant": variant, "at": at})
        return machine.count((visit for visit in found if _is_early(visit, within)), now=at).clickers


def _is_early(visit: Visit, within: int | None) -> bool:
    if within is None or visit.delivered_at is None:
        return True
    return visit.at - visit.delivered_at <= timedelta(seconds=within)


def unequal(connection: Connection, key: str) -> int:
    """People of an experiment whose arms reached parts of theirs that differ too much for chance; 0: it can be compared, or there
    is none."""
    found = campaign.get(connection, key)
    if found.spec.experiment is None:
        return 0
    found_arms = reached(connection, found)
    return sum(arm.assigned for arm in found_arms) if found_arms and sample_ratio(found_arms) < RATIO_ALARM else 0
