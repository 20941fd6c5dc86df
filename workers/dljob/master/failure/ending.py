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


def inhabited(tx: StateTransaction, unit: str) -> bool:
    """Whether an unfinished rank lives in a unit."""
    return any(
        unfinished(tx.ranks[role, rank])
        for role, group in tx.job.plan.units[unit].members
        for rank in tx.facts(role).group_ranks(group)
    )


def drop_process(tx: StateTransaction, key: RankKey) -> None:
    """Mark a rank as without a process: it waits for a new one, unless its role goes on without it."""
    sizing = tx.sizes.get(key[0])
    leaves = sizing is not None and key[1] in sizing.leaving
    tx.set_rank(key, evolve(tx.ranks[key], phase=RankPhase.ABSENT if leaves else RankPhase.WAITING, pid=0))


def role_changed(tx: StateTransaction, role: str) -> None:
    """Follow up on a rank that became ready or ended: dependent roles may start, and the job may run or be done."""
    state = tx.roles[role]
    if state.waiting or state.starting or state.stopping:
        return
    done = starting.completed(tx, role)
    # Set before completion is handled: a role may complete without all its ranks ever being ready at once.
    if not state.was_ready:
        tx.set_role(role, evolve(state, was_ready=True))
        _first_ready(tx, role)
    if done:
        tx.note(reasons.ROLE_COMPLETED, role, every(state.succeeded + state.failed, "rank", one="ended", many="ended"))
        if all(starting.completed(tx, driver) for driver in tx.job.drivers):
            end(tx, Verdict(ok=True, reason=reasons.COMPLETED, message="all driver roles ended well", at=tx.now))
            return
        spares.dismiss(tx, role)
        _start_dependents(tx, role)


def _first_ready(tx: StateTransaction, role: str) -> None:
    """Handle a role's first readiness: fill its spares and start its dependents; with the last role the job runs."""
    facts = tx.facts(role)
    tx.note(
        reasons.ROLE_READY,
        role,
        every(facts.plan.replicas, "rank", one="is ready", many="are ready"),
        seconds=tx.now - tx.started_at,
    )
    if spares.per_node(tx):
        spares.keep(tx, role, spares.homes(tx, role, facts.ranks))
    waved = all(tx.roles[name].was_ready for name, f in tx.job.roles.items() if f.first_wave)
    if tx.running_at is None and waved:
        tx.running_at, tx.phase = tx.now, Phase.RUNNING
        tx.note(reasons.JOB_RUNNING, "job", "all roles of the first wave are ready", seconds=tx.now - tx.started_at)
        # Warned once, when the job runs: a timeout of torch that is too short hides the cause of every hang.
        for name, own in tx.job.roles.items():
            if own.world and (words := hang.crossed(own.plan.comm_timeout_s, tx.job.fault_tolerance.hang)):
                tx.note(reasons.COLLECTIVE_TIMEOUT_TOO_SHORT, name, words)
    _start_dependents(tx, role)


def _start_dependents(tx: StateTransaction, role: str) -> None:
    """Start the hosts, and where all dependencies are met the ranks, of roles that wait for this one."""
    if not tx.facts(role).dependents:
        return
    starting.start_roles(tx)
    for name in tx.facts(role).dependents:
        if starting.dependencies_met(tx, name):
            starting.start_waiting(tx, name)


def fail(tx: StateTransaction, reason: str, message: str) -> None:
    """Fail the job, and release everything at once, without a grace period."""
    end(tx, Verdict(ok=False, reason=reason, message=message, at=tx.now), graceful=False)


def end(tx: StateTransaction, verdict: Verdict, *, graceful: bool = True) -> None:
    """Set the verdict, unless there is one: the first one stands. A graceful end gives ranks time to leave."""
    if tx.verdict is not None:
        return
    if tx.stalls and verdict.reason in _ORDERED:
        standing = "; ".join(describe_since(stall) for stall in tx.stalls[:2])
        verdict = evolve(verdict, message=f"{verdict.message}{STOOD_STILL}{standing}")
    tx.phase, tx.verdict = Phase.STOPPING, verdict
    tx.incidents = Map()  # nothing is restarted any more
    tx.note(verdict.reason, "job", verdict.message, seconds=tx.now - tx.started_at)
    if graceful and tx.live:
        drain_s = max(facts.plan.drain_s for facts in tx.job.roles.values())
        kill_at = tx.now + limits.GRACE_S + limits.STOP_S + drain_s
        tx.verdict = evolve(verdict, kill_at=kill_at)
        tx.wake_at(kill_at)
        _ask_all_to_leave(tx, verdict.reason)
    else:
        release(tx, verdict)


def _ask_all_to_leave(tx: StateTransaction, reason: str) -> None:
    """Ask all live ranks to shut down within the grace period."""
    for host, state in sorted(tx.hosts.items(), key=lambda item: (item[0].role, item[0].index)):
        if state.phase is HostPhase.READY and host.index >= 0:
            ranks = tx.facts(host.role).ranks_of(host.index)
            live = tuple(rank for rank in ranks if tx.ranks[host.role, rank].phase.live)
            if live:
                incarnations = tuple(tx.ranks[host.role, rank].incarnation for rank in live)
                tx.do(StopRanks(host, state.life, live, limits.GRACE_S, reason, incarnations))


def release(tx: StateTransaction, verdict: Verdict) -> None:
    """Order the release of every actor and reservation of the job, and a timer to order it again."""
    tx.verdict = evolve(verdict, kill_at=None, release_at=tx.now)
    tx.wake_at(tx.now + limits.RELEASE_S)
    tx.do(Release())


def record_leaver(tx: StateTransaction, key: RankKey) -> None:
    """Record a rank that ended while the job was stopping; the last one triggers the release."""
    tx.set_rank(key, evolve(tx.ranks[key], phase=RankPhase.STOPPED, pid=0))
    if not tx.live and tx.verdict is not None and tx.verdict.kill_at is not None:
        release(tx, tx.verdict)


def released(tx: StateTransaction) -> None:
    """Finish the job: the release is complete, and the verdict becomes the final phase."""
    verdict = tx.verdict
    if tx.phase is not Phase.STOPPING or verdict is None or verdict.release_at is None:
        return
    # A failed job is released without waiting for its ranks, so some may still count as live.
    for key, rank in tx.ranks.items():
        if rank.phase.live:
            tx.set_rank(key, evolve(rank, phase=RankPhase.STOPPED, pid=0))
    tx.phase = verdict.phase
    tx.ended_at, tx.wake = tx.now, None
    tx.note(
        reasons.RELEASED, "job", "all actors and reservations of the job are gone", seconds=tx.now - verdict.release_at
    )
    tx.do(Finish(verdict.ok, verdict.reason, verdict.message))
