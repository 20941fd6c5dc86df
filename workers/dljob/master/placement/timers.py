"""Timers: all times at which the state must change by itself. The shell sleeps until the earliest and sends a Tick.

A Tick that comes too early finds nothing due and is harmless.
"""

from __future__ import annotations

from dljob.master.failure import ending, failover, lost_peers, moving, restart
from dljob.master.placement import admission, departures, elastic, nodes
from dljob.master.start import starting, weights
from dljob.master.state import limits
from dljob.master.state.evolve import evolve
from dljob.master.state.state import JobState, UnitPhase, Verdict
from dljob.master.state.transaction import StateTransaction
from dljob.telemetry import reasons
from dljob.telemetry.wording import counted


def earliest_timer(state: JobState | StateTransaction) -> float | None:
    """Return when the next timer is due (unix seconds); None: no timer runs."""
    times = [at for at in _times(state) if at is not None]
    return min(times) if times else None


def _times(state: JobState | StateTransaction) -> list[float | None]:
    """Return all running timers (unix seconds), in any order; None for those that are not set."""
    if state.phase.final:
        return []
    if state.verdict is not None:  # an ending job has no timers but those of its release
        at = state.verdict.release_at
        return [state.verdict.kill_at, None if at is None else at + limits.RELEASE_AGAIN_S]
    times = [state.search.retry_at, state.search.deadline, state.search.final_at]
    started, spec = state.started_at, state.job.spec
    if spec.active_deadline_seconds is not None:
        times.append(started + spec.active_deadline_seconds)
    if spec.pre_running_deadline_seconds is not None and state.running_at is None:
        times.append(started + spec.pre_running_deadline_seconds)
    times.extend((*nodes.timers(state), *departures.timers(state), *elastic.timers(state), *weights.timers(state)))
    for incident in state.incidents.values():
        times.append(incident.deadline if incident.is_backoff_over else incident.backoff_until)
        times.append(incident.stop_by)
    times.extend(lost_peers.inquiry_deadlines(state))
    times.append(None if state.domain_move is None else state.domain_move.finish_by)
    times.extend(role.stop_by for role in state.roles.values())
    return times


def tick(tx: StateTransaction) -> None:
    """Do what is due, and set the time of the next Tick."""
    verdict = tx.verdict
    if verdict is not None:
        _release_after_grace(tx, verdict)
    else:
        # Deadlines come first, since they may end the job; the search last, since the others may find or need room.
        first_rules = (_check_deadlines, _check_restarts, nodes.tick, departures.tick)
        for rule in (*first_rules, elastic.tick, weights.order_overdue_loads, moving.end_overdue_drain, _check_search):
            if not tx.ending:
                rule(tx)
    tx.wake = earliest_timer(tx)


def _release_after_grace(tx: StateTransaction, verdict: Verdict) -> None:
    """Order the release when the grace period is over, or again when it was not answered in time."""
    late = verdict.kill_at is not None and verdict.kill_at <= tx.now
    unanswered = verdict.release_at is not None and verdict.release_at + limits.RELEASE_AGAIN_S <= tx.now
    if late or unanswered:
        ending.release_job(tx, verdict)


def _check_deadlines(tx: StateTransaction) -> None:
    """End a job that is past its activeDeadlineSeconds or preRunningDeadlineSeconds."""
    started, spec = tx.started_at, tx.job.spec
    max_seconds, start_seconds = spec.active_deadline_seconds, spec.pre_running_deadline_seconds
    if max_seconds is not None and started + max_seconds <= tx.now:
        message = f"the job ran longer than activeDeadlineSeconds = {max_seconds}"
        ending.end_job(tx, Verdict(ok=False, reason=reasons.DEADLINE_EXCEEDED, message=message, at=tx.now))
    elif start_seconds is not None and tx.running_at is None and started + start_seconds <= tx.now:
        late = [name for name, f in tx.job.roles.items() if f.starts_with_job and not tx.roles[name].was_ready]
        reason = tx.search.no_room_reason or f"not ready: {', '.join(late)}"
        message = f"the job was not running after preRunningDeadlineSeconds = {start_seconds}; {reason}"
        ending.fail_job(tx, reasons.PRE_RUNNING_DEADLINE, message)


def _check_restarts(tx: StateTransaction) -> None:
    """Launch the restarts whose backoff is over, and escalate those that take too long."""
    for number in sorted(tx.incidents):
        incident = tx.incidents.get(number)  # an earlier one in this loop may have taken it over
        if incident is None or tx.ending:
            continue
        if not incident.is_backoff_over and incident.backoff_until <= tx.now:
            restart.launch_restart(tx, number)
        elif incident.stop_by is not None and incident.stop_by <= tx.now:
            restart.kill_overdue_hosts_of_restart(tx, number)
        elif incident.is_backoff_over and incident.deadline <= tx.now:
            _escalate_overdue(tx, number)
    for role, role_state in tx.roles.items():
        if role_state.stop_by is not None and role_state.stop_by <= tx.now:
            restart.kill_overdue_hosts_of_role(tx, role)


def _escalate_overdue(tx: StateTransaction, number: int) -> None:
    """Escalate a restart that took too long, unless it waits for room: then the search's own deadline counts."""
    incident = tx.incidents[number]
    if _looks_for_room(tx, number):
        # The restart gets more time, because the search for room has a deadline of its own.
        deadline = tx.now + restart.restart_time_limit_s(tx, incident.members)
        tx.incidents = tx.incidents.set(number, evolve(incident, deadline=deadline))
        admission.try_to_place(tx)
    else:
        failover.escalate_overdue_restart(tx, number)


def _looks_for_room(tx: StateTransaction, number: int) -> bool:
    """Whether a restart waits for room: of its members, of their world, or of any rank while their role must wait."""
    members = {key for key in tx.incidents[number].members if tx.ranks[key].incident == number}
    roles = {role for role, _ in members}
    # Their dependencies hold them up, so the question is whether any rank lacks a place.
    if not all(starting.are_dependencies_met(tx, role) for role in roles):
        return admission.needs_room(tx)
    for role in roles:
        # A torch world starts as a whole, so each of its ranks needs a place.
        if tx.facts(role).is_torch_world:
            members.update((role, rank) for rank in tx.facts(role).ranks)
    homes = {tx.facts(role).unit_of(tx.facts(role).host_of(rank)) for role, rank in members}
    leaves = frozenset(tx.domain_move.units) if tx.domain_move is not None else frozenset[str]()
    return any(tx.units[name].phase is not UnitPhase.HELD or name in leaves for name in homes)


def _check_search(tx: StateTransaction) -> None:
    """Look for room again when the backoff is over, and fail the job when its lost units found none in time."""
    late = tx.search.deadline is not None and tx.search.deadline <= tx.now
    if late and not admission.needs_room(tx):
        # All ranks of the lost units have ended: they need no place, unless a restart starts them again.
        admission.end_overdue_searches(tx)
    elif late and not moving.have_servers_finished(tx):
        admission.extend_search(tx)
    elif late and not _place_at_last(tx):
        units = counted(len(admission.overdue_units(tx)), "unit")
        message = f"{units} of lost nodes found no room in time: {tx.search.no_room_reason}"
        ending.fail_job(tx, reasons.NO_ROOM_FOR_LOST_UNITS, message)
    elif any(at is not None and at <= tx.now for at in (tx.search.retry_at, tx.search.final_at)):
        admission.try_to_place(tx)


def _place_at_last(tx: StateTransaction) -> bool:
    """Whether lost units find a place in a last attempt, in which excluded nodes may be used as well."""
    admission.try_to_place(tx, last=True)
    admission.place_overdue(tx)
    if admission.overdue_units(tx) and not elastic.shrink_at_last(tx):
        return False
    admission.end_overdue_searches(tx)
    return True
