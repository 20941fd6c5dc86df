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


def earliest(state: JobState | StateTransaction) -> float | None:
    """Return when the next timer is due (unix seconds); None: no timer runs."""
    due = [at for at in _times(state) if at is not None]
    return min(due) if due else None


def _times(state: JobState | StateTransaction) -> list[float | None]:
    """Return all running timers (unix seconds), in any order; None for those that are not set."""
    if state.phase.final:
        return []
    if state.verdict is not None:  # an ending job has no timers but those of its release
        at = state.verdict.release_at
        return [state.verdict.kill_at, None if at is None else at + limits.RELEASE_S]
    times = [state.search.retry_at, state.search.deadline, state.search.final_at]
    started, spec = state.started_at, state.job.spec
    if spec.active_deadline_seconds is not None:
        times.append(started + spec.active_deadline_seconds)
    if spec.pre_running_deadline_seconds is not None and state.running_at is None:
        times.append(started + spec.pre_running_deadline_seconds)
    times.extend((*nodes.timers(state), *departures.timers(state), *elastic.timers(state), *weights.timers(state)))
    for incident in state.incidents.values():
        times.append(incident.deadline if incident.launched else incident.due)
        times.append(incident.stop_by)
    times.extend(lost_peers.deadlines(state))
    times.append(None if state.moving is None else state.moving.by)
    times.extend(role.stop_by for role in state.roles.values())
    return times


def tick(d: StateTransaction) -> None:
    """Do what is due, and set the time of the next Tick."""
    verdict = d.verdict
    if verdict is not None:
        _end_of_grace(d, verdict)
    else:
        # Deadlines come first, since they may end the job; the search last, since the others may find or need room.
        rules = (_deadlines, _restarts, nodes.tick, departures.tick, elastic.tick, weights.tick, moving.tick, _search)
        for rule in rules:
            if not d.ending:
                rule(d)
    d.wake = earliest(d)


def _end_of_grace(d: StateTransaction, verdict: Verdict) -> None:
    """Order the release when the grace period is over, or again when it was not answered in time."""
    late = verdict.kill_at is not None and verdict.kill_at <= d.now
    unanswered = verdict.release_at is not None and verdict.release_at + limits.RELEASE_S <= d.now
    if late or unanswered:
        ending.release(d, verdict)


def _deadlines(d: StateTransaction) -> None:
    """End a job that is past its activeDeadlineSeconds or preRunningDeadlineSeconds."""
    started, spec = d.started_at, d.job.spec
    most, first = spec.active_deadline_seconds, spec.pre_running_deadline_seconds
    if most is not None and started + most <= d.now:
        message = f"the job ran longer than activeDeadlineSeconds = {most}"
        ending.end(d, Verdict(ok=False, reason=reasons.DEADLINE_EXCEEDED, message=message, at=d.now))
    elif first is not None and d.running_at is None and started + first <= d.now:
        late = [name for name, f in d.job.roles.items() if f.first_wave and not d.roles[name].was_ready]
        why = d.search.why or f"not ready: {', '.join(late)}"
        message = f"the job was not running after preRunningDeadlineSeconds = {first}; {why}"
        ending.fail(d, reasons.PRE_RUNNING_DEADLINE, message)


def _restarts(d: StateTransaction) -> None:
    """Launch the restarts whose backoff is over, and escalate those that take too long."""
    for number in sorted(d.incidents):
        incident = d.incidents.get(number)  # an earlier one in this loop may have taken it over
        if incident is None or d.ending:
            continue
        if not incident.launched and incident.due <= d.now:
            restart.launch(d, number)
        elif incident.stop_by is not None and incident.stop_by <= d.now:
            restart.stop_overdue(d, number)
        elif incident.launched and incident.deadline <= d.now:
            _overdue(d, number)
    for role, own in d.roles.items():
        if own.stop_by is not None and own.stop_by <= d.now:
            restart.end_overdue(d, role)


def _overdue(d: StateTransaction, number: int) -> None:
    """Escalate a restart that took too long, unless it waits for room: then the search's own deadline counts."""
    incident = d.incidents[number]
    if _looks_for_room(d, number):
        # The restart gets more time, because the search for room has a deadline of its own.
        d.incidents = d.incidents.set(
            number, evolve(incident, deadline=d.now + restart.time_to_start(d, incident.members))
        )
        admission.try_to_place(d)
    else:
        failover.timed_out(d, number)


def _looks_for_room(d: StateTransaction, number: int) -> bool:
    """Whether a restart waits for room: of its members, of their world, or of any rank while their role must wait."""
    members = {key for key in d.incidents[number].members if d.ranks[key].incident == number}
    roles = {role for role, _ in members}
    # Their dependencies hold them up, so the question is whether any rank lacks a place.
    if not all(starting.dependencies_met(d, role) for role in roles):
        return admission.needed(d)
    for role in roles:
        # A torch world starts as a whole, so each of its ranks needs a place.
        if d.facts(role).world:
            members.update((role, rank) for rank in d.facts(role).ranks)
    homes = {d.facts(role).unit_of(d.facts(role).host_of(rank)) for role, rank in members}
    leaves = frozenset(d.moving.units) if d.moving is not None else frozenset[str]()
    return any(d.units[name].phase is not UnitPhase.HELD or name in leaves for name in homes)


def _search(d: StateTransaction) -> None:
    """Look for room again when the backoff is over, and fail the job when its lost units found none in time."""
    late = d.search.deadline is not None and d.search.deadline <= d.now
    if late and not admission.needed(d):
        # All ranks of the lost units have ended: they need no place, unless a restart starts them again.
        admission.give_up_waiting(d)
    elif late and not moving.finished(d):
        admission.look_on(d)
    elif late and not _found_at_last(d):
        message = f"{counted(len(admission.overdue(d)), 'unit')} of lost nodes found no room in time: {d.search.why}"
        ending.fail(d, reasons.NO_ROOM_FOR_LOST_UNITS, message)
    elif any(at is not None and at <= d.now for at in (d.search.retry_at, d.search.final_at)):
        admission.try_to_place(d)


def _found_at_last(d: StateTransaction) -> bool:
    """Whether lost units find a place in a last attempt, in which excluded nodes may be used as well."""
    admission.try_to_place(d, last=True)
    admission.place_overdue(d)
    if admission.overdue(d) and not elastic.at_last(d):
        return False
    admission.give_up_waiting(d)
    return True
