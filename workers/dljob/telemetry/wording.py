"""Counts and times in messages: `1 rank`, `2 ranks`, `3m12s`, `2026-01-01T00:00:00Z`; used by all packages."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime


def counted(number: int, noun: str, *, plural: str = "") -> str:
    """Return a number with its noun: `1 rank`, `2 ranks`. `plural` is the plural that is not formed by an s."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def is_or_are(number: int) -> str:
    """Return the verb of a counted noun: `1 step is lost`, `2 steps are lost`."""
    return "is" if number == 1 else "are"


def every(number: int, noun: str, *, singular: str, many: str) -> str:
    """Return the whole of a number with its verb: `the only rank is ready`, `all 2 ranks are ready`."""
    return f"the only {noun} {singular}" if number == 1 else f"all {number} {noun}s {many}"


def level_words(name: str) -> str:
    """Return the name of a restart level in words: `roleGroup` -> `role group`."""
    return re.sub(r"(?=[A-Z])", " ", name).lower()


def moment(unix: float) -> str:
    """Return a time, given in unix seconds, in UTC as RFC 3339, to the second."""
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def unix(text: object) -> float | None:
    """Return the unix seconds of a time in RFC 3339; None for anything else."""
    with suppress(ValueError):
        return datetime.fromisoformat(str(text)).timestamp()
    return None


def seconds(value: float) -> str:
    """Return a duration for people: 0.35 s, 12.3 s, 3m12s, 2h05m."""
    if value < 1:
        return f"{value:.2f} s"
    # Not beyond all days: a damaged file may say infinity.
    if value < 60 or not value < 1e15:
        return f"{value:.1f} s"
    minutes, rest = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"
