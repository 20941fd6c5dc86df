"""Invariants of servers: who is among the endpoints, what follows a failed probe, and how long a drain takes."""

from __future__ import annotations

from collections.abc import Iterator

from dljob.master.state import limits
from dljob.master.state.actions import Action, KillHost, LeaveGroup, Release, StopRanks
from dljob.master.state.events import (
    Event,
    HangFound,
    HostLost,
    MasterStarted,
    RankEnded,
    RankServes,
    SpareLost,
    Tick,
)
from dljob.master.state.state import HostPhase, JobState, RankKey, RankPhase, Step
from dljob.master.state.views import Level, Reason
from dljob.master.status import endpoints, is_endpoint
from dljob.testing.world.state import WorldState

_LEVELS = [level.value for level in (Level.IN_PROCESS, Level.PROCESS, Level.ROLE_GROUP, Level.ROLE, Level.JOB)]
SLACK_S = 1.0
ACT_S = 5.0
"""Time for PrimeMaster to hear of an announcement, and to act on it."""


def listed(state: JobState) -> dict[RankKey, int]:
    """Return the (role, rank) -> incarnation of all endpoints, as other ranks are told them."""
    return {(role, row["rank"]): row["incarnation"] for role, rows in endpoints(state).items() for row in rows}


def _listed(state: JobState, key: RankKey) -> bool:
    """Whether `listed` has a rank. A step is about a few ranks, of which the job may have thousands."""
    facts = state.job.roles.get(key[0])
    if facts is None or not facts.plan.ports or key not in state.ranks:
        return False
    return is_endpoint(state, key) and key[1] in facts.ranks


def check_step(w: WorldState, before: JobState, event: Event, step: Step) -> Iterator[str]:
    """Return what a step breaks: endpoints, the answer to a failed probe, and the deadline of a drain."""
    new = step.state
    if isinstance(event, RankServes):
        key = (event.role, event.rank)
        if event.incarnation >= w.heard.get(key, (0, False))[0]:
            w.heard[key] = (event.incarnation, event.ready)
        yield from _by_word(w, new, (key,))
    if isinstance(event, RankEnded) and event.outcome.reason is Reason.UNHEALTHY:
        yield from _restarts(before, event, new)
    if isinstance(event, MasterStarted):
        yield from _forgotten(before, new)
    if isinstance(event, Tick):
        yield from _cut_short(w, before, step)
    yield from _told_late(new, step.actions)
    yield from _at_work(before, event, step)
    _record(w, before, step)


def _record(w: WorldState, before: JobState, step: Step) -> None:
    """Keep the times of orders to drain, and forget those of ranks that are gone."""
    now = w.last
    for action in step.actions:
        if isinstance(action, StopRanks) and step.state.job.roles[action.host.role].plan.drain is not None:
            for rank in action.ranks:
                key = (action.host.role, rank, step.state.ranks[action.host.role, rank].incarnation)
                w.asked[key] = (w.asked.get(key, (now, now))[0], now)
    if w.asked and step.state.ranks is not before.ranks:
        for role, rank, incarnation in list(w.asked):
            rank_state = step.state.ranks.get((role, rank))
            if rank_state is None or rank_state.incarnation != incarnation or not rank_state.phase.live:
                del w.asked[role, rank, incarnation]


def _by_word(w: WorldState, state: JobState, keys: tuple[RankKey, ...]) -> Iterator[str]:
    """The endpoints are ranks whose live incarnation said last that it serves."""
    for key in keys:
        if _listed(state, key) and w.heard.get(key) != (state.ranks[key].incarnation, True):
            incarnation = state.ranks[key].incarnation
            yield f"endpoints: {key[0]}/{key[1]} is one as {incarnation}, its last word was {w.heard.get(key)}"


def _told_late(state: JobState, actions: tuple[Action, ...]) -> Iterator[str]:
    """A rank that PrimeMaster stops is no endpoint when its order leaves."""
    ending = [action for action in actions if isinstance(action, StopRanks | KillHost | LeaveGroup)]
    for action in ending:
        host_state = state.hosts.get(action.host)
        # The order may be about an earlier process of the host.
        if (
            action.host.index < 0
            or host_state is None
            or (isinstance(action, KillHost) and host_state.incarnation != action.incarnation)
        ):
            continue
        host_ranks = state.job.roles[action.host.role].ranks_of(action.host.index)
        ranks = (action.rank,) if isinstance(action, LeaveGroup) else getattr(action, "ranks", host_ranks)
        for rank in ranks:
            if _listed(state, (action.host.role, rank)):
                yield f"endpoints: {action.host.role}/{rank} is one while it is ordered to end"


def _restarts(before: JobState, event: RankEnded, after: JobState) -> Iterator[str]:
    """A rank whose probe failed restarts, by the level of its role or a larger one, or the job ends."""
    key = (event.role, event.rank)
    old, new = before.ranks.get(key), after.ranks.get(key)
    stands = before.phase.active and old is not None and old.phase in (RankPhase.STARTING, RankPhase.READY)
    if old is None or new is None or not stands or old.incarnation != event.incarnation or after.verdict is not None:
        return
    begun = (incident_begun for number, incident_begun in after.incidents.items() if number not in before.incidents)
    # A role that waits for another one to complete begins anew after a restart of the job, and is no member of it.
    anew = (
        next((incident_begun for incident_begun in begun if incident_begun.level is Level.JOB), None)
        if not new.incident
        else None
    )
    incident = after.incidents.get(new.incident, anew)
    level = after.job.plan.roles[event.role].restart_level
    if incident is None:
        yield f"unhealthy: {event.role}/{event.rank} failed its probe, and is {new.phase} without a restart"
    elif level in _LEVELS and _LEVELS.index(incident.level.value) < _LEVELS.index(level):
        yield f"unhealthy: {event.role}/{event.rank} restarts by {incident.level}, its role says {level}"


def _cut_short(w: WorldState, before: JobState, step: Step) -> Iterator[str]:
    """No deadline ends a server that drains sooner than its drain allows.

    A job that fails is released at once, whatever its ranks are at.
    """
    freed = before.verdict is not None and any(isinstance(action, Release) for action in step.actions)
    killed = {action.host for action in step.actions if isinstance(action, KillHost)}
    for (role, rank, incarnation), (first, _) in w.asked.items():
        host = before.job.roles[role].host_of(rank)
        unit = before.job.roles[role].unit_of(host)
        # A node whose end is announced may have too little time.
        moves = before.units[unit].node in before.departures and before.units[unit] != step.state.units.get(unit)
        rank_state = before.ranks.get((role, rank))
        if rank_state is None or rank_state.incarnation != incarnation or not rank_state.phase.live or moves:
            continue
        if (freed or host in killed) and w.last - first < before.job.plan.roles[role].drain_s:
            yield f"drain: {role}/{rank} is ended {w.last - first:.1f} s after it was asked to drain"


def _at_work(before: JobState, event: Event, step: Step) -> Iterator[str]:
    """A server is asked to end before its process is killed, if nothing but PrimeMaster's decision ends it.

    What is lost, frozen or excluded has no time for that, and a node whose end is announced may have too little. A host
    that does not end one of its ranks in time is killed with the others.
    """
    excluded_nodes = {*step.state.exclusions, *before.exclusions, *before.departures, *step.state.departures}
    usable_nodes = {node.id for node in step.state.nodes} - excluded_nodes
    ended = (event.role, event.rank) if isinstance(event, RankEnded) else None
    for action in step.actions if not isinstance(event, HostLost | SpareLost | HangFound) else ():
        if not isinstance(action, KillHost) or action.host.index < 0:
            continue
        host_state, facts = before.hosts[action.host], before.job.roles[action.host.role]
        if (
            facts.plan.drain is None
            or host_state.phase is not HostPhase.READY
            or host_state.incarnation != action.incarnation
        ):
            continue
        ranks = facts.ranks_of(action.host.index)
        late = isinstance(event, Tick) and any(
            before.ranks[facts.plan.name, rank].phase is RankPhase.STOPPING for rank in ranks
        )
        for rank in ranks if host_state.node in usable_nodes and not late else ():
            key = facts.plan.name, rank
            if before.ranks[key].phase is RankPhase.READY and key != ended:
                yield f"drain: {facts.plan.name}/{rank} is killed at work, nobody asked it to drain"


def departs(w: WorldState, state: JobState, node: str) -> Iterator[str]:
    """A server is no endpoint any more when its node ends as announced, if PrimeMaster could act on it in time."""
    departure = state.departures.get(node)
    is_due = state.wake is not None and state.wake <= w.now
    # Fleets take turns, which may be too many for one notice.
    if departure is None or departure.since + ACT_S > w.now or is_due or not w.serving:
        return
    for role, rank in listed(state):
        facts = state.job.roles[role]
        at = departure.gone_at - limits.DEPART_S - facts.plan.drain_s + ACT_S
        if facts.plan.drain is None or facts.fleet or at > w.now:
            continue
        if state.units[facts.unit_of(facts.host_of(rank))].node == node:
            announced = f"announced {w.now - departure.since:.0f} s before"
            yield f"drain: {role}/{rank} serves when {node} ends, which was {announced}"


def at_rest(w: WorldState, state: JobState) -> Iterator[str]:
    """Return what is broken while nothing may be pending about it."""
    yield from _by_word(w, state, tuple(listed(state)))
    # The release of the job ends everything at once.
    if state.verdict is None or state.verdict.release_at is None:
        yield from _never_ends(w, state)
    if not w.arriving and state.verdict is None:
        yield from _unlike(w, state)


def _unlike(w: WorldState, state: JobState) -> Iterator[str]:
    """With no report on its way, the endpoints are the servers that are ready."""
    listed_ranks = listed(state)
    for process in w.processes.values():
        for running in process.ranks if process.actor in w.watched and w.reachable(process.node) else ():
            rank_state = state.ranks.get((running.role, running.rank))
            known = (
                rank_state is not None
                and rank_state.incarnation == running.incarnation
                and rank_state.phase is RankPhase.READY
            )
            word = w.said.get(running)
            if known and word is not None and word != ((running.role, running.rank) in listed_ranks):
                list_text = f"PrimeMaster lists {sorted(listed_ranks)}"
                yield f"endpoints: {running.role}/{running.rank} said {word}, and {list_text}"


def _never_ends(w: WorldState, state: JobState) -> Iterator[str]:
    """A server that ignores its drain is ended after a while: PrimeMaster's timer says when."""
    drain_s = max(plan.drain_s for plan in state.job.plan.roles.values())
    most = drain_s + limits.SIGTERM_GRACE_S + limits.HOST_STOP_S + SLACK_S
    for (role, rank, _), (_, last) in w.asked.items():
        if state.ranks[role, rank].phase is RankPhase.STOPPING and (state.wake is None or state.wake > last + most):
            yield f"drain: {role}/{rank} may drain for ever, it was asked at {last}"


def _forgotten(before: JobState, after: JobState) -> Iterator[str]:
    """A new PrimeMaster has the endpoints of the one before it."""
    lost_endpoints = set(listed(before).items()) - set(listed(after).items()) if after.verdict is None else ()
    for (role, rank), incarnation in sorted(lost_endpoints):
        if after.ranks[role, rank].phase is RankPhase.READY:
            yield f"endpoints: a new PrimeMaster does not know that {role}/{rank} serves as {incarnation}"
