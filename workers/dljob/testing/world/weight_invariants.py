"""Weights of servers: publications, loads, and the invariants of who gets requests.

Nobody whom PrimeMaster tells as ready lags beyond `maxLag`, and a load leaves `minReady` ranks that are told so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dljob.master.state.actions import Action, LoadWeights
from dljob.master.state.events import WeightsLoaded, WeightsPublished
from dljob.master.state.evolve import evolve
from dljob.master.state.staleness import why_out
from dljob.master.state.state import JobState, RankKey, RankPhase
from dljob.testing.world.model import Arrive, FaultMove
from dljob.testing.world.state import WorldState


def publish(w: WorldState, f: FaultMove) -> None:
    """All channels have a new version, and a host of each role that loads it reports that."""
    del f
    if w.state is not None and w.job.loading:
        version = w.versions[0] + 1
        w.versions = (version, w.versions[1])
        # The number stands for the time, so that the keys of states do not depend on the clock.
        for role in w.job.loading:
            w.later(Arrive(WeightsPublished(role, version, float(version))))


def spoil(w: WorldState, f: FaultMove) -> None:
    """The next load fails, and leaves the rank without a version."""
    del f
    w.versions = (w.versions[0], w.versions[1] + bool(w.job.loading))


def load(w: WorldState, a: LoadWeights) -> None:
    """Let a rank load a version; it reports how that went."""
    process = w.processes.get(a.actor)
    if process is None or (a.rank, a.incarnation) not in {(one.rank, one.incarnation) for one in process.ranks}:
        return
    others = tuple(one for one in process.held if one[0] != a.rank)
    version, bad = w.versions
    why = "out of memory" if bad else ""
    w.versions = (version, max(0, bad - 1))
    now = () if why else ((a.rank, a.incarnation, a.version),)
    process = w.processes[a.actor] = evolve(process, held=(*others, *now))
    w.report(process, WeightsLoaded(a.host.role, a.rank, a.incarnation, a.version, a.at, why))


def _told(state: JobState, key: RankKey) -> bool:
    """Whether PrimeMaster tells a rank as one that gets requests, as far as its weights are concerned."""
    return state.ranks[key].phase is RankPhase.READY and not why_out(state, key)


def ordered(after: JobState, actions: Iterable[Action]) -> Iterator[str]:
    """Yield the loads that take a rank out of the endpoints although too few others are left there."""
    for action in actions:
        if isinstance(action, LoadWeights):
            role, own = action.host.role, after.ranks[action.host.role, action.rank].weights
            plan, newest = after.job.roles[role].plan, after.roles[role].newest
            if plan.weights is None or newest is None or own is None or not own.at:
                continue
            if newest.version - own.version <= plan.weights.max_lag:
                left = sum(_told(after, (role, rank)) for rank in plan.ranks)
                if left < plan.weights.min_ready:
                    yield f"weights: {role}/{action.rank} loads, and {left} ranks are left of {plan.weights.min_ready}"


def served(w: WorldState) -> Iterator[str]:
    """Yield the ranks that are told as ready, and whose processes hold less than `maxLag` allows."""
    state = w.known
    for process in w.processes.values() if state.job.loading and state.verdict is None else ():
        held = {(rank, incarnation): version for rank, incarnation, version in process.held}
        for running in process.ranks:
            key = running.role, running.rank
            plan, newest = state.job.roles[running.role].plan.weights, state.roles[running.role].newest
            if plan is None or newest is None or key not in state.ranks or not _told(state, key):
                continue
            if state.ranks[key].incarnation != running.incarnation:
                continue
            version = held.get((running.rank, running.incarnation))
            if version is None or newest.version - version > plan.max_lag:
                yield f"weights: {key[0]}/{key[1]} gets requests with version {version}, the newest is {newest.version}"
