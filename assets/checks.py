"""Asset checks made from the library's invariants: one check per campaign, red when somebody breaks the rule.

They show, they do not gate: whether a campaign may send is asked of the ledger inside the send.
"""

from collections.abc import Callable

import dagster as dg

from assets.failure import explained
from assets.partitions import CAMPAIGNS
from assets.resources import DatabaseResource
from mailpipe.db import Connection

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
