"""Giving room: a fleet above its minimum lets ranks go so that a unit which cannot do with fewer gets a node.

A driver that lost its node stops the job, while a fleet with fewer ranks only serves less. What a fleet has given it
gets back as nodes join: its wanted size stays, and it grows only where all units without a node have room, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dljob.master.placement import resizing
from dljob.master.placement.admission import lost_units
from dljob.master.start.assign import Refusal
from dljob.master.state import limits
from dljob.master.state.transaction import StateTransaction


@dataclass(frozen=True, slots=True)
class RoomGiven:
    """The smaller sizes of fleets, and for whom; no sizes: `why` nobody gives room."""

    sizes: Mapping[str, int]
    why: str


def needy(d: StateTransaction) -> tuple[str, ...]:
    """Return the units without a node whose roles cannot go on with fewer ranks."""
    return tuple(
        name for name in lost_units(d) if any(not _can_shrink(d, role) for role, _ in d.job.plan.units[name].members)
    )


def may_give(d: StateTransaction, role: str) -> bool:
    """Return whether a role can let ranks go for others: a fleet above its minimum, none of whose ranks leave now."""
    return d.facts(role).fleet and _can_shrink(d, role) and not d.sizes[role].leaving


def decide(d: StateTransaction, lacking: Sequence[str]) -> RoomGiven:
    """Return which fleets let ranks go now. `lacking`: the roles that lost units and look for their own size.

    As few ranks go as make room for all units without a node; where even the minima make none, nobody goes.
    """
    units = needy(d)
    if not units:
        return RoomGiven({}, "the roles without room can do with fewer ranks")
    fleets = [role for role in d.job.roles if role in d.sizes and role not in lacking and _gives_now(d, role)]
    if not fleets:
        return RoomGiven({}, "no fleet has ranks to spare")
    made = resizing.fewer(d, [*fleets, *lacking])
    if isinstance(made, Refusal):
        return RoomGiven({}, f"the minima of {', '.join(fleets)} leave no room either: {made.why}")
    sizes = {role: made.sizes[role] for role in fleets if made.sizes[role] < d.sizes[role].size}
    return RoomGiven(sizes, f"{', '.join(units[:3])} lost its node and gets their room")


def _gives_now(d: StateTransaction, role: str) -> bool:
    # The room that it gave last may be in no snapshot of the nodes yet: its processes end, then its reservation.
    resized = d.sizes[role].resized
    return may_give(d, role) and (resized is None or d.now - resized >= limits.STOP_S)


def _can_shrink(d: StateTransaction, role: str) -> bool:
    return role in d.sizes and d.sizes[role].size > d.facts(role).plan.min_replicas
