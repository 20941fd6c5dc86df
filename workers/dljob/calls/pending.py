"""Record of the calls that reached a callee, so that a call whose caller gave up does not run.

A caller whose deadline passes cancels its call. Calls wait where the callee cannot see them (Ray starts them when a
thread of the callee is free), so the callee derives from the callers' consecutive numbers which calls have arrived.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

MAX_REMEMBERED_CALLS = 100_000
"""Number of remembered calls of each kind: cancelled ones, and those that ended before they began. Beyond it the oldest
is forgotten: a forgotten cancelled call runs if it arrives, and for one that never began `cancel` returns UNKNOWN."""


class Fate(StrEnum):
    """Answer to a caller that cancels its call."""

    NOT_RUN = "not run"
    """The call has not begun, and never will."""
    STALE = "stale"
    """The same: its rank's weights were too old for it."""
    BEGUN = "begun"
    """The call has begun, and is not stopped."""
    ANSWERED = "answered"
    """The call has run, and its answer is so large that it may still be on its way."""
    UNKNOWN = "unknown"
    """The call has run, or was overtaken by a later one and will never run: the callee does not know which."""


@dataclass(slots=True)
class PendingCalls:
    """The calls of one callee from arrival to end, and the cancelled calls that have not arrived yet.

    A call's id is `<caller's process>:<number>`, and a caller counts up.
    """

    has_begun: dict[str, bool] = field(default_factory=dict[str, bool])
    """Id of a call under way -> whether it has begun; before that it waits for `setup` or for a free place."""
    last_numbers: dict[str, int] = field(default_factory=dict[str, int])
    """The caller's process -> the highest number of its calls that arrived."""
    cancelled: dict[str, None] = field(default_factory=dict[str, None])
    """Ids of cancelled calls, the oldest first."""
    never_begun: dict[str, None] = field(default_factory=dict[str, None])
    """Ids of calls that ended before they began, the oldest first."""

    def arrive(self, call_id: str) -> bool:
        """Record the arrival of a call; False when its caller has cancelled it already."""
        # The cancellation has a thread of its own at the callee, and overtakes calls in Ray's queue (ADR 63).
        if call_id in self.cancelled:
            del self.cancelled[call_id]
            return False
        caller, _, number = call_id.rpartition(":")
        # Not simply the last number: threads of a caller may overtake each other.
        self.last_numbers[caller] = max(int(number), self.last_numbers.get(caller, 0))
        self.has_begun[call_id] = False
        return True

    def begin(self, call_id: str) -> bool:
        """Record that a call runs from now on; False when its caller cancelled it while it waited."""
        if call_id in self.cancelled:
            return False
        self.has_begun[call_id] = True
        return True

    def end(self, call_id: str) -> None:
        """Record that a call has run, or ended before it began."""
        # Not in `has_begun`: the call was sent twice, and the other one has ended.
        if self.has_begun.pop(call_id, True) is False:
            _remember(self.never_begun, call_id)
        # Makes room: the number of remembered cancellations is bounded.
        self.cancelled.pop(call_id, None)

    def cancel(self, call_id: str) -> Fate:
        """Record that the caller no longer waits for a call, so that it does not begin."""
        # Of the calls that have ended, only those that never began are remembered.
        if call_id in self.never_begun:
            return Fate.NOT_RUN
        _remember(self.cancelled, call_id)
        has_begun = self.has_begun.get(call_id)
        if has_begun is not None:
            return Fate.BEGUN if has_begun else Fate.NOT_RUN
        # A number above the last one has not arrived, and `arrive` will refuse it. A lower one may have run and been
        # forgotten, or may still be behind a later call that Ray started first.
        caller, _, number = call_id.rpartition(":")
        return Fate.UNKNOWN if int(number) <= self.last_numbers.get(caller, 0) else Fate.NOT_RUN


def _remember(call_ids: dict[str, None], call_id: str) -> None:
    call_ids[call_id] = None
    # Dicts keep the order of insertion, so the first key is the oldest.
    if len(call_ids) > MAX_REMEMBERED_CALLS:
        del call_ids[next(iter(call_ids))]
