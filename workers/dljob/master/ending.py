"""Ending: ranks that end by themselves, the verdict, leaving in good order, release, and the last word."""

from __future__ import annotations

from immutables import Map

from dljob.master import hang, limits, spares, starting
from dljob.master.actions import Finish, Release, StopRanks
from dljob.master.draft import Draft
from dljob.master.evolve import evolve
from dljob.master.state import HostPhase, Phase, RankKey, RankPhase, RankState, Verdict
from dljob.telemetry import reasons


def unfinished(rank: RankState) -> bool:
    """Whether a rank has yet to end."""
    return rank.phase is RankPhase.WAITING or rank.phase.live


def inhabited(d: Draft, unit: str) -> bool:
    """Whether a rank that has yet to end lives in a unit."""
    return any(
        unfinished(d.ranks[role, rank])
        for role, group in d.job.plan.units[unit].members
        for rank in d.facts(role).group_ranks(group)
    )


def process_gone(d: Draft, key: RankKey) -> None:
    """A rank has no process any more, and shall have one."""
    d.set_rank(key, evolve(d.ranks[key], phase=RankPhase.WAITING, pid=0))


def role_changed(d: Draft, role: str) -> None:
    """A rank of a role became ready or ended: roles that wait for it may start, the job may run, or be done."""
    state = d.roles[role]
    if state.waiting or state.starting or state.stopping:
        return
    done = starting.completed(d, role)
    if not state.was_ready:
        d.set_role(role, evolve(state, was_ready=True))
        _first_ready(d, role)
    if done:
        d.note(reasons.ROLE_COMPLETED, role, f"all {state.succeeded + state.failed} ranks ended")
        if all(starting.completed(d, driver) for driver in d.job.drivers):
            end(d, Verdict(ok=True, reason=reasons.COMPLETED, message="all driver roles ended well", at=d.now))
            return
        spares.dismiss(d, role)
        _start_dependents(d, role)


def _first_ready(d: Draft, role: str) -> None:
    facts = d.facts(role)
    d.note(reasons.ROLE_READY, role, f"all {facts.plan.replicas} ranks are ready", seconds=d.now - d.started_at)
    if spares.per_node(d):
        spares.keep(d, role, spares.homes(d, role, range(facts.plan.replicas)))
    waved = all(d.roles[name].was_ready for name, f in d.job.roles.items() if f.first_wave)
    if d.running_at is None and waved:
        d.running_at, d.phase = d.now, Phase.RUNNING
        d.note(reasons.JOB_RUNNING, "job", "all first roles are ready", seconds=d.now - d.started_at)
        for name, own in d.job.roles.items():
            if own.world and (words := hang.crossed(own.plan.comm_timeout_s, d.job.fault_tolerance.hang)):
                d.note(reasons.TIMEOUTS_CROSS, name, words)
    _start_dependents(d, role)


def _start_dependents(d: Draft, role: str) -> None:
    if not d.facts(role).dependents:
        return
    starting.start_roles(d)
    for name in d.facts(role).dependents:
        if starting.dependencies_met(d, name):
            starting.start_waiting(d, name)


def fail(d: Draft, reason: str, message: str) -> None:
    """The job ends, and not well: everything is released at once."""
    end(d, Verdict(ok=False, reason=reason, message=message, at=d.now), graceful=False)


def end(d: Draft, verdict: Verdict, *, graceful: bool = True) -> None:
    """The verdict is known; the first one stands. Healthy ranks get the grace to leave."""
    if d.verdict is not None:
        return
    d.phase, d.verdict = Phase.STOPPING, verdict
    d.incidents = Map()
    d.note(verdict.reason, "job", verdict.message, seconds=d.now - d.started_at)
    if graceful and d.live:
        kill_at = d.now + limits.GRACE_S + limits.STOP_S
        d.verdict = evolve(verdict, kill_at=kill_at)
        d.wake_at(kill_at)
        _ask_all_to_leave(d, verdict.reason)
    else:
        release(d, verdict)


def _ask_all_to_leave(d: Draft, reason: str) -> None:
    for host, state in sorted(d.hosts.items(), key=lambda item: (item[0].role, item[0].index)):
        if state.phase is HostPhase.READY and host.index >= 0:
            ranks = d.facts(host.role).ranks_of(host.index)
            live = tuple(rank for rank in ranks if d.ranks[host.role, rank].phase.live)
            if live:
                d.do(StopRanks(host, state.life, live, limits.GRACE_S, reason))


def release(d: Draft, verdict: Verdict) -> None:
    """Order that nothing be left of the job."""
    d.verdict = evolve(verdict, kill_at=None, release_at=d.now)
    d.wake_at(d.now + limits.RELEASE_S)
    d.do(Release())


def rank_left(d: Draft, key: RankKey) -> None:
    """A rank ended while the job was stopping; after the last one everything is released."""
    d.set_rank(key, evolve(d.ranks[key], phase=RankPhase.STOPPED, pid=0))
    if not d.live and d.verdict is not None and d.verdict.kill_at is not None:
        release(d, d.verdict)


def released(d: Draft) -> None:
    """Nothing is left: the job is over."""
    verdict = d.verdict
    if d.phase is not Phase.STOPPING or verdict is None or verdict.release_at is None:
        return
    for key, rank in d.ranks.items():
        if rank.phase.live:
            d.set_rank(key, evolve(rank, phase=RankPhase.STOPPED, pid=0))
    badly = Phase.SUSPENDED if verdict.suspends else Phase.FAILED
    d.phase = Phase.SUCCEEDED if verdict.ok else badly
    d.ended_at, d.wake = d.now, None
    d.note(reasons.RELEASED, "job", "nothing of the job is left", seconds=d.now - verdict.release_at)
    d.do(Finish(verdict.ok, verdict.reason, verdict.message))
