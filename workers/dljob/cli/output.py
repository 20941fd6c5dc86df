"""Where the command writes: data on stdout, everything else on stderr. Nothing else in dljob prints."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, cast

from dljob.errors import DLJobError

if TYPE_CHECKING:
    from pydantic import JsonValue

DataFormat = Literal["json", "yaml"]
TableFormat = Literal["table", "json", "yaml"]

_RED, _DIM, _END = "\033[31m", "\033[2m", "\033[0m"


def data(text: str) -> None:
    """Text that was asked for, on stdout; a newline is added when there is none."""
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """A line for people, on stderr."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def structured(value: Mapping[str, Any] | Sequence[Any], form: DataFormat, *, indent: int | None = 2) -> None:
    """Data as JSON or YAML on stdout, never wrapped or coloured."""
    if form == "json":
        data(json.dumps(_strict(value), indent=indent, ensure_ascii=False, allow_nan=False))
        return
    from dljob.spec.emit import to_yaml

    data(to_yaml(cast("JsonValue", value)))


def _strict(value: object) -> object:
    """JSON has no NaN and no infinity, which a loss can be: their names, as protobuf's JSON has them."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _strict(inner) for key, inner in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_strict(inner) for inner in cast("Sequence[Any]", value)]
    return value


def table(rows: Sequence[Sequence[str]]) -> None:
    """Rows in columns on stdout; the first row is the heading."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        data("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def error(problem: DLJobError) -> None:
    """What went wrong and what to do next, on stderr."""
    red, dim, end = (_RED, _DIM, _END) if coloured(sys.stderr.isatty()) else ("", "", "")
    say(f"{red}error:{end} {problem.message}")
    if problem.hint:
        say(f"  {dim}{problem.hint}{end}")


def coloured(terminal: bool) -> bool:  # noqa: FBT001 - the one thing it depends on
    """Whether to colour: NO_COLOR says no, FORCE_COLOR yes, else on a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (terminal and os.environ.get("TERM") != "dumb")


def saved(progress: Mapping[str, Any]) -> str:
    """What of a job's steps is on disk; empty while nothing is."""
    step = progress.get("lastCheckpointStep")
    return "" if step is None else f", saved {step}"


def lost(fault: Mapping[str, Any]) -> str:
    """What a fault cost; empty where nobody knows."""
    steps = fault.get("lostSteps")
    return "" if steps is None else f", {steps} step{'s' * (steps != 1)} lost"


def seconds(value: float) -> str:
    """A span for people: 0.35 s, 12.3 s, 3m12s, 2h05m."""
    if value < 1:
        return f"{value:.2f} s"
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"


def moment(unix: float) -> str:
    """A time of day in UTC, as RFC 3339 to the second."""
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
