"""Weights of servers: publications, loads, and the invariants of who gets requests.

Nobody whom PrimeMaster tells as ready, or has serve calls, lags beyond `maxLag`, or holds weights of steps that the job
has left when it went back to a cut; and a load leaves `minReady` ranks that are told so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dljob.master.state.actions import Action, HoldCalls, LoadWeights
from dljob.master.state.checkpoint_ids import CheckpointId, RunId
from dljob.master.state.cuts import CutQueue, checkpoints_allowed_by_cuts
from dljob.master.state.events import (
    CheckpointCommitted,
    CheckpointDecided,
    CutAsked,
    CutBegun,
    CutSealed,
    CutTaken,
    WeightsLoaded,
    WeightsPublished,
)
from dljob.master.state.evolve import evolve
from dljob.master.state.staleness import no_requests_reason
from dljob.master.state.state import JobState, RankKey, RankPhase
from dljob.testing.world.model import Arrive, FaultMove
from dljob.testing.world.state import WorldState


def publish(w: WorldState, f: FaultMove) -> None:
    """All channels have a new version, and a host of each role that loads it reports that, in `value` seconds."""
    incarnation, restored = _trainer(w)
    # A trainer that takes part in cuts restores before it trains.
    if w.state is not None and w.job.loading and (restored or not w.cut_versions):
        version = w.versions[0] + 1
        w.versions = (version, w.versions[1])
        # The number stands for the time, so that the keys of states do not depend on the clock.
        by = ((f"{w.job.drivers[0]}/0", incarnation),) if w.cut_versions else ()
        for role in w.job.loading:
            w.later(Arrive(WeightsPublished(role, version, float(version), by=by)), f.value)


def spoil(w: WorldState, f: FaultMove) -> None:
    """The next load fails, and leaves the rank without a version."""
    del f
    w.versions = (w.versions[0], w.versions[1] + bool(w.job.loading))


def _trainer(w: WorldState) -> tuple[int, bool]:
    """Return the incarnation of the trainer, rank 0 of the first driver role, and whether it has restored."""
    key = w.job.drivers[0], 0
    incarnations = w.running.get(key)
    incarnation = incarnations[-1][0] if incarnations else 0
    saves = w.known.saves.get(f"{key[0]}/0")
    return incarnation, saves is not None and saves.decision(RunId(1, incarnation)) is not None


def take_cut(w: WorldState, f: FaultMove) -> None:
    """The trainer takes part in a cut, which is committed unless something of it is late."""
    del f
    incarnation, restored = _trainer(w)
    if w.state is None or not restored or w.known.cuts.open_cut is not None:
        return
    role, number = w.job.drivers[0], w.known.cuts.last_number + 1
    mark = CheckpointId(RunId(1, incarnation), number)
    w.cut_versions[number] = w.versions[0]
    for event in (
        CutAsked(f"{role}/0"),
        CutBegun(number),
        CutTaken(number, role, 0, incarnation, mark),
        CheckpointCommitted(f"{role}/0", mark),
        CutSealed(number, (CutQueue("samples", "", 0, 0, 0),)),
    ):
        w.later(Arrive(event))


def go_back(w: WorldState, f: FaultMove) -> None:
    """The trainer restores the last cut, or begins, unless it has done so already."""
    del f
    incarnation, restored = _trainer(w)
    if w.state is None or not incarnation or restored:
        return
    world = f"{w.job.drivers[0]}/0"
    allowed = checkpoints_allowed_by_cuts(w.known.cuts, world)
    if allowed is not None:
        w.left_versions[incarnation] = (w.cut_versions[allowed[0].step] if allowed else 0, w.versions[0])
    w.later(Arrive(CheckpointDecided(world, RunId(1, incarnation), allowed[0] if allowed else None)))


def load(w: WorldState, a: LoadWeights) -> None:
    """Let a rank load a version; it reports how that went."""
    process = w.processes.get(a.actor)
    if process is None or (a.rank, a.incarnation) not in {(entry.rank, entry.incarnation) for entry in process.ranks}:
        return
    others = tuple(entry for entry in process.held_versions if entry[0] != a.rank)
    version, bad = w.versions
    if w.cut_versions and a.version < version - 1:
        problem = "the channel has it no more"
        w.report(process, WeightsLoaded(a.host.role, a.rank, a.incarnation, a.version, a.at, problem, untouched=True))
        return
    problem = "out of memory" if bad else ""
    w.versions = (version, max(0, bad - 1))
    now = () if problem else ((a.rank, a.incarnation, a.version),)
    process = w.processes[a.actor] = evolve(process, held_versions=(*others, *now))
    w.report(process, WeightsLoaded(a.host.role, a.rank, a.incarnation, a.version, a.at, problem))


def hold(w: WorldState, a: HoldCalls) -> None:
    """Let a rank keep calls waiting, or serve them."""
    process = w.processes.get(a.actor)
    if process is not None:
        known = {(rank, incarnation): (number, waits) for rank, incarnation, number, waits in process.holds}
        key = a.rank, a.incarnation
        known[key] = max(known.get(key, (0, False)), (a.number, bool(a.reason)))
        holds = tuple((*key, *value) for key, value in sorted(known.items()))
        w.processes[a.actor] = evolve(process, holds=holds)


def _gets_requests(state: JobState, key: RankKey) -> bool:
    """Whether PrimeMaster tells a rank as one that gets requests, as far as its weights are concerned."""
    return state.ranks[key].phase is RankPhase.READY and not no_requests_reason(state, key)


def ordered(after: JobState, actions: Iterable[Action]) -> Iterator[str]:
    """Yield the loads that take a rank out of the endpoints although too few others are left there."""
    for action in actions:
        if isinstance(action, LoadWeights):
            role, rank_weights = action.host.role, after.ranks[action.host.role, action.rank].weights
            plan, newest = after.job.roles[role].plan, after.roles[role].newest
            if plan.weights is None or newest is None or rank_weights is None or not rank_weights.at:
                continue
            if newest.version - rank_weights.version <= plan.weights.max_lag:
                ready_count = sum(_gets_requests(after, (role, rank)) for rank in plan.ranks)
                if ready_count < plan.weights.min_ready:
                    rank_counts = f"{ready_count} ranks are left of {plan.weights.min_ready}"
                    yield f"weights: {role}/{action.rank} loads, and {rank_counts}"


def ranks_with_left_weights(w: WorldState) -> Iterator[str]:
    """Yield the ranks that are told as ready, and whose processes hold weights of steps that the job has left."""
    state = w.known
    saves = state.saves.get(f"{w.job.drivers[0]}/0") if w.left_versions else None
    if saves is None:
        return
    spans = [span for incarnation, span in w.left_versions.items() if saves.decision(RunId(1, incarnation)) is not None]
    for process in w.processes.values() if spans else ():
        key_by_rank = {(running.rank, running.incarnation): (running.role, running.rank) for running in process.ranks}
        for rank, incarnation, version in process.held_versions:
            key = key_by_rank.get((rank, incarnation))
            if key is None or state.ranks[key].incarnation != incarnation or not _gets_requests(state, key):
                continue
            if any(after < version <= until for after, until in spans):
                yield f"weights: {key[0]}/{rank} gets requests with version {version} of steps that were left"


def served(w: WorldState) -> Iterator[str]:
    """Yield the ranks that are told as ready, and whose processes hold less than `maxLag` allows."""
    state = w.known
    for process in w.processes.values() if state.job.loading and state.verdict is None else ():
        version_by_rank = {(rank, incarnation): version for rank, incarnation, version in process.held_versions}
        for running in process.ranks:
            key = running.role, running.rank
            plan, newest = state.job.roles[running.role].plan.weights, state.roles[running.role].newest
            if plan is None or newest is None or key not in state.ranks:
                continue
            reason, rank_state = no_requests_reason(state, key), state.ranks[key]
            if rank_state.phase.live and reason and not rank_state.holds_calls:
                yield f"weights: {key[0]}/{key[1]} serves calls, though {reason}"
            if not _gets_requests(state, key):
                continue
            if state.ranks[key].incarnation != running.incarnation:
                continue
            version = version_by_rank.get((running.rank, running.incarnation))
            if version is None or newest.version - version > plan.max_lag:
                yield f"weights: {key[0]}/{key[1]} gets requests with version {version}, the newest is {newest.version}"
