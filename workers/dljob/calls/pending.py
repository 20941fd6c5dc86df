"""Record of the calls that reached a callee, so that a call whose caller gave up does not run.

A caller whose deadline passes cancels its call. Calls wait where the callee cannot see them (Ray starts them when a
thread of the callee is free), so the callee derives from the callers' consecutive numbers which calls have arrived.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

REMEMBERED = 100_000
"""Upper bound of the remembered calls of each kind: cancelled before their arrival, and refused. Beyond it the oldest
is forgotten: a forgotten cancelled call runs if it arrives, and cancelling a forgotten refused call gives UNKNOWN."""


class Fate(StrEnum):
    """Answer to a caller that cancels its call."""

    NOT_RUN = "not run"
    """The call has not begun, and never will."""
    BEGUN = "begun"
    """The call runs, and continues."""
    ANSWERED = "answered"
    """The call has run, and its answer is so large that it may still be on its way."""
    UNKNOWN = "unknown"
    """The call has run, or was overtaken by a later one and will never run; the callee cannot tell which."""


@dataclass(slots=True)
class PendingCalls:
    """The calls of one callee from arrival to end, and the cancelled calls that have not arrived yet.

    A call's id is `<caller's process>:<number>`, and a caller counts up.
    """

    under_way: dict[str, bool] = field(default_factory=dict[str, bool])
    """Id -> whether the call has begun; before that it waits for `setup` or for a free place."""
    highest: dict[str, int] = field(default_factory=dict[str, int])
    """The caller's process -> the highest number of its calls that arrived."""
    cancelled: dict[str, None] = field(default_factory=dict[str, None])
    """Ids of cancelled calls, the oldest first."""
    refused: dict[str, None] = field(default_factory=dict[str, None])
    """Ids of calls that ended before they began, the oldest first."""

    def arrive(self, call: str) -> bool:
        """Record the arrival of a call; False when its caller has cancelled it already."""
        # The cancellation has a thread of its own at the callee, and overtakes calls in Ray's queue (ADR 63).
        if call in self.cancelled:
            del self.cancelled[call]
            return False
        caller, _, number = call.rpartition(":")
        # Not simply the last number: threads of a caller may overtake each other.
        self.highest[caller] = max(int(number), self.highest.get(caller, 0))
        self.under_way[call] = False
        return True

    def begin(self, call: str) -> bool:
        """Record that a call runs from now on; False when its caller cancelled it while it waited."""
        if call in self.cancelled:
            return False
        self.under_way[call] = True
        return True

    def end(self, call: str) -> None:
        """Record that a call has run, or was refused."""
        if self.under_way.pop(call, True) is False:  # absent where it was sent again while it ran
            _remember(self.refused, call)
        # Room for others: the number of remembered cancellations is bounded.
        self.cancelled.pop(call, None)

    def cancel(self, call: str) -> Fate:
        """Record that the caller no longer waits for a call, so that it does not begin."""
        # The call ended without having begun: this alone is certain of a call that is over.
        if call in self.refused:
            return Fate.NOT_RUN
        _remember(self.cancelled, call)
        begun = self.under_way.get(call)
        if begun is not None:
            return Fate.BEGUN if begun else Fate.NOT_RUN
        # A number above the highest has not arrived, and `arrive` will refuse it. A lower one may have run and been
        # forgotten, or may still be behind a later call that Ray started first.
        caller, _, number = call.rpartition(":")
        return Fate.UNKNOWN if int(number) <= self.highest.get(caller, 0) else Fate.NOT_RUN


def _remember(calls: dict[str, None], call: str) -> None:
    calls[call] = None
    # Dicts keep the order of insertion, so the first key is the oldest.
    if len(calls) > REMEMBERED:
        del calls[next(iter(calls))]
