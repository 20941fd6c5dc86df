"""Display of a job's timeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dljob.cli import output


def line(note: Mapping[str, Any], begin: float) -> str:
    """Format one note: seconds since `begin`, reason, target, level, message."""
    level = f" [{note['level']}]" if note.get("level") else ""
    took = f" ({output.seconds(note['seconds'])})" if note.get("seconds") is not None else ""
    return f"{note['time'] - begin:8.1f}s  {note['reason']:<18} {note['target']:<14}{level} {note['message']}{took}"
