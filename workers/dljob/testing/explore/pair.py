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
        peer_member = self.members[1 - number]
        both = (member, peer_member) if number == 0 else (peer_member, member)
        return replace(self, members=both, **more)  # type: ignore[arg-type]


def moves(state: PairState) -> Iterator[PairState]:
    """Yield each state that may come next without a fault."""
    for number, member in enumerate(state.members):
        if member.stopped:
            yield state.put(number, replace(member, stopped=False))
        elif member.at is PairPoint.DOWN:
            yield state.put(number, PairMember())
        elif member.at is PairPoint.READS:
            yield state.put(number, replace(member, at=PairPoint.ASKS, known=state.claimed))
        elif member.at is PairPoint.ASKS:
            yield _asked(state, number)
        elif member.at is PairPoint.CLAIMS:
            yield _claim(state, number)
        else:
            yield from _commanding(state, number)


def _asked(state: PairState, number: int) -> PairState:
    member, peer_member = state.members[number], state.members[1 - number]
    if peer_member.stopped:
        peer_answer = PeerState.SILENT
    elif peer_member.at is PairPoint.DOWN:
        peer_answer = PeerState.BROKEN
    else:
        peer_answer = PeerState.COMMANDS if peer_member.at is PairPoint.COMMANDS else PeerState.FOLLOWS
    # Who commands tells its own segment; one that is fenced by now tells an old one, and its claim is lost.
    known_segment = max(member.known, peer_member.owns) if peer_answer is PeerState.COMMANDS else member.known
    verdict = judge(PeerQuestion(peer_answer, known_segment, SILENT_S))
    if verdict.claim:
        return state.put(number, replace(member, at=PairPoint.CLAIMS, known=verdict.claim - 1))
    return state.put(number, replace(member, known=known_segment))


def _claim(state: PairState, number: int) -> PairState:
    member, peer_member = state.members[number], state.members[1 - number]
    if state.claimed != member.known:
        return state.put(number, replace(member, at=PairPoint.READS))
    fences = peer_member.at is PairPoint.COMMANDS and peer_member.owns == state.claimed and not peer_member.stopped
    # It was stopped when it was asked, and runs again: that one is fenced, as by every successor.
    broken = "a master is fenced that commands and was never stopped" if fences and not peer_member.known else ""
    won = replace(member, at=PairPoint.COMMANDS, owns=member.known + 1, known=0)
    return state.put(number, won, claimed=member.known + 1, broken=broken)


def _commanding(state: PairState, number: int) -> Iterator[PairState]:
    member = state.members[number]
    if member.owns != state.claimed:  # it sees the later claim with its next write, or by a look
        yield state.put(number, PairMember(PairPoint.DOWN))


def faults(state: PairState) -> Iterator[PairState]:
    """Yield each state after a fault: one is killed, one is stopped, or the commanding one rolls its journal."""
    for number, member in enumerate(state.members):
        if member.at is not PairPoint.DOWN:
            yield state.put(number, PairMember(PairPoint.DOWN))
        if not member.stopped:
            # `known` of a commanding one marks that it was stopped once.
            yield state.put(number, replace(member, stopped=True, known=member.known or 1))
        if member.at is PairPoint.COMMANDS and member.owns == state.claimed and not member.stopped:
            yield state.put(number, replace(member, owns=member.owns + 1), claimed=state.claimed + 1)


def explore_pair(most_faults: int) -> tuple[int, str]:
    """Return the number of states, and the first broken law; empty where all hold."""
    seen_states: dict[PairState, int] = {PairState(): most_faults}
    todo, edges = [PairState()], dict[PairState, list[PairState]]()
    while todo:
        state = todo.pop()
        faults_left = seen_states[state]
        edges[state] = list(moves(state))
        after = [(next_state, faults_left) for next_state in edges[state]] + [
            (next_state, faults_left - 1) for next_state in faults(state) if faults_left
        ]
        for next_state, remain in after:
            if next_state.broken:
                return len(seen_states), next_state.broken
            if seen_states.get(next_state, -1) < remain:
                seen_states[next_state] = remain
                todo.append(next_state)
    return len(seen_states), _stuck(edges)


def _stuck(edges: dict[PairState, list[PairState]]) -> str:
    """Return a state from which no fault-free run leads to one that commands alone; empty where there is none."""
    good = {state for state in edges if _commanded(state)}
    grown = True
    while grown:
        more = {
            state
            for state, after in edges.items()
            if state not in good and any(next_state in good for next_state in after)
        }
        good, grown = good | more, bool(more)
    return next((f"nobody comes to command after {state}" for state in edges if state not in good), "")


def _commanded(state: PairState) -> bool:
    return any(
        member.at is PairPoint.COMMANDS and member.owns == state.claimed and not member.stopped
        for member in state.members
    )
