"""Exhaustive exploration of small worlds: every order of pending items, with every fault at every moment.

Each state is expanded once for each number of faults that may still come. In every state all invariants hold. From
every state the end of the job can be reached without further faults; so every fair run, which makes each move at some
time, ends.

Time passes only when nothing urgent is due: timers, leases and deadlines of the cluster are punctual, other pending
items take effect within `SLACK` seconds and in any order, and user code takes any time.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dljob.master.start.assign import would_be_nodes
from dljob.plan.plan import plan
from dljob.spec.model import DLJobManifest
from dljob.testing.explore.key import key_of, tidy
from dljob.testing.world import faults as mishaps
from dljob.testing.world import invariants
from dljob.testing.world.model import (
    Arrive,
    Break,
    Carry,
    Depart,
    Done,
    FaultMove,
    Happen,
    Heal,
    Lapse,
    Move,
    NodeOverdue,
    PollNodes,
    SetUp,
    StrikeOff,
    Wake,
)
from dljob.testing.world.world import World

SLACK = 10.0
"""Seconds within which a pending item takes effect, after it could."""
PUNCTUAL = (Lapse, Break, NodeOverdue, StrikeOff, Depart, Heal)
"""Items that take effect exactly at their time."""
PROMPT = (Arrive, Carry, PollNodes)
"""Items that some worlds let take effect at once: events and actions are never pending."""
SWIFT = (*PROMPT, SetUp)
"""The same, and `setup()` of user code takes no time either."""


@dataclass(frozen=True, slots=True)
class Small:
    """A world to explore: a job and its possible faults."""

    name: str
    manifest: Mapping[str, Any]
    faults: tuple[FaultMove, ...] = ()
    at_once: tuple[type, ...] = ()
    """Items that take effect at once, one after the other; the exploration tries every order of the others only."""

    def world(self) -> World:
        """Return the world at its beginning."""
        manifest = DLJobManifest.model_validate(self.manifest)
        job_plan = plan(manifest)
        w = World(job_plan, manifest.spec, would_be_nodes(job_plan))
        self.settle(w)
        return w

    def settle(self, w: World) -> None:
        """Let everything take effect that does so at once."""
        # One after the other: each may add further items.
        while self.at_once and w.finished is None and not w.problems:
            ready = (n for n, p in w.pending.items() if isinstance(p.item, self.at_once) and p.least <= w.now)
            number = next(ready, None)
            if number is None:
                return
            w.apply(Happen(number))


@dataclass(frozen=True, slots=True)
class Double:
    """A pending item takes effect twice."""

    number: int


Choice = Move | Double


@dataclass(slots=True)
class Explored:
    """The result. `problems` are the broken invariants of one state; `trace` leads to it."""

    name: str
    faults: int
    states: int = 0
    moves: int = 0
    ends: int = 0
    """States in which the job is over."""
    is_whole: bool = False
    """Whether all states were explored."""
    problems: tuple[str, ...] = ()
    trace: list[str] = field(default_factory=list[str])


def explore(small: Small, faults: int, *, most: int = 10_000_000) -> Explored:
    """Explore all states with up to `faults` faults; stop at the first broken invariant, or after `most` states."""
    return _Search(small, faults).run(most)


class _Search:
    """The states seen, how each was reached, and those still to be expanded."""

    def __init__(self, small: Small, faults: int) -> None:
        self.small = small
        self.faults = faults
        self.found = Explored(small.name, faults)
        self.seen: dict[tuple[int, ...], int] = {}
        self.parts: dict[Any, int] = {}
        """Part of a state -> its number: many states share parts, so keys of numbers save memory."""
        # Arrays of numbers: one object for each of millions of states would fill the memory.
        self.parent, self.choice = array("l"), array("h")
        self.edges = (array("l"), array("l"))
        self.ends: list[int] = []
        self.todo: deque[tuple[int, World, int]] = deque()

    def run(self, most: int) -> Explored:
        """Expand states until all are seen, one breaks an invariant, or `most` are seen."""
        result = self.found
        self._enter(self.small.world(), self.faults, -1, -1)
        while self.todo and not result.problems and len(self.seen) < most:
            self._expand(*self.todo.popleft())
        result.states, result.ends, result.is_whole = len(self.seen), len(self.ends), not self.todo
        if result.is_whole and not result.problems:
            self._always_ends()
        return result

    def _expand(self, index: int, w: World, faults_left: int) -> None:
        choices: list[Choice] = list(enabled(w))
        plain = len(choices)
        # While PrimeMaster is about to die the fault is not over, so no other one comes in between.
        if faults_left and w.doomed is None:
            choices.extend(self._wrong(w))
        if not plain:
            # The job is not over and nothing is pending: no run from here can end.
            self._broken(index, ["stuck: nothing can happen, and the job is not over"])
        for at, choice in enumerate(choices):
            new = w.clone()
            make(new, choice)
            self.small.settle(new)
            self.found.moves += 1
            # The choices after the plain ones are faults, and each uses up one of those that are left.
            target = self._enter(new, faults_left - (at >= plain), index, at)
            # Moves without faults only: `_always_ends` asks for an end without further faults.
            if at < plain and target != index:
                self.edges[0].append(index)
                self.edges[1].append(target)
            if self.found.problems:
                return

    def _wrong(self, w: World) -> Iterator[Choice]:
        for fault in self.small.faults:
            if fault.kind == "double":
                yield from (Double(number) for number in w.arriving)
            elif fault.kind == "crash":
                # Only a PrimeMaster that runs can die.
                if w.state is not None:
                    yield fault
            else:
                for mishap in mishaps.possible(w, fault.kind):
                    # One fault for each victim, with the strength that the world's definition gives.
                    yield FaultMove(fault.kind, mishap.pick, fault.value, fault.text)

    def _enter(self, w: World, faults_left: int, parent: int, choice: int) -> int:
        """Return the number of a state; a new one is checked, and queued to be expanded."""
        # First drop what has no effect any more, so that more states are equal.
        tidy(w)
        key = (faults_left, *(self.parts.setdefault(part, len(self.parts)) for part in key_of(w)))
        index = self.seen.get(key)
        if index is not None:
            return index
        index = self.seen[key] = len(self.seen)
        self.parent.append(parent)
        self.choice.append(choice)
        problems = w.problems or invariants.sweep(w)
        if w.finished is not None:
            self.ends.append(index)
            problems = problems or invariants.left_behind(w)
        else:
            # Breadth first, so that the trace to a broken invariant is a shortest one.
            self.todo.append((index, w, faults_left))
        if problems:
            self._broken(index, problems)
        return index

    def _broken(self, index: int, problems: list[str]) -> None:
        self.found.problems = tuple(dict.fromkeys(problems))
        self.found.trace = self.trace(index)

    def _always_ends(self) -> None:
        """Check that from every state moves without faults lead to an end."""
        # A backward search from the ends: a job in a state that it does not reach can never end.
        back: dict[int, list[int]] = {}
        for source, target in zip(*self.edges, strict=True):
            back.setdefault(target, []).append(source)
        ending = bytearray(len(self.seen))
        todo = list(self.ends)
        for index in todo:
            ending[index] = 1
        while todo:
            for source in back.get(todo.pop(), ()):
                if not ending[source]:
                    ending[source] = 1
                    todo.append(source)
        lost = ending.find(0)
        if lost >= 0:
            self._broken(lost, [f"no end: from {ending.count(0)} states the job cannot end any more"])

    def trace(self, index: int) -> list[str]:
        """Return the moves from the beginning to a state, in words."""
        chosen: list[int] = []
        while index > 0:
            chosen.append(self.choice[index])
            index = self.parent[index]
        w, lines = self.small.world(), list[str]()
        tidy(w)
        for at in reversed(chosen):
            # In the order of `_expand`, since choices are kept by their index.
            choices: list[Choice] = [*enabled(w), *self._wrong(w)]
            choice = choices[at]
            lines.append(_describe_choice(w, choice))
            make(w, choice)
            self.small.settle(w)
            tidy(w)
        return lines


def enabled(w: World) -> Iterator[Move]:
    """Yield the moves that are possible next without a fault."""
    wake = w.wake_at()
    # The horizon is the time by which the next thing must have happened.
    horizon = float("inf") if wake is None else wake
    for pending in w.pending.values():
        kind = type(pending.item)
        if kind in PUNCTUAL:
            horizon = min(horizon, pending.least)
        # User code takes any time, so it sets no horizon.
        elif kind is not Done:
            horizon = min(horizon, pending.least + SLACK)
    # Equal items lead to equal worlds: one of them stands for all.
    yielded: set[Any] = set()
    for number, pending in w.pending.items():
        if pending.least <= max(horizon, w.now) and pending not in yielded:
            yielded.add(pending)
            yield Happen(number)
    if wake is not None and wake <= horizon:
        yield Wake()


def make(w: World, choice: Choice) -> None:
    """Make a move, or let a pending item take effect twice."""
    if isinstance(choice, Double):
        w.later(w.pending[choice.number].item)
    else:
        w.apply(choice)


def _describe_choice(w: World, choice: Choice) -> str:
    described = w.pending[choice.number].item if isinstance(choice, Happen | Double) else choice
    return f"{w.now:.3f} {'twice: ' if isinstance(choice, Double) else ''}{described}"
