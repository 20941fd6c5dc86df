"""Exhaustive exploration of a job's two PrimeMasters: every order of their questions, claims, deaths and stops.

The two follow `dljob.master.placement.takeover`, as `runtime.controller.standby` does, at this granularity: reading the
claims, asking, the end of the question, and claiming are moves of their own. In every state, a master that answered
since the last fault is not fenced; and from every state one of the two comes to command, without further faults.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from dljob.master.placement.takeover import SILENT_S, PeerQuestion, PeerState, judge


class PairPoint(StrEnum):
    """The point at which one of the two is."""

    DOWN = "Down"
    """Ray is starting it again."""
    READS = "Reads"
    """It is to read which segments are claimed."""
    ASKS = "Asks"
    """Its question is on the way."""
    CLAIMS = "Claims"
    """It is to claim the number after `known`."""
    COMMANDS = "Commands"


@dataclass(frozen=True, slots=True)
class PairMember:
    """One of the two."""

    at: PairPoint = PairPoint.READS
    known: int = 0
    """The highest segment claimed, as it knows."""
    stopped: bool = False
    owns: int = 0
    """The segment that it claimed last."""


@dataclass(frozen=True, slots=True)
class PairState:
    """Both, and the journal."""

    members: tuple[PairMember, PairMember] = (PairMember(PairPoint.COMMANDS, owns=1), PairMember())
    claimed: int = 1
    broken: str = ""
    """The law that was broken."""

    def put(self, number: int, member: PairMember, **more: object) -> PairState:
        """Return the state with one member changed."""
        other = self.members[1 - number]
        both = (member, other) if number == 0 else (other, member)
        return replace(self, members=both, **more)  # type: ignore[arg-type]


def moves(state: PairState) -> Iterator[PairState]:
    """Yield each state that may come next without a fault."""
    for number, own in enumerate(state.members):
        if own.stopped:
            yield state.put(number, replace(own, stopped=False))
        elif own.at is PairPoint.DOWN:
            yield state.put(number, PairMember())
        elif own.at is PairPoint.READS:
            yield state.put(number, replace(own, at=PairPoint.ASKS, known=state.claimed))
        elif own.at is PairPoint.ASKS:
            yield _asked(state, number)
        elif own.at is PairPoint.CLAIMS:
            yield _claim(state, number)
        else:
            yield from _commanding(state, number)


def _asked(state: PairState, number: int) -> PairState:
    own, other = state.members[number], state.members[1 - number]
    if other.stopped:
        heard = PeerState.SILENT
    elif other.at is PairPoint.DOWN:
        heard = PeerState.BROKEN
    else:
        heard = PeerState.COMMANDS if other.at is PairPoint.COMMANDS else PeerState.FOLLOWS
    # Who commands tells its own segment; one that is fenced by now tells an old one, and its claim is lost.
    told = max(own.known, other.owns) if heard is PeerState.COMMANDS else own.known
    verdict = judge(PeerQuestion(heard, told, SILENT_S))
    if verdict.claim:
        return state.put(number, replace(own, at=PairPoint.CLAIMS, known=verdict.claim - 1))
    return state.put(number, replace(own, known=told))


def _claim(state: PairState, number: int) -> PairState:
    own, other = state.members[number], state.members[1 - number]
    if state.claimed != own.known:
        return state.put(number, replace(own, at=PairPoint.READS))
    fences = other.at is PairPoint.COMMANDS and other.owns == state.claimed and not other.stopped
    # It was stopped when it was asked, and runs again: that one is fenced, as by every successor.
    broken = "a master is fenced that commands and was never stopped" if fences and not other.known else ""
    won = replace(own, at=PairPoint.COMMANDS, owns=own.known + 1, known=0)
    return state.put(number, won, claimed=own.known + 1, broken=broken)


def _commanding(state: PairState, number: int) -> Iterator[PairState]:
    own = state.members[number]
    if own.owns != state.claimed:  # it sees the later claim with its next write, or by a look
        yield state.put(number, PairMember(PairPoint.DOWN))


def faults(state: PairState) -> Iterator[PairState]:
    """Yield each state after a fault: one is killed, one is stopped, or the commanding one rolls its journal."""
    for number, own in enumerate(state.members):
        if own.at is not PairPoint.DOWN:
            yield state.put(number, PairMember(PairPoint.DOWN))
        if not own.stopped:
            # `known` of a commanding one marks that it was stopped once.
            yield state.put(number, replace(own, stopped=True, known=own.known or 1))
        if own.at is PairPoint.COMMANDS and own.owns == state.claimed and not own.stopped:
            yield state.put(number, replace(own, owns=own.owns + 1), claimed=state.claimed + 1)


def explore_pair(most_faults: int) -> tuple[int, str]:
    """Return the number of states, and the first broken law; empty where all hold."""
    seen: dict[PairState, int] = {PairState(): most_faults}
    todo, edges = [PairState()], dict[PairState, list[PairState]]()
    while todo:
        state = todo.pop()
        left = seen[state]
        edges[state] = list(moves(state))
        after = [(each, left) for each in edges[state]] + [(each, left - 1) for each in faults(state) if left]
        for each, remain in after:
            if each.broken:
                return len(seen), each.broken
            if seen.get(each, -1) < remain:
                seen[each] = remain
                todo.append(each)
    return len(seen), _stuck(edges)


def _stuck(edges: dict[PairState, list[PairState]]) -> str:
    """Return a state from which no fault-free run leads to one that commands alone; empty where there is none."""
    good = {state for state in edges if _commanded(state)}
    grown = True
    while grown:
        more = {state for state, after in edges.items() if state not in good and any(each in good for each in after)}
        good, grown = good | more, bool(more)
    return next((f"nobody comes to command after {state}" for state in edges if state not in good), "")


def _commanded(state: PairState) -> bool:
    return any(own.at is PairPoint.COMMANDS and own.owns == state.claimed and not own.stopped for own in state.members)
