"""Display of a job's timeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dljob.cli.terminal import safe, unbroken
from dljob.telemetry.wording import seconds


def line(event: Mapping[str, Any], begin: float) -> str:
    """Format one entry: seconds since `begin`, reason, target, level, message, duration.

    An Event of Kubernetes has the word Warning and the number of its repetitions, too. An entry of another version may
    lack anything.
    """
    level = f" [{event['level']}]" if event.get("level") else ""
    took = f" ({seconds(event['seconds'])})" if isinstance(event.get("seconds"), int | float) else ""
    count = f" (x{event['count']})" if event.get("count") else ""
    # One line for each entry, whatever the message: an exception's may have many.
    message = f"{'Warning: ' if event.get('type') == 'Warning' else ''}{event.get('message', '')}"
    head = f"{event.get('reason') or '-'!s:<18} {event.get('target') or '-'!s:<14}"
    at = event.get("time")
    since = f"{at - begin:8.1f}s" if isinstance(at, int | float) else f"{'-':>9}"
    # Messages of users go to a terminal, which must not obey them.
    return safe(unbroken(f"{since}  {head}{level} {' '.join(message.split())}{took}{count}"), colours=False)
