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
from dljob.master.state.job import STORE
from dljob.master.state.state import HostPhase, Incident, JobState, RankKey, RankPhase
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import HostId, Level, Reason
from dljob.telemetry import reasons
from dljob.telemetry.wording import counted

GATHER_S = 2 * limits.LEAVE_S
"""Deadline after which the remaining ranks restart even if no new world size was decided."""


@dataclass(frozen=True, slots=True)
class RestartOrder:
    """A restart to begin. `ranks` failed (or were named by a command); the level decides which peers join them."""

    level: Level
    role: str
    ranks: tuple[int, ...]
    reason: str
    cause: str
    wait: float = 0.0
    """Seconds of backoff."""
    fresh: bool = False
    """Whether live hosts are replaced as well."""
    failure: Failure | None = None
    """The failure that caused it; None for an ordered restart."""
    root: int = 0
    """Number of the earlier fault that a restart without a failure of its own follows from; 0: none."""
    leaving: tuple[RankKey, ...] = ()
    """Ranks that the shrinking role drops; they leave their incidents and are not started again."""
    without_fault: bool = False
    """Whether it continues a restart that is under way with other members: no new fault, and not counted again."""
    gathers: bool = False
    """Whether ranks only leave user code: the number of ranks that start is decided once all have left."""


def begin(tx: StateTransaction, order: RestartOrder) -> None:
    """End the processes of a restart's members, and start them again at once or after the backoff."""
    if order.level is not Level.JOB and starting.ahead(tx, order.role):
        return  # the role has not begun: it starts in its present size when its turn comes
    own = _members(tx, order)
    along = () if order.level is Level.JOB else coupling.coupled_ranks(tx, order.role, own)
    members = (*own, *along)
    fresh = order.fresh or order.level is Level.JOB  # a restart of the job keeps no process
    number = tx.next_serial()
    target = _target(tx, order)
    fault = () if order.without_fault else (tx.add_fault(order.level, order.reason, target, order.cause),)
    follows = attribution.record_fault(tx, fault[0], order.failure, order.root) if fault else ""
    later = _later_ranks(tx) if order.level is Level.JOB else ()
    # Members leave the incidents they were in: a rank counts as pending in one incident only.
    inherited = _leave_incidents(tx, (*members, *later, *order.leaving))
    # A role that restarts as a whole begins a new life, which its checkpoints are numbered by.
    if order.level is Level.JOB:
        _reset_roles(tx, order.reason)
    else:
        _begin_lives(tx, order.role, own, along)
    due = tx.now + (GATHER_S if order.gathers else order.wait)
    tx.incidents = tx.incidents.set(
        number,
        Incident(
            level=order.level,
            role="" if order.level is Level.JOB else order.role,
            target=target,
            reason=order.reason,
            members=members,
            pending=len(members),
            detected=tx.now,
            due=due,
            deadline=due + time_to_start(tx, members),
            fresh=fresh,
            faults=(*inherited, *fault),
        ),
    )
    if not order.without_fault:
        roles = () if order.level is Level.JOB else dict.fromkeys((order.role, *(name for name, _ in along)))
        tx.count_restart(order.level, *roles)
    wait = f" in {order.wait:g} s" if order.wait else ""
    tx.note(
        reasons.RESTARTING,
        target,
        f"{order.cause}{follows}; restarting {counted(len(members), 'rank')}{wait}",
        level=order.level.value,
    )
    coupling.report_coupled_roles(tx, order.role, target, along)
    # Held until the backoff is over: a torch world must not start while some of its ranks still wait.
    _hold(tx, tx.incidents[number], 1)
    # Processes end at once even if the backoff lasts: peers of a dead rank would only wait for it.
    with tx.many():
        _take_down(tx, number, _staying(tx, order, members))
    if due > tx.now:
        tx.wake_at(due)
    else:
        launch(tx, number)


def time_to_start(tx: StateTransaction, members: Iterable[RankKey]) -> float:
    """Return the seconds in which a restart must be over: more where startup probes allow more.

    The roles' times add up, since one may wait for another.
    """
    return limits.RESTART_S + sum(tx.facts(role).plan.startup_s for role in {role for role, _ in members})


def _begin_lives(tx: StateTransaction, role: str, own: Sequence[RankKey], along: Sequence[RankKey]) -> None:
    """Begin new lives of the roles that restart as a whole, and order the start of those that restart together."""
    taken = dict.fromkeys(name for name, _ in along if name != role)
    if role in (name for name, _ in along) or len(own) == tx.facts(role).plan.replicas:
        starting.new_life(tx, role)
    for name in taken:
        starting.new_life(tx, name)
    coupling.start_roles_in_order(tx, (role, *taken))


def _members(tx: StateTransaction, order: RestartOrder) -> tuple[RankKey, ...]:
    """Return the ranks that restart. At job level, roles that wait for another one to complete are not among them."""
    facts = tx.facts(order.role)
    if order.level is Level.PROCESS:
        return tuple((order.role, rank) for rank in order.ranks)
    if order.level is Level.ROLE_GROUP:
        groups = sorted({rank // facts.plan.group_size for rank in order.ranks})
        return tuple((order.role, rank) for group in groups for rank in facts.group_ranks(group))
    if order.level in (Level.IN_PROCESS, Level.ROLE):
        return tuple((order.role, rank) for rank in facts.ranks)
    return tuple((name, rank) for name, f in tx.job.roles.items() if f.first_wave for rank in f.ranks)


def _target(tx: StateTransaction, order: RestartOrder) -> str:
    """Return the restart's target as messages name it: "job", the role, or the first failed rank."""
    if order.level is Level.JOB:
        return "job"
    plan = tx.facts(order.role).plan
    whole = order.level in (Level.IN_PROCESS, Level.ROLE) or (order.level is Level.ROLE_GROUP and plan.groups == 1)
    return order.role if whole else f"{order.role}/{order.ranks[0]}"


def _leave_incidents(tx: StateTransaction, members: tuple[RankKey, ...]) -> tuple[int, ...]:
    """Take members out of their present incidents; return the faults of incidents that end because none are left."""
    leaving = Counter(tx.ranks[key].incident for key in members)
    inherited: list[int] = []
    for number in sorted(leaving):
        incident = tx.incidents.get(number)
        if incident is None:
            continue
        # An incident without members is over, but what it would have recovered is inherited by the new one.
        pending = incident.pending - leaving[number]
        if pending:
            tx.incidents = tx.incidents.set(number, evolve(incident, pending=pending))
            continue
        tx.incidents = tx.incidents.delete(number)
        inherited.extend(incident.faults)
        if not incident.launched:
            _hold(tx, incident, -1)
    return tuple(inherited)


def leave(tx: StateTransaction, gone: tuple[RankKey, ...]) -> None:
    """Take ranks that are no more out of their restarts; those that waited for nobody else are over."""
    tx.recover_faults(_leave_incidents(tx, gone))


def _later_ranks(tx: StateTransaction) -> tuple[RankKey, ...]:
    """Return the ranks of roles that wait for another role to complete."""
    return tuple((name, rank) for name, f in tx.job.roles.items() if not f.first_wave for rank in f.ranks)


def _reset_roles(tx: StateTransaction, reason: str) -> None:
    """Prepare all roles of a restarting job to start in order again, also those that the restart does not wait for."""
    for name, facts in tx.job.roles.items():
        tx.set_role(name, evolve(tx.roles[name], spawned=False, was_ready=False))
        if not facts.first_wave:
            _end_later(tx, name, reason)


def _end_later(tx: StateTransaction, role: str, reason: str) -> None:
    """End the ranks of a role that waits for another one to complete; its servers finish their requests.

    They belong to no incident, so their deadline is the role's. Until then the role does not begin anew.
    """
    facts = tx.facts(role)
    finishing = False
    for host in facts.hosts():
        ranks = facts.ranks_of(host.index) if host.index != STORE else ()
        drains = facts.plan.drain is not None and tx.hosts[host].phase is HostPhase.READY
        live = tuple(rank for rank in ranks if drains and tx.ranks[role, rank].phase.live)
        for rank in ranks:
            old = tx.ranks[role, rank]
            if rank in live:
                new = evolve(old, phase=RankPhase.STOPPING, incident=0, restart_reason=reason)
            else:
                new = evolve(old, phase=RankPhase.WAITING, incident=0, pid=0)
            tx.set_rank((role, rank), new)
        if live:
            tx.do(stop_ranks(tx, host, live))
        else:
            kill(tx, host)
        finishing = finishing or bool(live)
    if finishing:
        # The deadline of an earlier restart stands: the time of a drain began with that.
        stop_by = tx.roles[role].stop_by or tx.now + limits.STOP_S + _grace(reason) + facts.plan.drain_s
        tx.set_role(role, evolve(tx.roles[role], stop_by=stop_by))
        tx.wake_at(stop_by)


def end_overdue(tx: StateTransaction, role: str) -> None:
    """Kill the hosts of a role that did not end their ranks in time before it begins anew."""
    for host in tx.facts(role).hosts():
        ranks = tx.facts(role).ranks_of(host.index) if host.index != STORE else ()
        late = [rank for rank in ranks if tx.ranks[role, rank].phase is RankPhase.STOPPING]
        if late:
            kill(tx, host)
            for rank in late:
                ending.drop_process(tx, (role, rank))


def follow_ends(tx: StateTransaction) -> None:
    """Let roles begin anew whose last rank of before a restart of the job has ended."""
    if tx.roles is tx.base.roles or not tx.phase.active:
        return
    over = [name for name, own in tx.roles.items() if own.stop_by is not None and not own.stopping]
    for name in over:
        tx.set_role(name, evolve(tx.roles[name], stop_by=None))
    if over:
        _start_in_order(tx)


def _start_in_order(tx: StateTransaction) -> None:
    """Start the roles whose turn it is, unless a restart of the job waits out its backoff: it starts them itself."""
    if not any(own.level is Level.JOB and not own.launched for own in tx.incidents.values()):
        starting.start_roles(tx)


def _hold(tx: StateTransaction, incident: Incident, change: int) -> None:
    """Change by one the number of incidents that keep the roles of the members from starting."""
    for role in sorted({role for role, _ in incident.members}):
        state = tx.roles[role]
        tx.set_role(role, evolve(state, hold=state.hold + change))


def _staying(tx: StateTransaction, order: RestartOrder, members: tuple[RankKey, ...]) -> frozenset[RankKey]:
    """Return the members that keep their process and rejoin in it: those alive that did not fail themselves.

    An error that only reports a lost peer is no failure of the process. A failed rank, one that ended well and one that
    was half set up get a new process: the state that they left behind is unknown. A world restarts by processes only
    before it begins: where its store was lost, all its ranks wait, and those whose host is ready stay in it.
    """
    if order.level is Level.PROCESS and tx.facts(order.role).world and not order.fresh:
        return frozenset(key for key in members if key[0] == order.role and tx.ranks[key].phase is RankPhase.WAITING)
    if order.level is not Level.IN_PROCESS or order.fresh:
        return frozenset()
    failed = () if order.failure is not None and order.failure.secondary else order.ranks
    return frozenset(
        key
        for key in members
        if key[0] == order.role
        and ((phase := tx.ranks[key].phase).live or (phase is RankPhase.WAITING and key[1] not in failed))
    )


def _take_down(tx: StateTransaction, number: int, staying: frozenset[RankKey]) -> None:
    """End the members' processes. A fork host whose ranks alone restart, and a rank that rejoins, keep theirs."""
    incident = tx.incidents[number]
    hosts: dict[HostId, list[int]] = {}
    for role, rank in incident.members:
        hosts.setdefault(tx.facts(role).host_of(rank), []).append(rank)
    stopping = False
    for host, ranks in hosts.items():
        # Three ways: a fork host stops its ranks and stays, the rank of a thread host leaves its group and stays, or
        # the host is killed. A host of one rank stays only if the rank has requests to finish; `renew` replaces it
        # after them, where the restart is fresh.
        facts = tx.facts(host.role)
        keep = facts.plan.drain is not None or (facts.ranks_per_host > 1 and not incident.fresh)
        if keep and tx.hosts[host].phase is HostPhase.READY:
            stopping = _stop(tx, host, ranks, number) or stopping
        elif (host.role, ranks[0]) in staying and tx.hosts[host].phase is HostPhase.READY:
            stopping = _leave(tx, host, ranks[0], number) or stopping
        else:
            kill(tx, host)
            for rank in ranks:
                _wait(tx, (host.role, rank), number)
    for role in sorted({role for role, _ in incident.members}):
        if tx.facts(role).world and incident.fresh:
            kill(tx, HostId(role, STORE))
    if stopping:
        stop_by = tx.now + _time_to_stop(tx, incident, staying=bool(staying))
        tx.incidents = tx.incidents.set(number, evolve(tx.incidents[number], stop_by=stop_by))
        tx.wake_at(stop_by)


def renew(tx: StateTransaction, key: RankKey) -> None:
    """Replace the host of a rank that ended as ordered, once its last rank has, where the restart is fresh."""
    incident, host = tx.incidents.get(tx.ranks[key].incident), tx.facts(key[0]).host_of(key[1])
    mine = tx.facts(host.role).ranks_of(host.index)
    # A role that ends before it begins anew keeps no process either.
    fresh = tx.roles[host.role].stop_by is not None if incident is None else incident.fresh
    if not fresh or any(tx.ranks[host.role, rank].phase.live for rank in mine):
        return
    kill(tx, host)
    if incident is not None and incident.launched:
        starting.ensure_host(tx, host)


def _time_to_stop(tx: StateTransaction, incident: Incident, *, staying: bool) -> float:
    """Return the seconds after which hosts are killed whose ranks have neither ended nor left their group."""
    plans = {role: tx.facts(role).plan for role, _ in incident.members}
    asked = {role: plan for role, plan in plans.items() if tx.facts(role).ranks_per_host > 1 or plan.drain}
    ends = (
        limits.STOP_S + _grace(coupling.restart_reason_of(incident, role)) + plan.drain_s
        for role, plan in asked.items()
    )
    return max([limits.LEAVE_S if staying else 0.0, *ends])


def _wait(tx: StateTransaction, key: RankKey, number: int) -> None:
    """Mark a rank as waiting for a new process, as a member of an incident."""
    reason = coupling.restart_reason_of(tx.incidents[number], key[0])
    old = tx.ranks[key]
    tx.set_rank(key, evolve(old, phase=RankPhase.WAITING, incident=number, pid=0, restart_reason=reason))


def _stop(tx: StateTransaction, host: HostId, ranks: list[int], number: int) -> bool:
    """Ask the live ranks of a host to end; return whether there were any."""
    live: list[int] = []
    for rank in ranks:
        old = tx.ranks[host.role, rank]
        if old.phase.live:
            reason = coupling.restart_reason_of(tx.incidents[number], host.role)
            stopping = evolve(old, phase=RankPhase.STOPPING, incident=number, restart_reason=reason)
            tx.set_rank((host.role, rank), stopping)
            live.append(rank)
        else:
            _wait(tx, (host.role, rank), number)
    if live:
        tx.do(stop_ranks(tx, host, tuple(live)))
    return bool(live)


def stop_ranks(tx: StateTransaction, host: HostId, ranks: tuple[int, ...]) -> StopRanks:
    """Return the order that ends ranks, in their present incarnations, on a host that will start them again."""
    incarnations = tuple(tx.ranks[host.role, rank].incarnation for rank in ranks)
    grace = _grace(tx.ranks[host.role, ranks[0]].restart_reason)
    return StopRanks(host, tx.hosts[host].life, ranks, grace, "restart", incarnations)


def _grace(reason: str) -> float:
    """Return the seconds that scripts get to end after SIGTERM; 0 for a hang: a hung process would not react to it."""
    return 0.0 if reason == Reason.HANG else limits.SCRIPT_GRACE_S


def _leave(tx: StateTransaction, host: HostId, rank: int, number: int) -> bool:
    """Ask a rank to leave its torch group in its process; return whether an answer is awaited."""
    old = tx.ranks[host.role, rank]
    if not old.phase.live:
        _wait(tx, (host.role, rank), number)
        return False
    reason = tx.incidents[number].reason
    tx.set_rank((host.role, rank), evolve(old, phase=RankPhase.STOPPING, incident=number, restart_reason=reason))
    tx.do(leave_group(tx, host, rank))
    return True


def leave_group(tx: StateTransaction | JobState, host: HostId, rank: int) -> LeaveGroup:
    """Return the order that takes a rank, in its present incarnation, out of its torch group."""
    own, state = tx.ranks[host.role, rank], tx.hosts[host]
    sizing = tx.sizes.get(host.role)
    parts = sizing is not None and sizing.parting and rank >= sizing.target
    return LeaveGroup(host, state.life, state.actor, rank, own.incarnation, own.restart_reason, parts)


def kill(tx: StateTransaction, host: HostId) -> None:
    """Kill a host's process, if it has one."""
    state = tx.hosts[host]
    if state.phase is not HostPhase.DOWN:
        tx.set_host(host, evolve(state, phase=HostPhase.DOWN, pid=0, address=""))
        tx.do(KillHost(host, state.life, state.actor))


def launch(tx: StateTransaction, number: int) -> None:
    """Start the members of a restart whose backoff is over."""
    incident = evolve(tx.incidents[number], launched=True)
    tx.incidents = tx.incidents.set(number, incident)
    tx.wake_at(incident.deadline)
    _hold(tx, incident, -1)
    tx.touched.ranks.update(incident.members)
    # At once: an earlier restart of the job that lost all its members to others left that to them.
    _start_in_order(tx)
    hosts = dict.fromkeys(tx.facts(role).host_of(rank) for role, rank in incident.members)
    for role in sorted({role for role, _ in incident.members}):
        if tx.facts(role).world:
            starting.ensure_host(tx, HostId(role, STORE))
    with tx.many():
        for host in hosts:
            if tx.hosts[host].phase is HostPhase.READY:
                starting.try_start(tx, host)
            else:
                starting.ensure_host(tx, host)


def stop_overdue(tx: StateTransaction, number: int) -> None:
    """Kill the hosts that did not end their ranks in time; their other live ranks join the restart."""
    incident = evolve(tx.incidents[number], stop_by=None)
    tx.incidents = tx.incidents.set(number, incident)
    late = [key for key in incident.members if _is_stopping(tx, key, number)]
    hosts = dict.fromkeys(tx.facts(role).host_of(rank) for role, rank in late)
    for host in hosts:
        kill(tx, host)
        for rank in tx.facts(host.role).ranks_of(host.index):
            _swept_along(tx, (host.role, rank), number)
    for host in hosts:
        starting.ensure_host(tx, host)


def _swept_along(tx: StateTransaction, key: RankKey, number: int) -> None:
    """Add a rank, whose host was killed because of another rank, to that restart, unless it is in one already."""
    rank = tx.ranks[key]
    if not rank.phase.live:
        return
    if rank.incident in tx.incidents:
        _wait(tx, key, rank.incident)
        return
    incident = tx.incidents[number]
    joined = evolve(incident, members=(*incident.members, key), pending=incident.pending + 1)
    tx.incidents = tx.incidents.set(number, joined)
    _wait(tx, key, number)


def _is_stopping(tx: StateTransaction, key: RankKey, number: int) -> bool:
    rank = tx.ranks[key]
    return rank.incident == number and rank.phase is RankPhase.STOPPING
