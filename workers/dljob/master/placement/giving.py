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
    """The smaller sizes of fleets, and for whom; no sizes: `reason` says why nobody gives room."""

    sizes: Mapping[str, int]
    reason: str


def units_in_need(tx: StateTransaction) -> tuple[str, ...]:
    """Return the units without a node whose roles cannot go on with fewer ranks."""
    return tuple(
        name for name in lost_units(tx) if any(not _can_shrink(tx, role) for role, _ in tx.job.plan.units[name].members)
    )


def may_give(tx: StateTransaction, role: str) -> bool:
    """Return whether a role can let ranks go for others: a fleet above its minimum, none of whose ranks leave now."""
    return tx.facts(role).fleet and _can_shrink(tx, role) and not tx.sizes[role].leaving


def choose_givers(tx: StateTransaction, lacking: Sequence[str]) -> RoomGiven:
    """Return which fleets let ranks go now. `lacking`: the roles that lost units and look for their own size.

    As few ranks go as make room for all units without a node; where even the minima make none, nobody goes.
    """
    units = units_in_need(tx)
    if not units:
        return RoomGiven({}, "the roles without room can do with fewer ranks")
    # The room that a fleet gave last may be in no snapshot of the nodes yet: its processes end, then its reservation.
    fresh = {
        role
        for role, size in tx.sizes.items()
        if size.resized is not None and tx.now - size.resized < limits.HOST_STOP_S
    }
    fleets = [role for role in tx.job.roles if role not in {*lacking, *fresh} and may_give(tx, role)]
    if not fleets:
        return RoomGiven({}, "no fleet has ranks to spare")
    change = resizing.largest_sizes(tx, [*fleets, *lacking])
    if isinstance(change, Refusal):
        return RoomGiven({}, f"the minima of {', '.join(fleets)} leave no room either: {change.reason}")
    sizes = {role: change.sizes[role] for role in fleets if change.sizes[role] < tx.sizes[role].size}
    return RoomGiven(sizes, f"{', '.join(units[:3])} lost its node and gets their room")


def _can_shrink(tx: StateTransaction, role: str) -> bool:
    return role in tx.sizes and tx.sizes[role].size > tx.facts(role).plan.min_replicas
