"""Which orders of a batch still stand: steps are carried out together, and a later one may undo an earlier one."""

from __future__ import annotations

from collections.abc import Iterable

from dljob.master.state.actions import (
    Action,
    KillHost,
    KillSpare,
    LeaveGroup,
    Reserve,
    SpawnHost,
    SpawnSpare,
    StartRanks,
    StopRanks,
    Unreserve,
)


def lasting(actions: Iterable[Action]) -> list[Action]:
    """The actions, in order, without those that begin what a later one ends.

    An executor that ends things before it begins any may then take them all at once: what was ordered and countermanded
    within the batch does not come into being after its own end.
    """
    ended: set[tuple[object, ...]] = set()
    kept: list[Action] = []
    for action in reversed(tuple(actions)):
        match action:
            case KillHost():
                ended.add((action.host, action.life))
            case KillSpare():
                ended.add((action.role, action.node, action.slot, action.life))
            case Unreserve():
                ended.add((action.unit, action.token))
            case _ if _begins(action) in ended:
                continue
            case _:
                pass
        kept.append(action)
    return kept[::-1]


def _begins(action: Action) -> tuple[object, ...]:
    match action:
        case SpawnHost() | StartRanks() | StopRanks() | LeaveGroup():
            return action.host, action.life
        case SpawnSpare():
            return action.role, action.node, action.slot, action.life
        case Reserve():
            return action.unit, action.token
        case _:
            return ()
