"""The plan of waves as people read it: sentences and rows, before the launch and while it goes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from mailpipe.waves.standing import Standing


def planned(kept: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each day or wave of the plan that a snapshot has kept (`timing`); empty where there is none."""
    plan = kept.get("waves")
    if plan is None:
        return []
    done = 0
    rows = []
    for stage in plan["stages"]:
        done += stage["people"]
        rows.append(
            {
                "part": stage["label"],
                "at": written(stage["at"], plan["timezone"]),
                "people": stage["people"],
                "so_far": done,
                "cap": stage["cap"],
                "others": stage["others"],
                "tiers": ", ".join(f"{name} {people:,}" for name, people in stage["tiers"].items()),
                "providers": ", ".join(f"{name} {people:,}" for name, people in stage["providers"].items()),
            }
        )
    return rows


def told(kept: Mapping[str, Any]) -> list[str]:
    """What the plan comes to, a line each."""
    rows = planned(kept)
    if not rows:
        return []
    plan, last = kept["waves"], rows[-1]
    over = written(max(one["at"] for one in kept["due"]), plan["timezone"]) if kept.get("due") else last["at"]
    what = f"done on {last['part'].replace(':', ' ')} ({over}), if every gate passes"
    if plan["ramp"] is None:
        return [f"{len(rows)} waves, each behind a gate; {what}"]
    return [f"{what}; ramp {plan['ramp']} from its day {plan['start_day']} on, days of {plan['timezone']}"]


def going(parts: Sequence[Standing], zone: str = "UTC") -> list[dict[str, Any]]:
    """A row for each part as it is planned now, and as far as it went."""
    return [
        {
            "part": one.label,
            "at": f"{one.at.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M}",
            "people": one.people,
            "sent": one.sent,
            "left": one.left,
            "gate": "waits" if one.held else one.verdict or "open",
            "why": one.reason or "",
        }
        for one in parts
    ]


def written(at: str, zone: str) -> str:
    return f"{datetime.fromisoformat(at).astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M}"
