"""How many ranks an elastic role has, is to have, and when that changes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizing:
    """How many ranks a role has whose number may change, and how many it is to have (all times unix seconds)."""

    size: int
    want: int
    shrink_at: float | None = None
    """When it goes on with fewer, unless its lost units have found a place by then."""
    target: int = 0
    """What it could be given now; 0: what it has."""
    move_at: float | None = None
    """When it is given that."""
    save_by: float | None = None
    """Until when what its ranks copied may be on its way to disk, before it is."""
    parting: bool = False
    """Whether all its ranks are leaving user code, with their processes, for a world of another size."""
    resized: float | None = None
    """When it was last given another number."""
    grown: float | None = None
    """When it was last given more, unless it has lost ranks since."""
    vain: int = 0
    """How often in a row it lost again soon what it was given."""
