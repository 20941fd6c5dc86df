"""A call on its way: what the router knows of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from dljob.runtime.context import Outgoing


class LateError(Exception):
    """The call's deadline passed."""


@dataclass(slots=True)
class Sending:
    """A call on its way: how long it may still take, what it waits for, which incarnations it will not go to."""

    call: Outgoing
    id: str
    started: float = field(default_factory=time.monotonic)
    after: int = 0
    again: bool = False
    waiting_for: str = "its answer"

    @property
    def left(self) -> float | None:
        """Seconds to the deadline; None without one."""
        if self.call.timeout_s is None:
            return None
        return self.call.timeout_s - (time.monotonic() - self.started)

    @property
    def name(self) -> str:
        """As in `rollout/1.generate`."""
        return self.call.name
