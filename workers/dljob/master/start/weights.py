"""Weights of servers: which ranks are stale, which load now, and why. Hosts load; this decides.

A rank is stale while it is more than `maxLag` versions behind the newest one, holds none, or failed to load. It gets no
requests then, and none while it loads: endpoints leave it out, and calls of other roles wait in its process, but for
methods that take any weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dljob.master.state import staleness
from dljob.master.state.actions import HoldCalls, LoadWeights
from dljob.master.state.events import WeightsLoaded, WeightsPublished
from dljob.master.state.evolve import evolve
from dljob.master.state.state import JobState, RankKey, RankPhase, RankState
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.weight_versions import PublishedWeights, RankWeights
from dljob.plan.role import HostKind, RolePlan
from dljob.plan.serving import WeightsPlan
from dljob.telemetry import reasons
from dljob.telemetry.wording import counted

FIRST_RETRY_S = 1.0
"""Seconds until a failed load is ordered again; each further failure doubles them."""
MOST_RETRY_S = 60.0
UNSERVED = 64
"""Number of versions that no rank has loaded whose events are remembered: of older ones no lag is told."""

_NONE = RankWeights()


@dataclass(frozen=True, slots=True)
class LoadDecision:
    """A rank that loads now, and why it may."""

    rank: int
    reason: str


# -- pure decisions


def choose_loading_ranks(
    role: RolePlan, newest: PublishedWeights, ranks: Mapping[int, RankState], now: float
) -> Sequence[LoadDecision]:
    """Return the ranks that load the newest version now.

    Stale ranks load at once: they get no requests anyway. Of the others so many as leave `min_ready` in the endpoints,
    those that are furthest behind first.
    """
    plan = role.weights
    if plan is None:
        return ()
    is_probed = bool(role.ports) or role.readiness is not None
    decisions: list[LoadDecision] = []
    serving_count, lagging = 0, list[tuple[int, int]]()
    for rank, rank_state in ranks.items():
        weights = rank_state.weights or _NONE
        if rank_state.phase is not RankPhase.READY or weights.loading is not None:
            continue
        stale_reason = staleness.stale_reason(plan, newest, weights)
        # A rank without ports and probe is called as long as it lives.
        gets_requests = rank_state.serving or not is_probed
        serving_count += gets_requests and not stale_reason
        if weights.at >= newest.at or (weights.retry_at is not None and weights.retry_at > now):
            continue
        if stale_reason:
            decisions.append(LoadDecision(rank, f"it is stale: {stale_reason}"))
        elif not gets_requests:
            decisions.append(LoadDecision(rank, "it gets no requests"))
        else:
            lagging.append((weights.version, rank))
    for _, rank in sorted(lagging)[: _free_count(plan, serving_count)]:
        decisions.append(LoadDecision(rank, f"{serving_count} are ready, and minReady is {plan.min_ready}"))
    return decisions


def _free_count(plan: WeightsPlan, serve: int) -> int:
    """Return how many of the ranks that get requests may load at a time."""
    return max(0, serve - plan.min_ready)


def retry_s(failures: int) -> float:
    """Return the pause after so many failed loads in a row."""
    return min(MOST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(failures - 1, 16))


# -- of a state


def status_of_weights(state: JobState, key: RankKey) -> Mapping[str, Any]:
    """Return what the status tells of a rank's weights; nothing for a role that loads none."""
    if state.job.roles[key[0]].plan.weights is None:
        return {}
    weights, is_live = state.ranks[key].weights or _NONE, state.ranks[key].phase.live
    reason = staleness.no_requests_reason(state, key)
    load_state = "Loading" if weights.loading is not None else "Stale" if reason else "Fresh"
    return {
        "weights": {
            "state": load_state if is_live else "None",
            "version": weights.version if weights.at and is_live else None,
            "newest": newest.version if (newest := state.roles[key[0]].newest) else None,
            **({"why": reason} if reason and is_live else {}),
        }
    }


def timers(s: JobState | StateTransaction) -> Iterator[float | None]:
    """Yield when failed loads are ordered again."""
    for role in s.job.loading:
        for rank in s.job.roles[role].ranks:
            rank_state, newest = s.ranks[role, rank], s.roles[role].newest
            if (
                rank_state.weights is None
                or rank_state.phase is not RankPhase.READY
                or rank_state.weights.loading is not None
            ):
                continue
            # Who holds the newest, or what a restore left as the newest, loads nothing: its timer would never stop.
            if newest is not None and rank_state.weights.at < newest.at:
                yield rank_state.weights.retry_at


def repeated_orders(tx: StateTransaction) -> Iterator[LoadWeights | HoldCalls]:
    """Yield the loads that have no answer, and whether calls wait, for a new epoch: it repeats them."""
    for role in tx.job.loading:
        for rank in tx.facts(role).ranks:
            rank_state = tx.ranks[role, rank]
            if (
                rank_state.phase is RankPhase.READY
                and rank_state.weights is not None
                and rank_state.weights.loading is not None
            ):
                yield _load_order(tx, (role, rank), rank_state.weights.loading)
            if rank_state.phase.live and tx.facts(role).plan.host is HostKind.THREAD:
                yield _hold_order(tx, (role, rank))


# -- events


def handle_published_version(tx: StateTransaction, event: WeightsPublished) -> None:
    """Take a newer version; the ranks of the role that lag too far behind are stale from here on."""
    role_state = tx.roles.get(event.role)
    if role_state is None or tx.facts(event.role).plan.weights is None:
        return
    newest_at = role_state.newest.at if role_state.newest is not None else 0.0
    # Another host has told it, or a newer one, or it was left.
    if max(newest_at, role_state.weights_left_at) >= event.at:
        return
    if reason := left_reason(tx, event.by):
        tx.because(f"{event.role}: version {event.version} of its weights is not taken: {reason}")
        return
    newest = PublishedWeights(event.version, event.at, event.since, event.first)
    learned_times = ((event.at, event.learned_since),) if event.learned_since else ()
    unserved = (*role_state.unserved, *learned_times)[-UNSERVED:]
    tx.set_role(event.role, evolve(role_state, newest=newest, unserved=unserved))
    with tx.batch_changes():
        for rank in tx.facts(event.role).ranks:
            # A load that failed may go well with another version.
            rank_state = tx.ranks[event.role, rank]
            if rank_state.weights is not None and rank_state.weights.retry_at is not None:
                tx.set_rank((event.role, rank), evolve(rank_state, weights=evolve(rank_state.weights, retry_at=None)))
            tx.changes.ranks.add((event.role, rank))
    tx.because(f"{event.role}: version {event.version} of its weights is the newest")


def _note_served_version(tx: StateTransaction, role: str, at: float) -> None:
    """Note how old the earliest event is that a rank of the role serves from now on, as the first one."""
    role_state = tx.roles[role]
    if times := [since for published_at, since in role_state.unserved if published_at <= at]:
        later_versions = tuple(version for version in role_state.unserved if version[0] > at)
        lag_s = round(max(0.0, tx.now - min(times)), 3)
        tx.set_role(role, evolve(role_state, unserved=later_versions, served_lag_s=lag_s))


def handle_load_answer(tx: StateTransaction, event: WeightsLoaded) -> None:
    """Take the answer of a load: the rank holds the version, or tries again after a pause."""
    key = (event.role, event.rank)
    rank_state = tx.ranks.get(key)
    if (
        rank_state is None
        or rank_state.incarnation != event.incarnation
        or rank_state.weights is None
        or rank_state.weights.loading is None
    ):
        return
    if rank_state.weights.loading.at != event.at:
        return
    old_weights = rank_state.weights
    if old_weights.left_reason:
        new_weights = RankWeights(problem=event.why or old_weights.left_reason)
        new_weights = evolve(old_weights, loading=None, left_reason="") if event.untouched else new_weights
        _set_after_failure(tx, key, new_weights)
        return
    if not event.why:
        _note_served_version(tx, event.role, event.at)
        tx.set_rank(key, evolve(rank_state, weights=RankWeights(event.version, event.at)))
        # A rank's ordinary loads are no news: one for each version and engine.
        if old_weights.failures or (rank_state.incarnation > 1 and not old_weights.at):
            tx.note(reasons.WEIGHTS_LOADED, f"{event.role}/{event.rank}", f"holds version {event.version}")
        return
    failures = old_weights.failures + 1
    pause_s = retry_s(failures)
    # Nobody knows what a rank holds after a load that went wrong.
    remaining_weights = old_weights if event.untouched else RankWeights()
    failed_weights = evolve(remaining_weights, loading=None, failures=failures, problem=event.why)
    failed_weights = evolve(failed_weights, retry_at=tx.now + pause_s)
    _set_after_failure(tx, key, failed_weights)
    tx.wake_at(tx.now + pause_s)
    message = f"version {event.version} was not loaded, again in {pause_s:g} s: {event.why}"
    tx.note(reasons.WEIGHTS_STALE, f"{event.role}/{event.rank}", message)


def _set_after_failure(tx: StateTransaction, key: RankKey, weights: RankWeights) -> None:
    """Set what a rank holds after a load that failed. A process that keeps calls waiting learns that it has failed."""
    rank_state = evolve(tx.ranks[key], weights=weights)
    tx.set_rank(key, rank_state)
    if rank_state.holds_calls and staleness.no_requests_reason(tx, key):
        tx.set_rank(key, evolve(rank_state, calls_held=rank_state.calls_held + 2))
        tx.do(_hold_order(tx, key))


def newest_versions(s: JobState | StateTransaction) -> tuple[tuple[str, PublishedWeights], ...]:
    """Return the newest version of each role that loads weights, for a cut of now."""
    newest_by_role = ((role, s.roles[role].newest) for role in s.job.loading)
    return tuple((role, version) for role, version in newest_by_role if version is not None)


def leave_versions_after_cut(tx: StateTransaction, cut: int, cut_versions: Mapping[str, PublishedWeights]) -> None:
    """Leave the versions that are newer than those of the cut: of steps that the job has left.

    Who holds such a version gets no requests until it has loaded another one. The version of the cut is the newest
    again: its channel may still have it.
    """
    for role in tx.job.loading:
        role_state = tx.roles[role]
        if role_state.newest is None:
            continue
        cut_version = cut_versions.get(role)
        cut_at = cut_version.at if cut_version is not None else 0.0
        left_at = max(role_state.newest.at, role_state.weights_left_at)
        tx.set_role(role, evolve(role_state, newest=cut_version, weights_left_at=left_at))
        left_ranks = [rank for rank in tx.facts(role).ranks if _leave_newer_weights(tx, (role, rank), cut_at, cut)]
        if left_ranks:
            _note_left_ranks(tx, role, left_ranks, cut)


def _note_left_ranks(tx: StateTransaction, role: str, left_ranks: Sequence[int], cut: int) -> None:
    names_text = ", ".join(f"{role}/{rank}" for rank in left_ranks[:3])
    ranks_text = names_text if len(left_ranks) <= 3 else f"{names_text} and {len(left_ranks) - 3} more"
    origin_text = f" of steps after cut {cut}" if cut else ", and the job begins anew"
    advice = "no requests until they have loaded others: publish after checkpoint.load()"
    tx.note(reasons.WEIGHTS_STALE, role, f"{ranks_text} hold or load weights{origin_text}: {advice}")


def _leave_newer_weights(tx: StateTransaction, key: RankKey, at: float, cut: int) -> bool:
    """Leave what a rank holds or loads if it was published later than `at`; return whether it was."""
    rank_state = tx.ranks[key]
    weights = rank_state.weights
    if weights is None:
        return False
    moment_text = f"the job went back to cut {cut}" if cut else "the job began anew"
    new_weights = weights
    if weights.at > at:
        problem = f"it holds version {weights.version}, and {moment_text}"
        new_weights = RankWeights(loading=weights.loading, left_reason=weights.left_reason, problem=problem)
    if weights.loading is not None and weights.loading.at > at:
        # It is waited for: an engine that is asked for two loads at a time may end with either.
        new_weights = evolve(new_weights, left_reason=f"it loaded version {weights.loading.version}, and {moment_text}")
    # The version of the cut may be loaded at once.
    tx.set_rank(key, evolve(rank_state, weights=evolve(new_weights, retry_at=None)))
    return new_weights is not weights


def left_reason(s: JobState | StateTransaction, publishers: Iterable[tuple[str, int]]) -> str:
    """Return why a version of these publishers is of steps that the job has left; empty: it is not."""
    for name, incarnation in publishers if s.cuts.restore_count else ():
        role, _, rank = name.rpartition("/")
        if name in s.cuts.pending_worlds or role in s.cuts.pending_worlds:
            return f"{name} has not gone back to cut {s.cuts.last_restored_number} yet"
        rank_state = s.ranks.get((role, int(rank)))
        if rank_state is not None and incarnation < rank_state.incarnation and (name in s.saves or role in s.saves):
            cut_text = f"{rank_state.incarnation} has gone back to cut {s.cuts.last_restored_number}"
            return f"it is of process {incarnation} of {name}, and {cut_text}"
    return ""


def order_loads(tx: StateTransaction) -> None:
    """Order the loads that may begin after a change of a role or of its ranks."""
    if tx.job.loading and not tx.ending:
        touched_roles = tx.changes.roles.union(role for role, _ in tx.changes.ranks)
        roles = [role for role in tx.job.loading if role in touched_roles]
        _begin_loads(tx, roles)
        for role in roles:
            if tx.facts(role).plan.host is HostKind.THREAD:
                _hold_calls(tx, role)


def _hold_calls(tx: StateTransaction, role: str) -> None:
    """Tell the ranks of a role whose weights have become stale, or fresh, to keep calls waiting, or to serve them."""
    for rank in tx.facts(role).ranks:
        key = role, rank
        rank_state = tx.ranks[key]
        if rank_state.phase.live and bool(staleness.no_requests_reason(tx, key)) is not rank_state.holds_calls:
            tx.set_rank(key, evolve(rank_state, calls_held=rank_state.calls_held + 1))
            tx.do(_hold_order(tx, key))


def order_overdue_loads(tx: StateTransaction) -> None:
    """Order the loads whose pause is over."""
    for role in tx.job.loading:
        for rank in tx.facts(role).ranks:
            rank_state = tx.ranks[role, rank]
            if (
                rank_state.weights is not None
                and rank_state.weights.retry_at is not None
                and rank_state.weights.retry_at <= tx.now
            ):
                # Where others have to load first, a change of theirs brings its turn: a timer would be due for ever.
                tx.set_rank((role, rank), evolve(rank_state, weights=evolve(rank_state.weights, retry_at=None)))
    _begin_loads(tx, tx.job.loading)


def _begin_loads(tx: StateTransaction, roles: Iterable[str]) -> None:
    for role in roles:
        plan, newest = tx.facts(role).plan, tx.roles[role].newest
        if newest is not None:
            ranks = {rank: tx.ranks[role, rank] for rank in plan.ranks}
            _order_decided_loads(tx, role, newest, choose_loading_ranks(plan, newest, ranks, tx.now))


def _order_decided_loads(
    tx: StateTransaction, role: str, newest: PublishedWeights, decisions: Iterable[LoadDecision]
) -> None:
    ranks_by_reason: dict[str, list[int]] = {}
    for decision in decisions:
        key = role, decision.rank
        rank_state = tx.ranks[key]
        new_weights = evolve(rank_state.weights or _NONE, loading=newest, retry_at=None)
        tx.set_rank(key, evolve(rank_state, weights=new_weights))
        tx.do(_load_order(tx, key, newest))
        ranks_by_reason.setdefault(decision.reason, []).append(decision.rank)
    for reason, ranks in ranks_by_reason.items():
        ranks_text = f"{counted(len(ranks), 'rank')} of {role} load version {newest.version}"
        tx.because(f"{ranks_text} ({ranks[0]} first): {reason}")


def _load_order(s: JobState | StateTransaction, key: RankKey, version: PublishedWeights) -> LoadWeights:
    host = s.job.roles[key[0]].host_of(key[1])
    host_state = s.hosts[host]
    return LoadWeights(
        host, host_state.incarnation, host_state.actor, key[1], s.ranks[key].incarnation, version.version, version.at
    )


def _hold_order(tx: StateTransaction, key: RankKey) -> HoldCalls:
    host = tx.facts(key[0]).host_of(key[1])
    host_state = tx.hosts[host]
    rank_state = tx.ranks[key]
    return HoldCalls(
        *(host, host_state.incarnation, host_state.actor, key[1], rank_state.incarnation, rank_state.calls_held),
        staleness.no_requests_reason(tx, key),
    )
