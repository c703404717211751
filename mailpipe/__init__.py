"""mailpipe sends a campaign to a million people and can say for each of them what happened.

The library knows no Dagster. Reading order: `settings`, `db`, `address`, `segment`, `template`, `campaign`, `snapshot`,
`ledger`, `pace`, `ses`, `message`, `send`, `event`, `reconcile`, `report`; then `cli` on top, and beside them `simulator`
(the SES stand-in, a separate process) and `demo`.
"""
