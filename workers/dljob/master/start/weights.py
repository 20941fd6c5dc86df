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
    why: str


# -- pure decisions


def who_loads(
    role: RolePlan, newest: PublishedWeights, ranks: Mapping[int, RankState], now: float
) -> Sequence[LoadDecision]:
    """Return the ranks that load the newest version now.

    Stale ranks load at once: they get no requests anyway. Of the others so many as leave `min_ready` in the endpoints,
    those that are furthest behind first.
    """
    plan = role.weights
    if plan is None:
        return ()
    probed = bool(role.ports) or role.readiness is not None
    found: list[LoadDecision] = []
    serve, behind = 0, list[tuple[int, int]]()
    for rank, rank_state in ranks.items():
        held = rank_state.weights or _NONE
        if rank_state.phase is not RankPhase.READY or held.loading is not None:
            continue
        stale = staleness.why_stale(plan, newest, held)
        # A rank without ports and probe is called as long as it lives.
        gets = rank_state.serving or not probed
        serve += gets and not stale
        if held.at >= newest.at or (held.retry_at is not None and held.retry_at > now):
            continue
        if stale:
            found.append(LoadDecision(rank, f"it is stale: {stale}"))
        elif not gets:
            found.append(LoadDecision(rank, "it gets no requests"))
        else:
            behind.append((held.version, rank))
    for _, rank in sorted(behind)[: _free(plan, serve)]:
        found.append(LoadDecision(rank, f"{serve} are ready, and minReady is {plan.min_ready}"))
    return found


def _free(plan: WeightsPlan, serve: int) -> int:
    """Return how many of the ranks that get requests may load at a time."""
    return max(0, serve - plan.min_ready)


def retry_s(failures: int) -> float:
    """Return the pause after so many failed loads in a row."""
    return min(MOST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(failures - 1, 16))


# -- of a state


def shown(state: JobState, key: RankKey) -> Mapping[str, Any]:
    """Return what the status tells of a rank's weights; nothing for a role that loads none."""
    if state.job.roles[key[0]].plan.weights is None:
        return {}
    held, why, live = state.ranks[key].weights or _NONE, staleness.why_out(state, key), state.ranks[key].phase.live
    told = "Loading" if held.loading is not None else "Stale" if why else "Fresh"
    return {
        "weights": {
            "state": told if live else "None",
            "version": held.version if held.at and live else None,
            "newest": newest.version if (newest := state.roles[key[0]].newest) else None,
            **({"why": why} if why and live else {}),
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


def orders(d: StateTransaction) -> Iterator[LoadWeights | HoldCalls]:
    """Yield the loads that have no answer, and whether calls wait, for a new epoch: it repeats them."""
    for role in d.job.loading:
        for rank in d.facts(role).ranks:
            rank_state = d.ranks[role, rank]
            if (
                rank_state.phase is RankPhase.READY
                and rank_state.weights is not None
                and rank_state.weights.loading is not None
            ):
                yield _order(d, (role, rank), rank_state.weights.loading)
            if rank_state.phase.live and d.facts(role).plan.host is HostKind.THREAD:
                yield _hold_order(d, (role, rank))


# -- events


def published(d: StateTransaction, event: WeightsPublished) -> None:
    """Take a newer version; the ranks of the role that lag too far behind are stale from here on."""
    role = d.roles.get(event.role)
    if role is None or d.facts(event.role).plan.weights is None:
        return
    known = role.newest.at if role.newest is not None else 0.0
    if max(known, role.weights_left_at) >= event.at:  # another host has told it, or a newer one, or it was left
        return
    if why := why_left(d, event.by):
        d.because(f"{event.role}: version {event.version} of its weights is not taken: {why}")
        return
    newest = PublishedWeights(event.version, event.at, event.since, event.first)
    learned = ((event.at, event.learned_since),) if event.learned_since else ()
    d.set_role(event.role, evolve(role, newest=newest, unserved=(*role.unserved, *learned)[-UNSERVED:]))
    with d.many():
        for rank in d.facts(event.role).ranks:
            # A load that failed may go well with another version.
            rank_state = d.ranks[event.role, rank]
            if rank_state.weights is not None and rank_state.weights.retry_at is not None:
                d.set_rank((event.role, rank), evolve(rank_state, weights=evolve(rank_state.weights, retry_at=None)))
            d.touched.ranks.add((event.role, rank))
    d.because(f"{event.role}: version {event.version} of its weights is the newest")


def _served(d: StateTransaction, role: str, at: float) -> None:
    """Note how old the earliest event is that a rank of the role serves from now on, as the first one."""
    role_state = d.roles[role]
    if times := [since for published_at, since in role_state.unserved if published_at <= at]:
        rest = tuple(one for one in role_state.unserved if one[0] > at)
        d.set_role(role, evolve(role_state, unserved=rest, served_lag_s=round(max(0.0, d.now - min(times)), 3)))


def loaded(d: StateTransaction, event: WeightsLoaded) -> None:
    """Take the answer of a load: the rank holds the version, or tries again after a pause."""
    key = (event.role, event.rank)
    rank_state = d.ranks.get(key)
    if (
        rank_state is None
        or rank_state.incarnation != event.incarnation
        or rank_state.weights is None
        or rank_state.weights.loading is None
    ):
        return
    if rank_state.weights.loading.at != event.at:
        return
    before = rank_state.weights
    if before.left:
        kept = evolve(before, loading=None, left="") if event.untouched else RankWeights(why=event.why or before.left)
        _set_after_failure(d, key, kept)
        return
    if not event.why:
        _served(d, event.role, event.at)
        d.set_rank(key, evolve(rank_state, weights=RankWeights(event.version, event.at)))
        # A rank's ordinary loads are no news: one for each version and engine.
        if before.failures or (rank_state.incarnation > 1 and not before.at):
            d.note(reasons.WEIGHTS_LOADED, f"{event.role}/{event.rank}", f"holds version {event.version}")
        return
    failures = before.failures + 1
    pause = retry_s(failures)
    # Nobody knows what a rank holds after a load that went wrong.
    held = before if event.untouched else RankWeights()
    failed = evolve(held, loading=None, failures=failures, retry_at=d.now + pause, why=event.why)
    _set_after_failure(d, key, failed)
    d.wake_at(d.now + pause)
    said = f"version {event.version} was not loaded, again in {pause:g} s: {event.why}"
    d.note(reasons.WEIGHTS_STALE, f"{event.role}/{event.rank}", said)


def _set_after_failure(d: StateTransaction, key: RankKey, weights: RankWeights) -> None:
    """Set what a rank holds after a load that failed. A process that keeps calls waiting learns that it has failed."""
    rank_state = evolve(d.ranks[key], weights=weights)
    d.set_rank(key, rank_state)
    if rank_state.holds_calls and staleness.why_out(d, key):
        d.set_rank(key, evolve(rank_state, calls_held=rank_state.calls_held + 2))
        d.do(_hold_order(d, key))


def newest_versions(s: JobState | StateTransaction) -> tuple[tuple[str, PublishedWeights], ...]:
    """Return the newest version of each role that loads weights, for a cut of now."""
    found = ((role, s.roles[role].newest) for role in s.job.loading)
    return tuple((role, version) for role, version in found if version is not None)


def cut_restored(d: StateTransaction, cut: int, of: Mapping[str, PublishedWeights]) -> None:
    """Leave the versions that are newer than those of the cut: of steps that the job has left.

    Who holds such a version gets no requests until it has loaded another one. The version of the cut is the newest
    again: its channel may still have it.
    """
    for role in d.job.loading:
        role_state = d.roles[role]
        if role_state.newest is None:
            continue
        back = of.get(role)
        at = back.at if back is not None else 0.0
        until = max(role_state.newest.at, role_state.weights_left_at)
        d.set_role(role, evolve(role_state, newest=back, weights_left_at=until))
        left = [rank for rank in d.facts(role).ranks if _leave(d, (role, rank), at, cut)]
        if left:
            _tell_left(d, role, left, cut)


def _tell_left(d: StateTransaction, role: str, left: Sequence[int], cut: int) -> None:
    shown = ", ".join(f"{role}/{rank}" for rank in left[:3])
    who = shown if len(left) <= 3 else f"{shown} and {len(left) - 3} more"
    what = f"hold or load weights of steps after cut {cut}" if cut else "hold or load weights, and the job begins anew"
    then = "no requests until they have loaded others: publish after checkpoint.load()"
    d.note(reasons.WEIGHTS_STALE, role, f"{who} {what}: {then}")


def _leave(d: StateTransaction, key: RankKey, at: float, cut: int) -> bool:
    """Leave what a rank holds or loads if it was published later than `at`; return whether it was."""
    rank = d.ranks[key]
    held = rank.weights
    if held is None:
        return False
    where = f"the job went back to cut {cut}" if cut else "the job began anew"
    made = held
    if held.at > at:
        made = RankWeights(loading=held.loading, left=held.left, why=f"it holds version {held.version}, and {where}")
    if held.loading is not None and held.loading.at > at:
        # It is waited for: an engine that is asked for two loads at a time may end with either.
        made = evolve(made, left=f"it loaded version {held.loading.version}, and {where}")
    # The version of the cut may be loaded at once.
    d.set_rank(key, evolve(rank, weights=evolve(made, retry_at=None)))
    return made is not held


def why_left(s: JobState | StateTransaction, by: Iterable[tuple[str, int]]) -> str:
    """Return why a version of these publishers is of steps that the job has left; empty: it is not."""
    for name, life in by if s.cuts.epoch else ():
        role, _, rank = name.rpartition("/")
        if name in s.cuts.pending or role in s.cuts.pending:
            return f"{name} has not gone back to cut {s.cuts.back} yet"
        rank_state = s.ranks.get((role, int(rank)))
        if rank_state is not None and life < rank_state.incarnation and (name in s.saves or role in s.saves):
            return f"it is of process {life} of {name}, and {rank_state.incarnation} has gone back to cut {s.cuts.back}"
    return ""


def follow(d: StateTransaction) -> None:
    """Order the loads that may begin after a change of a role or of its ranks."""
    if d.job.loading and not d.ending:
        touched = d.touched.roles.union(role for role, _ in d.touched.ranks)
        roles = [role for role in d.job.loading if role in touched]
        _begin(d, roles)
        for role in roles:
            if d.facts(role).plan.host is HostKind.THREAD:
                _hold_calls(d, role)


def _hold_calls(d: StateTransaction, role: str) -> None:
    """Tell the ranks of a role whose weights have become stale, or fresh, to keep calls waiting, or to serve them."""
    for rank in d.facts(role).ranks:
        key = role, rank
        rank_state = d.ranks[key]
        if rank_state.phase.live and bool(staleness.why_out(d, key)) is not rank_state.holds_calls:
            d.set_rank(key, evolve(rank_state, calls_held=rank_state.calls_held + 1))
            d.do(_hold_order(d, key))


def tick(d: StateTransaction) -> None:
    """Order the loads whose pause is over."""
    for role in d.job.loading:
        for rank in d.facts(role).ranks:
            rank_state = d.ranks[role, rank]
            if (
                rank_state.weights is not None
                and rank_state.weights.retry_at is not None
                and rank_state.weights.retry_at <= d.now
            ):
                # Where others have to load first, a change of theirs brings its turn: a timer would be due for ever.
                d.set_rank((role, rank), evolve(rank_state, weights=evolve(rank_state.weights, retry_at=None)))
    _begin(d, d.job.loading)


def _begin(d: StateTransaction, roles: Iterable[str]) -> None:
    for role in roles:
        plan, newest = d.facts(role).plan, d.roles[role].newest
        if newest is not None:
            ranks = {rank: d.ranks[role, rank] for rank in plan.ranks}
            _order_all(d, role, newest, who_loads(plan, newest, ranks, d.now))


def _order_all(d: StateTransaction, role: str, newest: PublishedWeights, found: Iterable[LoadDecision]) -> None:
    words: dict[str, list[int]] = {}
    for one in found:
        key = role, one.rank
        rank_state = d.ranks[key]
        held = evolve(rank_state.weights or _NONE, loading=newest, retry_at=None)
        d.set_rank(key, evolve(rank_state, weights=held))
        d.do(_order(d, key, newest))
        words.setdefault(one.why, []).append(one.rank)
    for why, ranks in words.items():
        d.because(f"{counted(len(ranks), 'rank')} of {role} load version {newest.version} ({ranks[0]} first): {why}")


def _order(s: JobState | StateTransaction, key: RankKey, version: PublishedWeights) -> LoadWeights:
    host = s.job.roles[key[0]].host_of(key[1])
    host_state = s.hosts[host]
    return LoadWeights(
        host, host_state.life, host_state.actor, key[1], s.ranks[key].incarnation, version.version, version.at
    )


def _hold_order(d: StateTransaction, key: RankKey) -> HoldCalls:
    host = d.facts(key[0]).host_of(key[1])
    host_state = d.hosts[host]
    rank = d.ranks[key]
    return HoldCalls(
        *(host, host_state.life, host_state.actor, key[1], rank.incarnation, rank.calls_held), staleness.why_out(d, key)
    )
