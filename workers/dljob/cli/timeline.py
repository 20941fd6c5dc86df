"""Display of a job's timeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dljob.telemetry.wording import seconds


def line(event: Mapping[str, Any], begin: float) -> str:
    """Format one entry: seconds since `begin`, reason, target, level, message, duration.

    An Event of Kubernetes has the word Warning and the number of its repetitions, too.
    """
    level = f" [{event['level']}]" if event.get("level") else ""
    took = f" ({seconds(event['seconds'])})" if event.get("seconds") is not None else ""
    count = f" (x{event['count']})" if event.get("count") else ""
    # One line for each entry, whatever the message: an exception's may have many.
    message = " ".join(f"{'Warning: ' if event.get('type') == 'Warning' else ''}{event['message']}".split())
    head = f"{event['time'] - begin:8.1f}s  {event['reason']:<18} {event['target']:<14}"
    return f"{head}{level} {message}{took}{count}"
