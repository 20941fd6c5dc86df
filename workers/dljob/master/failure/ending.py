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

_REASONS_OF_ORDERED_ENDS = (reasons.STOPPED, reasons.SUSPENDED, reasons.DEADLINE_EXCEEDED)
"""Reasons of ordered ends, which do not say why they were ordered: a job that stood still is often ended for that."""


def is_unfinished(rank_state: RankState) -> bool:
    """Whether a rank has a process or is to get one."""
    return rank_state.phase is RankPhase.WAITING or rank_state.phase.live


def has_unfinished_rank(tx: StateTransaction, unit: str) -> bool:
    """Whether an unfinished rank lives in a unit."""
    members = tx.job.plan.units[unit].members
    keys = ((role, rank) for role, group in members for rank in tx.facts(role).group_ranks(group))
    return any(is_unfinished(tx.ranks[key]) for key in keys)


def mark_without_process(tx: StateTransaction, key: RankKey) -> None:
    """Mark a rank as without a process: it waits for a new one, unless its role goes on without it."""
    role, rank = key
    role_size = tx.sizes.get(role)
    is_dropped = role_size is not None and rank in role_size.leaving
    tx.set_rank(key, evolve(tx.ranks[key], phase=RankPhase.ABSENT if is_dropped else RankPhase.WAITING, pid=0))


def advance_role_and_job(tx: StateTransaction, role: str) -> None:
    """Follow up on a rank that became ready or ended: dependent roles may start, and the job may run or be done."""
    role_state = tx.roles[role]
    if role_state.waiting_count or role_state.starting_count or role_state.stopping_count:
        return
    is_role_completed = starting.is_role_completed(tx, role)
    # Set before completion is handled: a role may complete without all its ranks ever being ready at once.
    if not role_state.was_ready:
        tx.set_role(role, evolve(role_state, was_ready=True))
        _handle_readiness_of_start(tx, role)
    if is_role_completed:
        message = every(role_state.succeeded_count + role_state.failed_count, "rank", singular="ended", many="ended")
        tx.note(reasons.ROLE_COMPLETED, role, message)
        if all(starting.is_role_completed(tx, driver) for driver in tx.job.drivers):
            end_job(tx, Verdict(ok=True, reason=reasons.COMPLETED, message="all driver roles ended well", at=tx.now))
            return
        spares.end_spares_of_role(tx, role)
        _start_dependents(tx, role)


def _handle_readiness_of_start(tx: StateTransaction, role: str) -> None:
    """Handle the readiness of a whole role, once per start of it: the job runs with the last one it needs."""
    facts = tx.facts(role)
    start_duration_s = tx.now - tx.started_at
    message = every(facts.plan.replicas, "rank", singular="is ready", many="are ready")
    tx.note(reasons.ROLE_READY, role, message, seconds=start_duration_s)
    if spares.spares_per_node(tx):
        spares.order_missing_spares(tx, role, spares.nodes_of_ranks(tx, role, facts.ranks))
    starts_with_job = [name for name, role_facts in tx.job.roles.items() if role_facts.starts_with_job]
    is_first_wave_ready = all(tx.roles[name].was_ready for name in starts_with_job)
    if tx.running_at is None and is_first_wave_ready:
        tx.running_at, tx.phase = tx.now, Phase.RUNNING
        tx.note(reasons.JOB_RUNNING, "job", "all roles of the first wave are ready", seconds=start_duration_s)
        # Warned once, when the job runs: a timeout of torch that is too short hides the cause of every hang.
        for name, role_facts in tx.job.roles.items():
            warning = hang.collective_timeout_warning(role_facts.plan.comm_timeout_s, tx.job.fault_tolerance.hang)
            if role_facts.is_torch_world and warning:
                tx.note(reasons.COLLECTIVE_TIMEOUT_TOO_SHORT, name, warning)
    _start_dependents(tx, role)


def _start_dependents(tx: StateTransaction, role: str) -> None:
    """Start the hosts, and where all dependencies are met the ranks, of roles that wait for this one."""
    if not tx.facts(role).dependents:
        return
    starting.start_roles(tx)
    for name in tx.facts(role).dependents:
        if starting.are_dependencies_met(tx, name):
            starting.start_waiting_ranks(tx, name)


def fail_job(tx: StateTransaction, reason: str, message: str) -> None:
    """Fail the job, and release everything at once, without a grace period."""
    end_job(tx, Verdict(ok=False, reason=reason, message=message, at=tx.now), graceful=False)


def end_job(tx: StateTransaction, verdict: Verdict, *, graceful: bool = True) -> None:
    """Set the verdict, unless there is one: the first one stands. A graceful end gives ranks time to leave."""
    if tx.verdict is not None:
        return
    if tx.stalls and verdict.reason in _REASONS_OF_ORDERED_ENDS:
        stall_text = "; ".join(describe_since(stall) for stall in tx.stalls[:2])
        verdict = evolve(verdict, message=f"{verdict.message}{STOOD_STILL}{stall_text}")
    tx.phase, tx.verdict = Phase.STOPPING, verdict
    tx.incidents = Map()  # nothing is restarted any more
    tx.note(verdict.reason, "job", verdict.message, seconds=tx.now - tx.started_at)
    if graceful and tx.live_rank_count:
        drain_s = max(facts.plan.drain_s for facts in tx.job.roles.values())
        kill_at = tx.now + limits.JOB_END_GRACE_S + limits.HOST_STOP_S + drain_s
        tx.verdict = evolve(verdict, kill_at=kill_at)
        tx.wake_at(kill_at)
        _stop_live_ranks(tx, verdict.reason)
    else:
        release_job(tx, verdict)


def _stop_live_ranks(tx: StateTransaction, reason: str) -> None:
    """Ask all live ranks to shut down within the grace period at the job's end."""
    for host, host_state in sorted(tx.hosts.items(), key=lambda item: (item[0].role, item[0].index)):
        if host_state.phase is HostPhase.READY and host.index >= 0:
            ranks = tx.facts(host.role).ranks_of(host.index)
            live_ranks = tuple(rank for rank in ranks if tx.ranks[host.role, rank].phase.live)
            if live_ranks:
                incarnations = tuple(tx.ranks[host.role, rank].incarnation for rank in live_ranks)
                tx.do(StopRanks(host, host_state.incarnation, live_ranks, limits.JOB_END_GRACE_S, reason, incarnations))


def release_job(tx: StateTransaction, verdict: Verdict) -> None:
    """Order the release of every actor and reservation of the job, and a timer to order it again."""
    tx.verdict = evolve(verdict, kill_at=None, release_at=tx.now)
    tx.wake_at(tx.now + limits.RELEASE_AGAIN_S)
    tx.do(Release())


def record_stopped_rank(tx: StateTransaction, key: RankKey) -> None:
    """Record a rank that ended while the job was stopping; the last one triggers the release."""
    tx.set_rank(key, evolve(tx.ranks[key], phase=RankPhase.STOPPED, pid=0))
    if not tx.live_rank_count and tx.verdict is not None and tx.verdict.kill_at is not None:
        release_job(tx, tx.verdict)


def handle_released(tx: StateTransaction) -> None:
    """Finish the job: the release is complete, and the verdict becomes the final phase."""
    verdict = tx.verdict
    if tx.phase is not Phase.STOPPING or verdict is None or verdict.release_at is None:
        return
    # A failed job is released without waiting for its ranks, so some may still count as live.
    for key, rank_state in tx.ranks.items():
        if rank_state.phase.live:
            tx.set_rank(key, evolve(rank_state, phase=RankPhase.STOPPED, pid=0))
    tx.phase = verdict.phase
    tx.ended_at, tx.wake = tx.now, None
    message = "all actors and reservations of the job are gone"
    tx.note(reasons.RELEASED, "job", message, seconds=tx.now - verdict.release_at)
    tx.do(Finish(verdict.ok, verdict.reason, verdict.message))
