"""The end of a job: finished ranks and roles, the verdict, graceful shutdown, release, and the final phase."""

from __future__ import annotations

from immutables import Map

from dljob.master.start import spares, starting
from dljob.master.state import hang, limits
from dljob.master.state.actions import Finish, Release, StopRanks
from dljob.master.state.evolve import evolve
from dljob.master.state.stalls import STOOD_STILL, describe_since
from dljob.master.state.state import HostPhase, Phase, RankKey, RankPhase, RankState, Verdict
from dljob.master.state.transaction import StateTransaction
from dljob.telemetry import reasons
from dljob.telemetry.wording import every

_ORDERED = (reasons.STOPPED, reasons.SUSPENDED, reasons.DEADLINE_EXCEEDED)
"""Ends that say nothing of why somebody ordered them: a job that stood still is often ended for that."""


def unfinished(rank: RankState) -> bool:
    """Whether a rank has a process or is to get one."""
    return rank.phase is RankPhase.WAITING or rank.phase.live


def inhabited(d: StateTransaction, unit: str) -> bool:
    """Whether an unfinished rank lives in a unit."""
    return any(
        unfinished(d.ranks[role, rank])
        for role, group in d.job.plan.units[unit].members
        for rank in d.facts(role).group_ranks(group)
    )


def drop_process(d: StateTransaction, key: RankKey) -> None:
    """Mark a rank as without a process: it waits for a new one, unless its role goes on without it."""
    sizing = d.sizes.get(key[0])
    leaves = sizing is not None and key[1] in sizing.leaving
    d.set_rank(key, evolve(d.ranks[key], phase=RankPhase.ABSENT if leaves else RankPhase.WAITING, pid=0))


def role_changed(d: StateTransaction, role: str) -> None:
    """Follow up on a rank that became ready or ended: dependent roles may start, and the job may run or be done."""
    state = d.roles[role]
    if state.waiting or state.starting or state.stopping:
        return
    done = starting.completed(d, role)
    # Set before completion is handled: a role may complete without all its ranks ever being ready at once.
    if not state.was_ready:
        d.set_role(role, evolve(state, was_ready=True))
        _first_ready(d, role)
    if done:
        d.note(reasons.ROLE_COMPLETED, role, every(state.succeeded + state.failed, "rank", one="ended", many="ended"))
        if all(starting.completed(d, driver) for driver in d.job.drivers):
            end(d, Verdict(ok=True, reason=reasons.COMPLETED, message="all driver roles ended well", at=d.now))
            return
        spares.dismiss(d, role)
        _start_dependents(d, role)


def _first_ready(d: StateTransaction, role: str) -> None:
    """Handle a role's first readiness: fill its spares and start its dependents; with the last role the job runs."""
    facts = d.facts(role)
    d.note(
        reasons.ROLE_READY,
        role,
        every(facts.plan.replicas, "rank", one="is ready", many="are ready"),
        seconds=d.now - d.started_at,
    )
    if spares.per_node(d):
        spares.keep(d, role, spares.homes(d, role, facts.ranks))
    waved = all(d.roles[name].was_ready for name, f in d.job.roles.items() if f.first_wave)
    if d.running_at is None and waved:
        d.running_at, d.phase = d.now, Phase.RUNNING
        d.note(reasons.JOB_RUNNING, "job", "all roles of the first wave are ready", seconds=d.now - d.started_at)
        # Warned once, when the job runs: a timeout of torch that is too short hides the cause of every hang.
        for name, own in d.job.roles.items():
            if own.world and (words := hang.crossed(own.plan.comm_timeout_s, d.job.fault_tolerance.hang)):
                d.note(reasons.COLLECTIVE_TIMEOUT_TOO_SHORT, name, words)
    _start_dependents(d, role)


def _start_dependents(d: StateTransaction, role: str) -> None:
    """Start the hosts, and where all dependencies are met the ranks, of roles that wait for this one."""
    if not d.facts(role).dependents:
        return
    starting.start_roles(d)
    for name in d.facts(role).dependents:
        if starting.dependencies_met(d, name):
            starting.start_waiting(d, name)


def fail(d: StateTransaction, reason: str, message: str) -> None:
    """Fail the job, and release everything at once, without a grace period."""
    end(d, Verdict(ok=False, reason=reason, message=message, at=d.now), graceful=False)


def end(d: StateTransaction, verdict: Verdict, *, graceful: bool = True) -> None:
    """Set the verdict, unless there is one: the first one stands. A graceful end gives ranks time to leave."""
    if d.verdict is not None:
        return
    if d.stalls and verdict.reason in _ORDERED:
        standing = "; ".join(describe_since(stall) for stall in d.stalls[:2])
        verdict = evolve(verdict, message=f"{verdict.message}{STOOD_STILL}{standing}")
    d.phase, d.verdict = Phase.STOPPING, verdict
    d.incidents = Map()  # nothing is restarted any more
    d.note(verdict.reason, "job", verdict.message, seconds=d.now - d.started_at)
    if graceful and d.live:
        drain_s = max(facts.plan.drain_s for facts in d.job.roles.values())
        kill_at = d.now + limits.GRACE_S + limits.STOP_S + drain_s
        d.verdict = evolve(verdict, kill_at=kill_at)
        d.wake_at(kill_at)
        _ask_all_to_leave(d, verdict.reason)
    else:
        release(d, verdict)


def _ask_all_to_leave(d: StateTransaction, reason: str) -> None:
    """Ask all live ranks to shut down within the grace period."""
    for host, state in sorted(d.hosts.items(), key=lambda item: (item[0].role, item[0].index)):
        if state.phase is HostPhase.READY and host.index >= 0:
            ranks = d.facts(host.role).ranks_of(host.index)
            live = tuple(rank for rank in ranks if d.ranks[host.role, rank].phase.live)
            if live:
                incarnations = tuple(d.ranks[host.role, rank].incarnation for rank in live)
                d.do(StopRanks(host, state.life, live, limits.GRACE_S, reason, incarnations))


def release(d: StateTransaction, verdict: Verdict) -> None:
    """Order the release of every actor and reservation of the job, and a timer to order it again."""
    d.verdict = evolve(verdict, kill_at=None, release_at=d.now)
    d.wake_at(d.now + limits.RELEASE_S)
    d.do(Release())


def record_leaver(d: StateTransaction, key: RankKey) -> None:
    """Record a rank that ended while the job was stopping; the last one triggers the release."""
    d.set_rank(key, evolve(d.ranks[key], phase=RankPhase.STOPPED, pid=0))
    if not d.live and d.verdict is not None and d.verdict.kill_at is not None:
        release(d, d.verdict)


def released(d: StateTransaction) -> None:
    """Finish the job: the release is complete, and the verdict becomes the final phase."""
    verdict = d.verdict
    if d.phase is not Phase.STOPPING or verdict is None or verdict.release_at is None:
        return
    # A failed job is released without waiting for its ranks, so some may still count as live.
    for key, rank in d.ranks.items():
        if rank.phase.live:
            d.set_rank(key, evolve(rank, phase=RankPhase.STOPPED, pid=0))
    d.phase = verdict.phase
    d.ended_at, d.wake = d.now, None
    d.note(
        reasons.RELEASED, "job", "all actors and reservations of the job are gone", seconds=d.now - verdict.release_at
    )
    d.do(Finish(verdict.ok, verdict.reason, verdict.message))
