"""Restarts: choosing the members, ending their processes, and starting them again after the backoff."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dljob.master.failure import attribution, coupling, ending
from dljob.master.start import starting
from dljob.master.state import limits
from dljob.master.state.actions import KillHost, LeaveGroup, StopRanks
from dljob.master.state.evolve import evolve
from dljob.master.state.faults import Failure
from dljob.master.state.job import STORE_HOST_INDEX
from dljob.master.state.state import HostPhase, Incident, JobState, RankKey, RankPhase
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import HostId, Level, Reason
from dljob.telemetry import reasons
from dljob.telemetry.wording import counted

SIZE_DECISION_S = 2 * limits.LEAVE_GROUP_S
"""Deadline after which the remaining ranks restart even if no new world size was decided."""


@dataclass(frozen=True, slots=True)
class RestartOrder:
    """A restart to begin. `ranks` failed (or were named by a command); the level decides which peers join them."""

    level: Level
    role: str
    ranks: tuple[int, ...]
    reason: str
    cause: str
    backoff_s: float = 0.0
    replaces_hosts: bool = False
    """Whether live hosts are replaced as well."""
    failure: Failure | None = None
    """The failure that caused it; None for an ordered restart."""
    root_number: int = 0
    """Number of the earlier fault that a restart without a failure of its own follows from; 0: none."""
    dropped_ranks: tuple[RankKey, ...] = ()
    """Ranks that the shrinking role drops; they leave their incidents and are not started again."""
    is_continuation: bool = False
    """Whether it continues a restart that is under way with other members: no new fault, and not counted again."""
    decides_size_later: bool = False
    """Whether ranks only leave user code: the number of ranks that start is decided once all have left."""


def begin_restart(tx: StateTransaction, order: RestartOrder) -> None:
    """End the processes of a restart's members, and start them again at once or after the backoff."""
    if order.level is not Level.JOB and starting.unmet_prerequisites(tx, order.role):
        return  # the role has not begun: it starts in its present size when its turn comes
    role_members, is_job_restart = _restart_members(tx, order), order.level is Level.JOB
    coupled_members = () if is_job_restart else coupling.ranks_taken_along(tx, order.role, role_members)
    members = (*role_members, *coupled_members)
    incident_number = tx.next_serial()
    target = _target_in_messages(tx, order)
    fault_numbers = () if order.is_continuation else (tx.add_fault(order.level, order.reason, target, order.cause),)
    root_text = ""
    if fault_numbers:
        root_text = attribution.record_fault(tx, fault_numbers[0], order.failure, order.root_number)
    roles_started_later = [facts for facts in tx.job.roles.values() if is_job_restart and not facts.starts_with_job]
    ranks_started_later = tuple((facts.plan.name, rank) for facts in roles_started_later for rank in facts.ranks)
    # Members leave the incidents they were in: a rank counts as pending in one incident only.
    inherited_fault_numbers = _take_out_of_incidents(tx, (*members, *ranks_started_later, *order.dropped_ranks))
    if is_job_restart:
        _reset_roles(tx, order.reason)
    else:
        _begin_new_generations(tx, order.role, role_members, coupled_members)
    launch_at = tx.now + (SIZE_DECISION_S if order.decides_size_later else order.backoff_s)
    tx.incidents = tx.incidents.set(
        incident_number,
        Incident(
            level=order.level,
            role="" if is_job_restart else order.role,
            target=target,
            reason=order.reason,
            members=members,
            unready_count=len(members),
            detected_at=tx.now,
            backoff_until=launch_at,
            deadline=launch_at + restart_time_limit_s(tx, members),
            replaces_hosts=order.replaces_hosts or is_job_restart,
            fault_numbers=(*inherited_fault_numbers, *fault_numbers),
        ),
    )
    if not order.is_continuation:
        coupled_roles = (name for name, _ in coupled_members)
        tx.count_restart(order.level, *(() if is_job_restart else dict.fromkeys((order.role, *coupled_roles))))
    failures = (tx.ranks[key].own_failure for key in role_members)
    # Where items of a queue pay for the failure, the backoff ends early (`deliveries.handle_failed_deliveries`).
    may_end_early = any(failure is not None and failure.at == tx.now for failure in failures)
    backoff_text = f" in {'at most ' if may_end_early else ''}{order.backoff_s:g} s" if order.backoff_s else ""
    message = f"{order.cause}{root_text}; restarting {counted(len(members), 'rank')}{backoff_text}"
    tx.note(reasons.RESTARTING, target, message, level=order.level.value)
    coupling.report_coupled_roles(tx, order.role, target, coupled_members)
    # The roles may not start before the backoff is over: a torch world needs all its ranks at once.
    _count_incident_in_backoff(tx, tx.incidents[incident_number], change=1)
    # Processes end at once even if the backoff lasts: peers of a dead rank would only wait for it.
    with tx.batch_changes():
        _take_down_members(tx, incident_number, _rejoining_members(tx, order, members))
    if launch_at > tx.now:
        tx.wake_at(launch_at)
    elif is_job_restart or not tx.facts(order.role).restart_partners:
        launch_restart(tx, incident_number)


def restart_time_limit_s(tx: StateTransaction, members: Iterable[RankKey]) -> float:
    """Return the seconds in which a restart must be over: more where startup probes allow more.

    The roles' times add up, since one may wait for another.
    """
    return limits.RESTART_TIME_LIMIT_S + sum(tx.facts(role).plan.startup_s for role in {role for role, _ in members})


def remaining_backoff_s(tx: StateTransaction, incidents: Iterable[Incident]) -> float:
    """Return the longest time (seconds) that one of these restarts still waits before it is launched; 0: none waits."""
    return max([0.0, *(incident.backoff_until - tx.now for incident in incidents if not incident.is_backoff_over)])


def _begin_new_generations(
    tx: StateTransaction, role: str, role_members: Sequence[RankKey], coupled_members: Sequence[RankKey]
) -> None:
    """Begin new runs, by which checkpoints are numbered, of the roles that restart whole; they start in order."""
    coupled_roles = dict.fromkeys(name for name, _ in coupled_members if name != role)
    if role in (name for name, _ in coupled_members) or len(role_members) == tx.facts(role).plan.replicas:
        starting.begin_generation(tx, role)
    for name in coupled_roles:
        starting.begin_generation(tx, name)
    coupling.make_roles_start_in_order(tx, (role, *coupled_roles))


def _restart_members(tx: StateTransaction, order: RestartOrder) -> tuple[RankKey, ...]:
    """Return the ranks that restart. At job level, roles that wait for another one to complete are not among them."""
    facts = tx.facts(order.role)
    if order.level is Level.PROCESS:
        return tuple((order.role, rank) for rank in order.ranks)
    if order.level is Level.ROLE_GROUP:
        groups = sorted({rank // facts.plan.group_size for rank in order.ranks})
        return tuple((order.role, rank) for group in groups for rank in facts.group_ranks(group))
    if order.level in (Level.IN_PROCESS, Level.ROLE):
        return tuple((order.role, rank) for rank in facts.ranks)
    return tuple((name, rank) for name, facts in tx.job.roles.items() if facts.starts_with_job for rank in facts.ranks)


def _target_in_messages(tx: StateTransaction, order: RestartOrder) -> str:
    """Return the restart's target as messages name it: "job", the role, or the first failed rank."""
    if order.level is Level.JOB:
        return "job"
    plan = tx.facts(order.role).plan
    is_only_group = order.level is Level.ROLE_GROUP and plan.groups == 1
    is_whole_role = is_only_group or order.level in (Level.IN_PROCESS, Level.ROLE)
    return order.role if is_whole_role else f"{order.role}/{order.ranks[0]}"


def _take_out_of_incidents(tx: StateTransaction, members: tuple[RankKey, ...]) -> tuple[int, ...]:
    """Take members out of their present incidents; return the faults of incidents that end because none are left."""
    leaver_counts = Counter(tx.ranks[key].incident for key in members)
    inherited_fault_numbers: list[int] = []
    for incident_number in sorted(leaver_counts):
        incident = tx.incidents.get(incident_number)
        if incident is None:
            continue
        # An incident without members is over, but what it would have recovered is inherited by the new one.
        unready_count = incident.unready_count - leaver_counts[incident_number]
        if unready_count:
            tx.incidents = tx.incidents.set(incident_number, evolve(incident, unready_count=unready_count))
            continue
        tx.incidents = tx.incidents.delete(incident_number)
        inherited_fault_numbers.extend(incident.fault_numbers)
        if not incident.is_backoff_over:
            _count_incident_in_backoff(tx, incident, change=-1)
    return tuple(inherited_fault_numbers)


def leave_restarts(tx: StateTransaction, dropped_ranks: tuple[RankKey, ...]) -> None:
    """Take ranks that their role drops out of their restarts; a restart that waited for no other rank is over."""
    tx.recover_faults(_take_out_of_incidents(tx, dropped_ranks))


def _reset_roles(tx: StateTransaction, reason: str) -> None:
    """Prepare all roles of a restarting job to start in order again, also those that the restart does not wait for."""
    for name, facts in tx.job.roles.items():
        tx.set_role(name, evolve(tx.roles[name], hosts_ordered=False, was_ready=False))
        if not facts.starts_with_job:
            _drain_or_kill_role(tx, name, reason)


def _drain_or_kill_role(tx: StateTransaction, role: str, reason: str) -> None:
    """End the ranks of a role that waits for another one to complete; its servers finish their requests.

    They belong to no incident, so their deadline is the role's. Until then the role does not begin anew.
    """
    facts = tx.facts(role)
    has_draining_ranks = False
    for host in facts.hosts():
        ranks = facts.ranks_of(host.index) if host.index != STORE_HOST_INDEX else ()
        can_drain = facts.plan.drain is not None and tx.hosts[host].phase is HostPhase.READY
        draining_ranks = tuple(rank for rank in ranks if can_drain and tx.ranks[role, rank].phase.live)
        for rank in ranks:
            old_state = tx.ranks[role, rank]
            if rank in draining_ranks:
                new_state = evolve(old_state, phase=RankPhase.STOPPING, incident=0, restart_reason=reason)
            else:
                new_state = evolve(old_state, phase=RankPhase.WAITING, incident=0, pid=0)
            tx.set_rank((role, rank), new_state)
        if draining_ranks:
            tx.do(stop_order(tx, host, draining_ranks))
        else:
            kill_host(tx, host)
        has_draining_ranks = has_draining_ranks or bool(draining_ranks)
    if has_draining_ranks:
        # The deadline of an earlier restart stands: the time of a drain began with that.
        stop_by = tx.roles[role].stop_by or tx.now + limits.HOST_STOP_S + _sigterm_grace_s(reason) + facts.plan.drain_s
        tx.set_role(role, evolve(tx.roles[role], stop_by=stop_by))
        tx.wake_at(stop_by)


def kill_overdue_hosts_of_role(tx: StateTransaction, role: str) -> None:
    """Kill the hosts of a role that did not end their ranks in time before it begins anew."""
    for host in tx.facts(role).hosts():
        ranks = tx.facts(role).ranks_of(host.index) if host.index != STORE_HOST_INDEX else ()
        late_ranks = [rank for rank in ranks if tx.ranks[role, rank].phase is RankPhase.STOPPING]
        if late_ranks:
            kill_host(tx, host)
            for rank in late_ranks:
                ending.mark_without_process(tx, (role, rank))


def start_ended_roles_anew(tx: StateTransaction) -> None:
    """Let roles begin anew whose last rank from before a restart of the job has ended."""
    if tx.roles is tx.base.roles or not tx.phase.active:
        return
    ended_roles = [name for name, state in tx.roles.items() if state.stop_by is not None and not state.stopping_count]
    for name in ended_roles:
        tx.set_role(name, evolve(tx.roles[name], stop_by=None))
    if ended_roles:
        _start_roles_unless_job_in_backoff(tx)


def _start_roles_unless_job_in_backoff(tx: StateTransaction) -> None:
    """Start the roles whose turn it is, unless a restart of the job waits out its backoff: it starts them itself."""
    if not any(incident.level is Level.JOB and not incident.is_backoff_over for incident in tx.incidents.values()):
        starting.start_roles(tx)


def _count_incident_in_backoff(tx: StateTransaction, incident: Incident, *, change: int) -> None:
    """Add one to, or take one from, the number of incidents that keep the roles of the members from starting."""
    for role in sorted({role for role, _ in incident.members}):
        role_state = tx.roles[role]
        tx.set_role(role, evolve(role_state, incidents_in_backoff=role_state.incidents_in_backoff + change))


def _rejoining_members(tx: StateTransaction, order: RestartOrder, members: tuple[RankKey, ...]) -> frozenset[RankKey]:
    """Return the members that keep their process and rejoin in it: those alive that did not fail themselves.

    An error that only reports a lost peer is no failure of the process. A failed rank, one that ended well and one that
    was half set up get a new process: the state that they left behind is unknown. A world restarts by processes only
    before it begins: where its store was lost, all its ranks wait, and those whose host is ready stay in it.
    """
    if order.level is Level.PROCESS and tx.facts(order.role).is_torch_world and not order.replaces_hosts:
        return frozenset(key for key in members if key[0] == order.role and tx.ranks[key].phase is RankPhase.WAITING)
    if order.level is not Level.IN_PROCESS or order.replaces_hosts:
        return frozenset()
    failed_ranks = () if order.failure is not None and order.failure.reports_lost_peer else order.ranks
    rejoining_members: set[RankKey] = set()
    for role, rank in members:
        phase = tx.ranks[role, rank].phase
        is_waiting_peer = phase is RankPhase.WAITING and rank not in failed_ranks
        if role == order.role and (phase.live or is_waiting_peer):
            rejoining_members.add((role, rank))
    return frozenset(rejoining_members)


def _take_down_members(tx: StateTransaction, incident_number: int, rejoining_members: frozenset[RankKey]) -> None:
    """End the members' processes. A fork host whose ranks alone restart, and a rank that rejoins, keep theirs."""
    incident = tx.incidents[incident_number]
    ranks_by_host: dict[HostId, list[int]] = {}
    for role, rank in incident.members:
        ranks_by_host.setdefault(tx.facts(role).host_of(rank), []).append(rank)
    has_stopping_ranks = False
    for host, ranks in ranks_by_host.items():
        # Three ways: a fork host stops its ranks and stays, the rank of a thread host leaves its group and stays, or
        # the host is killed. A host of one rank stays only if the rank has requests to finish; where the restart
        # replaces hosts, `replace_stopped_host` does so after them.
        facts = tx.facts(host.role)
        can_stay = facts.plan.drain is not None or (facts.ranks_per_host > 1 and not incident.replaces_hosts)
        can_rejoin = (host.role, ranks[0]) in rejoining_members
        if tx.hosts[host].phase is HostPhase.READY and (can_stay or can_rejoin):
            leaves_group = not can_stay
            is_stopping = _stop_host_ranks(tx, host, ranks, incident_number, leaves_group=leaves_group)
            has_stopping_ranks = has_stopping_ranks or is_stopping
        else:
            kill_host(tx, host)
            for rank in ranks:
                _mark_as_waiting_member(tx, (host.role, rank), incident_number)
    for role in sorted({role for role, _ in incident.members}):
        if tx.facts(role).is_torch_world and incident.replaces_hosts:
            kill_host(tx, HostId(role, STORE_HOST_INDEX))
    if has_stopping_ranks:
        stop_by = tx.now + _seconds_to_stop(tx, incident, has_rejoining_members=bool(rejoining_members))
        tx.incidents = tx.incidents.set(incident_number, evolve(tx.incidents[incident_number], stop_by=stop_by))
        tx.wake_at(stop_by)


def replace_stopped_host(tx: StateTransaction, key: RankKey) -> None:
    """Replace the host whose last rank has ended as ordered, if the restart replaces hosts."""
    role, rank = key
    incident, host = tx.incidents.get(tx.ranks[key].incident), tx.facts(role).host_of(rank)
    host_ranks = tx.facts(host.role).ranks_of(host.index)
    # A role that ends before it begins anew keeps no process either.
    replaces_host = tx.roles[host.role].stop_by is not None if incident is None else incident.replaces_hosts
    if not replaces_host or any(tx.ranks[host.role, rank].phase.live for rank in host_ranks):
        return
    kill_host(tx, host)
    if incident is not None and incident.is_backoff_over:
        starting.give_host_process_if_needed(tx, host)


def _seconds_to_stop(tx: StateTransaction, incident: Incident, *, has_rejoining_members: bool) -> float:
    """Return the seconds after which hosts are killed whose ranks have neither ended nor left their group."""
    plans = {role: tx.facts(role).plan for role, _ in incident.members}
    stopping_plans = {role: plan for role, plan in plans.items() if tx.facts(role).ranks_per_host > 1 or plan.drain}
    limit_s = limits.LEAVE_GROUP_S if has_rejoining_members else 0.0
    for role, plan in stopping_plans.items():
        grace_s = _sigterm_grace_s(coupling.restart_reason_of(incident, role))
        limit_s = max(limit_s, limits.HOST_STOP_S + grace_s + plan.drain_s)
    return limit_s


def _mark_as_waiting_member(tx: StateTransaction, key: RankKey, incident_number: int) -> None:
    """Mark a rank as waiting for a new process, as a member of an incident."""
    reason = coupling.restart_reason_of(tx.incidents[incident_number], key[0])
    new_state = evolve(tx.ranks[key], phase=RankPhase.WAITING, incident=incident_number, pid=0, restart_reason=reason)
    tx.set_rank(key, new_state)


def _stop_host_ranks(
    tx: StateTransaction, host: HostId, ranks: Sequence[int], incident_number: int, *, leaves_group: bool
) -> bool:
    """Ask the live ranks of a host to end, or to leave their torch group and stay; return whether there were any."""
    stopping_ranks = tuple(rank for rank in ranks if tx.ranks[host.role, rank].phase.live)
    reason = coupling.restart_reason_of(tx.incidents[incident_number], host.role)
    for rank in ranks:
        if rank not in stopping_ranks:
            _mark_as_waiting_member(tx, (host.role, rank), incident_number)
            continue
        rank_state = tx.ranks[host.role, rank]
        new_state = evolve(rank_state, phase=RankPhase.STOPPING, incident=incident_number, restart_reason=reason)
        tx.set_rank((host.role, rank), new_state)
    if stopping_ranks and leaves_group:
        tx.do(*(leave_order(tx, host, rank) for rank in stopping_ranks))
    elif stopping_ranks:
        tx.do(stop_order(tx, host, stopping_ranks))
    return bool(stopping_ranks)


def stop_order(tx: StateTransaction, host: HostId, ranks: tuple[int, ...]) -> StopRanks:
    """Return the order that ends ranks, in their present incarnations, on a host that will start them again."""
    incarnations = tuple(tx.ranks[host.role, rank].incarnation for rank in ranks)
    grace_s = _sigterm_grace_s(tx.ranks[host.role, ranks[0]].restart_reason)
    return StopRanks(host, tx.hosts[host].incarnation, ranks, grace_s, "restart", incarnations)


def _sigterm_grace_s(reason: str) -> float:
    """Return the seconds that scripts get to end after SIGTERM; 0 for a hang: a hung process would not react to it."""
    return 0.0 if reason == Reason.HANG else limits.SIGTERM_GRACE_S


def leave_order(tx: StateTransaction | JobState, host: HostId, rank: int) -> LeaveGroup:
    """Return the order that takes a rank out of its torch group; one that its shrinking role drops ends after that."""
    rank_state, host_state, role_size = tx.ranks[host.role, rank], tx.hosts[host], tx.sizes.get(host.role)
    is_dropped = role_size is not None and role_size.all_leave_user_code and rank >= role_size.target
    incarnation, reason = rank_state.incarnation, rank_state.restart_reason
    return LeaveGroup(host, host_state.incarnation, host_state.actor, rank, incarnation, reason, is_dropped)


def kill_host(tx: StateTransaction, host: HostId) -> None:
    """Kill a host's present process, if it has one."""
    host_state = tx.hosts[host]
    if host_state.phase is not HostPhase.DOWN:
        tx.set_host(host, evolve(host_state, phase=HostPhase.DOWN, pid=0, address=""))
        tx.do(KillHost(host, host_state.incarnation, host_state.actor))


def kill_single_rank_hosts(tx: StateTransaction, role: str, ranks: Iterable[int]) -> None:
    """Kill the processes of live ranks whose hosts have no other rank: peers leave their group only when it is gone."""
    facts = tx.facts(role)
    for rank in ranks if facts.ranks_per_host == 1 else ():
        if tx.ranks[role, rank].phase.live:
            kill_host(tx, facts.host_of(rank))
            ending.mark_without_process(tx, (role, rank))


def launch_restart(tx: StateTransaction, incident_number: int) -> None:
    """Start the members of a restart whose backoff is over."""
    incident = evolve(tx.incidents[incident_number], is_backoff_over=True)
    tx.incidents = tx.incidents.set(incident_number, incident)
    tx.wake_at(incident.deadline)
    _count_incident_in_backoff(tx, incident, change=-1)
    tx.changes.ranks.update(incident.members)
    # An earlier restart of the job whose members have all joined other restarts has not started its roles.
    _start_roles_unless_job_in_backoff(tx)
    hosts = dict.fromkeys(tx.facts(role).host_of(rank) for role, rank in incident.members)
    for role in sorted({role for role, _ in incident.members}):
        if tx.facts(role).is_torch_world:
            starting.give_host_process_if_needed(tx, HostId(role, STORE_HOST_INDEX))
    with tx.batch_changes():
        for host in hosts:
            if tx.hosts[host].phase is HostPhase.READY:
                starting.start_ranks_if_possible(tx, host)
            else:
                starting.give_host_process_if_needed(tx, host)


def launch_new_coupled_restarts(tx: StateTransaction) -> None:
    """Launch the restarts of coupled roles that began in this event, once those of all its failures have begun.

    A lost node takes ranks of several roles: a role that restarts with each of them must not start with the first while
    ranks of the second still run.
    """
    if tx.incidents is tx.base.incidents or not tx.phase.active:
        return
    new_numbers = [number for number in sorted(tx.incidents) if number > tx.base.serial]
    for incident_number in new_numbers:
        incident = tx.incidents[incident_number]
        if not incident.is_backoff_over and incident.backoff_until <= tx.now:
            launch_restart(tx, incident_number)


def kill_overdue_hosts_of_restart(tx: StateTransaction, incident_number: int) -> None:
    """Kill the hosts that did not end their ranks in time; their other live ranks join the restart."""
    incident = evolve(tx.incidents[incident_number], stop_by=None)
    tx.incidents = tx.incidents.set(incident_number, incident)
    members = [key for key in incident.members if tx.ranks[key].incident == incident_number]
    late_keys = [key for key in members if tx.ranks[key].phase is RankPhase.STOPPING]
    hosts = dict.fromkeys(tx.facts(role).host_of(rank) for role, rank in late_keys)
    for host in hosts:
        kill_host(tx, host)
        for rank in tx.facts(host.role).ranks_of(host.index):
            _add_live_rank_to_restart(tx, (host.role, rank), incident_number)
    for host in hosts:
        starting.give_host_process_if_needed(tx, host)


def _add_live_rank_to_restart(tx: StateTransaction, key: RankKey, incident_number: int) -> None:
    """Add a rank whose host was killed for another rank to that restart, unless it is in one already."""
    rank_state = tx.ranks[key]
    if not rank_state.phase.live:
        return
    if rank_state.incident in tx.incidents:
        _mark_as_waiting_member(tx, key, rank_state.incident)
        return
    incident = tx.incidents[incident_number]
    grown_incident = evolve(incident, members=(*incident.members, key), unready_count=incident.unready_count + 1)
    tx.incidents = tx.incidents.set(incident_number, grown_incident)
    _mark_as_waiting_member(tx, key, incident_number)
