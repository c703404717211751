"""Asset checks made from the library's invariants: one check per campaign, red when somebody breaks the rule.

They show, they do not gate: whether a campaign may send is asked of the ledger inside the send.
"""

from collections.abc import Callable

import dagster as dg

from assets.failure import explained
from assets.partitions import CAMPAIGNS
from assets.resources import DatabaseResource
from mailpipe import breaker, campaign
from mailpipe.breaker import Finding
from mailpipe.db import Connection

_QUIET = ("ok", "too_few")
Rule = Callable[[Connection, str], int]


def build(
    asset: str,
    name: str,
    rule: Rule,
    description: str,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
) -> dg.AssetChecksDefinition:
    """A check on a campaign's asset that passes when `rule` counts nobody."""

    def check(context: dg.AssetCheckExecutionContext, database: DatabaseResource) -> dg.AssetCheckResult:
        with explained(), database.connection() as connection:
            people = rule(connection, context.op_execution_context.partition_key)
        return dg.AssetCheckResult(passed=people == 0, severity=severity, metadata={"people": people})

    # Partitioned: else a check has one state for all campaigns, the last one's.
    decorate = dg.asset_check(asset=asset, name=name, description=description, partitions_def=CAMPAIGNS)
    return decorate(check)


def build_rate(asset: str, name: str, rate: str, description: str) -> dg.AssetChecksDefinition:
    """A check of one of the breaker's rates: a warning from half of its line on, an error beyond it. Dagster plots its numbers."""

    def check(context: dg.AssetCheckExecutionContext, database: DatabaseResource) -> dg.AssetCheckResult:
        with explained(), database.connection() as connection:
            found = campaign.get(connection, context.op_execution_context.partition_key)
            one = next(one for one in breaker.rates(connection, found) if one.name == rate)
        return of_finding(one)

    decorate = dg.asset_check(asset=asset, name=name, description=description, partitions_def=CAMPAIGNS)
    return decorate(check)


def of_finding(one: Finding) -> dg.AssetCheckResult:
    """The result of a check of this rate."""
    return dg.AssetCheckResult(
        passed=one.level in _QUIET,
        severity=dg.AssetCheckSeverity.ERROR if one.level == "pause" else dg.AssetCheckSeverity.WARN,
        description=one.text + (f", and counts from {one.after:,} on" if one.level == "too_few" else ""),
        metadata={"rate": one.rate, "line": one.line, "people": one.people, "sample": one.sample, "level": one.level},
    )
