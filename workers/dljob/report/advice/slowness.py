"""What slowed a job down, or filled its memory, as PrimeMaster told it while it lasted. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dljob.master.state.problems import SLOWNESS
from dljob.report.advice.values import number
from dljob.telemetry import reasons
from dljob.telemetry.wording import moment, seconds

MOST = 8
"""Most problems that are listed: those that lasted longest."""


def lines(events: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return a line for each problem of a job's events, in their order: since when, for how long, what."""
    slow_times: list[tuple[float, float, str]] = []
    end = max((number(event.get("time")) for event in events), default=0.0)
    for place, event in enumerate(events):
        reason, target, begin = event.get("reason"), event.get("target"), number(event.get("time"))
        if reason not in {*SLOWNESS, reasons.STRAGGLER_FOUND}:
            continue
        problem = reasons.STRAGGLER if reason == reasons.STRAGGLER_FOUND else reason
        over = f"{problem} is over"
        until = next(
            (
                number(later.get("time"))
                for later in events[place + 1 :]
                if later.get("target") == target and str(later.get("message")).startswith(over)
            ),
            end,
        )
        lasted = max(0.0, until - begin)
        slow_times.append((begin, lasted, f"{moment(begin)}, for {seconds(lasted)}: {problem}: {event.get('message')}"))
    longest = sorted(slow_times, key=lambda row: -row[1])[:MOST]
    return tuple(line for _, _, line in sorted(longest))
