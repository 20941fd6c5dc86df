"""Fleets of a world: loads that ask for other sizes, and the laws of who goes, who comes, and when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dljob.master.failure.ending import has_unfinished_rank
from dljob.master.state.events import Event, LoadSeen
from dljob.master.state.sizing import Sizing
from dljob.master.state.state import JobState, RankPhase, UnitPhase
from dljob.master.state.transaction import StateTransaction
from dljob.testing.world.fault_schedule import Timed, chance
from dljob.testing.world.model import Arrive, FaultMove
from dljob.testing.world.state import WorldState

FOLLOWS = 0.5
"""The share of fleets that follow their load."""
SOON_S = 300.0
POLICY: Mapping[str, Any] = {"by": "calls", "target": 1, "cooldownSeconds": 30}


def with_policy(seed: int, role: Mapping[str, Any]) -> dict[str, Any]:
    """Return the role, for some seeds so that it follows its load."""
    return {**role, "autoscale": POLICY} if chance(f"load {seed}").random() < FOLLOWS else dict(role)


def loads(seed: int) -> tuple[Timed, ...]:
    """Return up to five loads; they change nothing in a job without a role that follows one."""
    rng = chance(f"loads {seed}")
    moves = (FaultMove("load", rng.randrange(1 << 16)) for _ in range(rng.randint(0, 5)))
    return tuple(Timed(round(rng.random() * SOON_S, 3), fault) for fault in moves)


def load(w: WorldState, f: FaultMove) -> None:
    """Let the load ask for another number of ranks, now and then for one that is out of bounds."""
    names = sorted(w.known.sizes)
    if names and w.state is not None:
        role = names[f.pick % len(names)]
        role_plan = w.job.roles[role].plan
        numbers = [
            *range(role_plan.min_replicas, role_plan.max_replicas + 1, role_plan.group_size),
            role_plan.max_replicas + 1,
        ]
        w.later(Arrive(LoadSeen(role, numbers[f.pick // len(names) % len(numbers)], "its load")))


def checked(before: JobState, after: JobState, event: Event) -> Iterator[str]:
    """All laws of fleets, for a step that changed sizes."""
    for role, sizing in after.sizes.items():
        if before.job.roles[role].fleet:
            yield from _went(before, after, role, sizing)
            yield from _came(before, after, role)
            yield from _followed(before, sizing, role, event)


def gives_room(state: JobState) -> Iterator[str]:
    """While a unit that its role cannot do without has no node, each fleet above its minimum is about to give room."""
    if state.verdict is not None or not state.seats or not state.phase.active:
        return
    d = StateTransaction(state, state.started_at)
    lost = [
        name
        for name in sorted(state.homeless)
        if state.units[name].phase is UnitPhase.LOST and has_unfinished_rank(d, name)
    ]
    needed = [name for name in lost if any(not _above(state, role) for role, _ in state.job.plan.units[name].members)]
    for role, sizing in state.sizes.items() if needed else ():
        waits = sizing.shrink_at is not None or sizing.leaving
        if state.job.roles[role].fleet and _above(state, role) and not waits:
            yield f"fleet: {role} keeps its room with {sizing.size} ranks, and {needed[0]} has none"


def _above(state: JobState, role: str) -> bool:
    return role in state.sizes and state.sizes[role].size > state.job.roles[role].plan.min_replicas


def _went(before: JobState, after: JobState, role: str, sizing: Sizing) -> Iterator[str]:
    """Who goes had lost its node, else was on a departing one, else not ready, else least busy, else the highest."""
    facts, old = before.job.roles[role], before.sizes[role]
    size = facts.plan.group_size
    # Those that leave already were chosen by an earlier step.
    goes = {rank // size for rank in sizing.leaving} or set(facts.groups) - set(after.job.roles[role].groups)
    if old.leaving or not goes:
        return

    def order(group: int) -> tuple[bool, bool, bool, int, int]:
        ranks = facts.group_ranks(group)
        node = before.units[f"{facts.series}/{group}"].node
        departs = node in after.departures
        works = all(before.ranks[role, rank].phase is RankPhase.READY for rank in ranks)
        works = works and all(after.ranks[role, rank].phase is not RankPhase.WAITING for rank in ranks)
        calls = dict(sizing.calls or old.calls)
        return not node, departs, not works, -sum(calls.get(rank, 0) for rank in ranks), group

    for group in sorted(goes):
        stays = [candidate for candidate in facts.groups if candidate not in goes and order(candidate) > order(group)]
        if stays and not order(group)[1]:
            yield f"fleet: group {group} of {role} goes, and {stays[0]} should go first"


def _came(before: JobState, after: JobState, role: str) -> Iterator[str]:
    """The lowest numbers that are free are given first."""
    had, has = set(before.job.roles[role].groups), set(after.job.roles[role].groups)
    free = (number for number in range(len(had | has) + len(has)) if number not in had)
    wrong = [number for number, first in zip(sorted(has - had), free, strict=False) if number != first]
    if wrong:
        yield f"fleet: {role} gives the number {wrong[0]}, and has {sorted(had)}"


def _followed(before: JobState, sizing: Sizing, role: str, event: Event) -> Iterator[str]:
    """A load changes the wanted size within its bounds, and a cooldown after the last change."""
    old, plan = before.sizes[role], before.job.roles[role].plan
    if not isinstance(event, LoadSeen) or sizing.want == old.want:
        return
    if plan.autoscale is None or not plan.min_replicas <= sizing.want <= plan.max_replicas:
        yield f"fleet: its load gives {role} {sizing.want} ranks, out of its bounds"
    elif (
        old.scaled is not None and sizing.scaled is not None and sizing.scaled - old.scaled < plan.autoscale.cooldown_s
    ):
        yield f"fleet: its load changes {role} {sizing.scaled - old.scaled:.1f} s after the last change"
