"""Time: zones and due instants, cron, recurring schedules. When something is due is decided here and nowhere else; what is then
sent, and to whom, belongs to `campaign`, `snapshot` and `ledger`.
"""
