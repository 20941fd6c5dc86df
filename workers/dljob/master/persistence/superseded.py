"""Superseded actions: a batch of events is carried out together, and a later action may undo an earlier one."""

from __future__ import annotations

from collections.abc import Iterable

from dljob.master.state.actions import (
    Action,
    HoldCalls,
    KillHost,
    KillSpare,
    LeaveGroup,
    LoadWeights,
    Reserve,
    SpawnHost,
    SpawnSpare,
    StartRanks,
    StopRanks,
    Unreserve,
)


def lasting(actions: Iterable[Action]) -> list[Action]:
    """Return the actions, in order, without those that begin something which a later one ends.

    The executor carries out all ends of a batch before it begins anything. Without this filter a host that was ordered
    and killed within one batch would be created after its own kill.
    """
    ended: set[tuple[object, ...]] = set()
    lasting_actions: list[Action] = []
    # Backwards, so that the ends are known before the beginnings that they undo.
    for action in reversed(tuple(actions)):
        match action:
            case KillHost():
                ended.add((action.host, action.incarnation))
            case KillSpare():
                ended.add((action.role, action.node, action.slot, action.incarnation))
            case Unreserve():
                ended.add((action.unit, action.token))
            case _ if _begins(action) in ended:
                continue
            case _:
                pass
        lasting_actions.append(action)
    return lasting_actions[::-1]


def _begins(action: Action) -> tuple[object, ...]:
    """Return the process or reservation that an action needs alive; empty: none."""
    match action:
        case SpawnHost() | StartRanks():
            return action.host, action.incarnation
        case StopRanks() | LeaveGroup() | LoadWeights() | HoldCalls():
            return action.host, action.host_incarnation
        case SpawnSpare():
            return action.role, action.node, action.slot, action.incarnation
        case Reserve():
            return action.unit, action.token
        case _:
            return ()
