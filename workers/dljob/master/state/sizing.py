"""Sizing: the present and the wanted number of ranks of an elastic role, and the timers of a change."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizing:
    """State of a role whose number of ranks may change. Times are unix seconds.

    A growth, or a change that a user asked for, has up to three steps: `move_at` (nodes settle), `save_by` (copies are
    flushed to disk), and in a role that restarts in process `all_leave_user_code`. A loss has one: `shrink_at`.
    """

    size: int
    """Present number of ranks."""
    want: int
    """Wanted number of ranks, by the spec or the last `scale` command."""
    shrink_at: float | None = None
    """When the role goes on with fewer ranks, unless its lost units find nodes before."""
    target: int = 0
    """Number of ranks of the change that is under way; 0: no change is."""
    move_at: float | None = None
    """When the change begins."""
    save_by: float | None = None
    """Deadline for the copies of its ranks to come to disk before the change."""
    all_leave_user_code: bool = False
    """Whether all ranks are leaving user code, keeping their processes, for a world of another size."""
    resized: float | None = None
    """When the size last changed."""
    grown: float | None = None
    """When the role last grew; None once it has lost ranks since."""
    vain: int = 0
    """Number of consecutive growths that were lost again within VAIN_S; of a fleet, that nodes did not hold."""
    scaled: float | None = None
    """When its wanted size was last changed, by an order or by its load."""
    left_groups: tuple[int, ...] = ()
    """Numbers of groups of a fleet that left while higher ones stayed; the lowest is the first that is given again."""
    calls: tuple[tuple[int, int], ...] = ()
    """(rank, calls and connections) as the last change of the wanted size found them: who has fewest goes first."""
    leaving: tuple[int, ...] = ()
    """Ranks of a fleet that finish their calls and requests before the role goes on without them."""
    leave_by: float | None = None
    """When they are killed, if they have not ended before."""
    coming: tuple[int, ...] = ()
    """Numbers of groups of a fleet that came with a growth, and whose units no node has held yet."""
    grow_at: float | None = None
    """When a fleet may grow again, since nodes did not hold what its last growth had placed on them."""

    @property
    def staying(self) -> int:
        """Number of ranks that others may call: all but those that leave."""
        return self.size - len(self.leaving)
