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


def begin(d: StateTransaction, order: RestartOrder) -> None:
    """End the processes of a restart's members, and start them again at once or after the backoff."""
    if order.level is not Level.JOB and starting.ahead(d, order.role):
        return  # the role has not begun: it starts in its present size when its turn comes
    own = _members(d, order)
    along = () if order.level is Level.JOB else coupling.joining(d, order.role, own)
    members = (*own, *along)
    fresh = order.fresh or order.level is Level.JOB  # a restart of the job keeps no process
    number = d.next_serial()
    target = _target(d, order)
    fault = () if order.without_fault else (d.add_fault(order.level, order.reason, target, order.cause),)
    follows = attribution.record_fault(d, fault[0], order.failure, order.root) if fault else ""
    later = _later_ranks(d) if order.level is Level.JOB else ()
    # Members leave the incidents they were in: a rank counts as pending in one incident only.
    inherited = _leave_incidents(d, (*members, *later, *order.leaving))
    # A role that restarts as a whole begins a new life, which its checkpoints are numbered by.
    if order.level is Level.JOB:
        _reset_roles(d, order.reason)
    else:
        _begin_lives(d, order.role, own, along)
    due = d.now + (GATHER_S if order.gathers else order.wait)
    d.incidents = d.incidents.set(
        number,
        Incident(
            level=order.level,
            role="" if order.level is Level.JOB else order.role,
            target=target,
            reason=order.reason,
            members=members,
            pending=len(members),
            detected=d.now,
            due=due,
            deadline=due + time_to_start(d, members),
            fresh=fresh,
            faults=(*inherited, *fault),
        ),
    )
    if not order.without_fault:
        roles = () if order.level is Level.JOB else dict.fromkeys((order.role, *(name for name, _ in along)))
        d.count_restart(order.level, *roles)
    wait = f" in {order.wait:g} s" if order.wait else ""
    d.note(
        reasons.RESTARTING,
        target,
        f"{order.cause}{follows}; restarting {counted(len(members), 'rank')}{wait}",
        level=order.level.value,
    )
    coupling.report(d, order.role, target, along)
    # Held until the backoff is over: a torch world must not start while some of its ranks still wait.
    _hold(d, d.incidents[number], 1)
    # Processes end at once even if the backoff lasts: peers of a dead rank would only wait for it.
    with d.many():
        _take_down(d, number, _staying(d, order, members))
    if due > d.now:
        d.wake_at(due)
    else:
        launch(d, number)


def time_to_start(d: StateTransaction, members: Iterable[RankKey]) -> float:
    """Return the seconds in which a restart must be over: more where startup probes allow more.

    The roles' times add up, since one may wait for another.
    """
    return limits.RESTART_S + sum(d.facts(role).plan.startup_s for role in {role for role, _ in members})


def _begin_lives(d: StateTransaction, role: str, own: Sequence[RankKey], along: Sequence[RankKey]) -> None:
    """Begin new lives of the roles that restart as a whole, and order the start of those that restart together."""
    taken = dict.fromkeys(name for name, _ in along if name != role)
    if role in (name for name, _ in along) or len(own) == d.facts(role).plan.replicas:
        starting.new_life(d, role)
    for name in taken:
        starting.new_life(d, name)
    coupling.start_in_order(d, (role, *taken))


def _members(d: StateTransaction, order: RestartOrder) -> tuple[RankKey, ...]:
    """Return the ranks that restart. At job level, roles that wait for another one to complete are not among them."""
    facts = d.facts(order.role)
    if order.level is Level.PROCESS:
        return tuple((order.role, rank) for rank in order.ranks)
    if order.level is Level.ROLE_GROUP:
        groups = sorted({rank // facts.plan.group_size for rank in order.ranks})
        return tuple((order.role, rank) for group in groups for rank in facts.group_ranks(group))
    if order.level in (Level.IN_PROCESS, Level.ROLE):
        return tuple((order.role, rank) for rank in facts.ranks)
    return tuple((name, rank) for name, f in d.job.roles.items() if f.first_wave for rank in f.ranks)


def _target(d: StateTransaction, order: RestartOrder) -> str:
    """Return the restart's target as messages name it: "job", the role, or the first failed rank."""
    if order.level is Level.JOB:
        return "job"
    plan = d.facts(order.role).plan
    whole = order.level in (Level.IN_PROCESS, Level.ROLE) or (order.level is Level.ROLE_GROUP and plan.groups == 1)
    return order.role if whole else f"{order.role}/{order.ranks[0]}"


def _leave_incidents(d: StateTransaction, members: tuple[RankKey, ...]) -> tuple[int, ...]:
    """Take members out of their present incidents; return the faults of incidents that end because none are left."""
    leaving = Counter(d.ranks[key].incident for key in members)
    inherited: list[int] = []
    for number in sorted(leaving):
        incident = d.incidents.get(number)
        if incident is None:
            continue
        # An incident without members is over, but what it would have recovered is inherited by the new one.
        pending = incident.pending - leaving[number]
        if pending:
            d.incidents = d.incidents.set(number, evolve(incident, pending=pending))
            continue
        d.incidents = d.incidents.delete(number)
        inherited.extend(incident.faults)
        if not incident.launched:
            _hold(d, incident, -1)
    return tuple(inherited)


def leave(d: StateTransaction, gone: tuple[RankKey, ...]) -> None:
    """Take ranks that are no more out of their restarts; those that waited for nobody else are over."""
    d.recover_faults(_leave_incidents(d, gone))


def _later_ranks(d: StateTransaction) -> tuple[RankKey, ...]:
    """Return the ranks of roles that wait for another role to complete."""
    return tuple((name, rank) for name, f in d.job.roles.items() if not f.first_wave for rank in f.ranks)


def _reset_roles(d: StateTransaction, reason: str) -> None:
    """Prepare all roles of a restarting job to start in order again, also those that the restart does not wait for."""
    for name, facts in d.job.roles.items():
        d.set_role(name, evolve(d.roles[name], spawned=False, was_ready=False))
        if not facts.first_wave:
            _end_later(d, name, reason)


def _end_later(d: StateTransaction, role: str, reason: str) -> None:
    """End the ranks of a role that waits for another one to complete; its servers finish their requests.

    They belong to no incident, so their deadline is the role's. Until then the role does not begin anew.
    """
    facts = d.facts(role)
    finishing = False
    for host in facts.hosts():
        ranks = facts.ranks_of(host.index) if host.index != STORE else ()
        drains = facts.plan.drain is not None and d.hosts[host].phase is HostPhase.READY
        live = tuple(rank for rank in ranks if drains and d.ranks[role, rank].phase.live)
        for rank in ranks:
            old = d.ranks[role, rank]
            if rank in live:
                new = evolve(old, phase=RankPhase.STOPPING, incident=0, restart_reason=reason)
            else:
                new = evolve(old, phase=RankPhase.WAITING, incident=0, pid=0)
            d.set_rank((role, rank), new)
        if live:
            d.do(stop_ranks(d, host, live))
        else:
            kill(d, host)
        finishing = finishing or bool(live)
    if finishing:
        # The deadline of an earlier restart stands: the time of a drain began with that.
        stop_by = d.roles[role].stop_by or d.now + limits.STOP_S + _grace(reason) + facts.plan.drain_s
        d.set_role(role, evolve(d.roles[role], stop_by=stop_by))
        d.wake_at(stop_by)


def end_overdue(d: StateTransaction, role: str) -> None:
    """Kill the hosts of a role that did not end their ranks in time before it begins anew."""
    for host in d.facts(role).hosts():
        ranks = d.facts(role).ranks_of(host.index) if host.index != STORE else ()
        late = [rank for rank in ranks if d.ranks[role, rank].phase is RankPhase.STOPPING]
        if late:
            kill(d, host)
            for rank in late:
                ending.drop_process(d, (role, rank))


def follow_ends(d: StateTransaction) -> None:
    """Let roles begin anew whose last rank of before a restart of the job has ended."""
    if d.roles is d.base.roles or not d.phase.active:
        return
    over = [name for name, own in d.roles.items() if own.stop_by is not None and not own.stopping]
    for name in over:
        d.set_role(name, evolve(d.roles[name], stop_by=None))
    if over:
        _start_in_order(d)


def _start_in_order(d: StateTransaction) -> None:
    """Start the roles whose turn it is, unless a restart of the job waits out its backoff: it starts them itself."""
    if not any(own.level is Level.JOB and not own.launched for own in d.incidents.values()):
        starting.start_roles(d)


def _hold(d: StateTransaction, incident: Incident, change: int) -> None:
    """Change by one the number of incidents that keep the roles of the members from starting."""
    for role in sorted({role for role, _ in incident.members}):
        state = d.roles[role]
        d.set_role(role, evolve(state, hold=state.hold + change))


def _staying(d: StateTransaction, order: RestartOrder, members: tuple[RankKey, ...]) -> frozenset[RankKey]:
    """Return the members that keep their process and rejoin in it: those alive that did not fail themselves.

    An error that only reports a lost peer is no failure of the process. A failed rank, one that ended well and one that
    was half set up get a new process: the state that they left behind is unknown. A world restarts by processes only
    before it begins: where its store was lost, all its ranks wait, and those whose host is ready stay in it.
    """
    if order.level is Level.PROCESS and d.facts(order.role).world and not order.fresh:
        return frozenset(key for key in members if key[0] == order.role and d.ranks[key].phase is RankPhase.WAITING)
    if order.level is not Level.IN_PROCESS or order.fresh:
        return frozenset()
    failed = () if order.failure is not None and order.failure.secondary else order.ranks
    return frozenset(
        key
        for key in members
        if key[0] == order.role
        and ((phase := d.ranks[key].phase).live or (phase is RankPhase.WAITING and key[1] not in failed))
    )


def _take_down(d: StateTransaction, number: int, staying: frozenset[RankKey]) -> None:
    """End the members' processes. A fork host whose ranks alone restart, and a rank that rejoins, keep theirs."""
    incident = d.incidents[number]
    hosts: dict[HostId, list[int]] = {}
    for role, rank in incident.members:
        hosts.setdefault(d.facts(role).host_of(rank), []).append(rank)
    stopping = False
    for host, ranks in hosts.items():
        # Three ways: a fork host stops its ranks and stays, the rank of a thread host leaves its group and stays, or
        # the host is killed. A host of one rank stays only if the rank has requests to finish; `renew` replaces it
        # after them, where the restart is fresh.
        facts = d.facts(host.role)
        keep = facts.plan.drain is not None or (facts.ranks_per_host > 1 and not incident.fresh)
        if keep and d.hosts[host].phase is HostPhase.READY:
            stopping = _stop(d, host, ranks, number) or stopping
        elif (host.role, ranks[0]) in staying and d.hosts[host].phase is HostPhase.READY:
            stopping = _leave(d, host, ranks[0], number) or stopping
        else:
            kill(d, host)
            for rank in ranks:
                _wait(d, (host.role, rank), number)
    for role in sorted({role for role, _ in incident.members}):
        if d.facts(role).world and incident.fresh:
            kill(d, HostId(role, STORE))
    if stopping:
        stop_by = d.now + _time_to_stop(d, incident, staying=bool(staying))
        d.incidents = d.incidents.set(number, evolve(d.incidents[number], stop_by=stop_by))
        d.wake_at(stop_by)


def renew(d: StateTransaction, key: RankKey) -> None:
    """Replace the host of a rank that ended as ordered, once its last rank has, where the restart is fresh."""
    incident, host = d.incidents.get(d.ranks[key].incident), d.facts(key[0]).host_of(key[1])
    mine = d.facts(host.role).ranks_of(host.index)
    # A role that ends before it begins anew keeps no process either.
    fresh = d.roles[host.role].stop_by is not None if incident is None else incident.fresh
    if not fresh or any(d.ranks[host.role, rank].phase.live for rank in mine):
        return
    kill(d, host)
    if incident is not None and incident.launched:
        starting.ensure_host(d, host)


def _time_to_stop(d: StateTransaction, incident: Incident, *, staying: bool) -> float:
    """Return the seconds after which hosts are killed whose ranks have neither ended nor left their group."""
    plans = {role: d.facts(role).plan for role, _ in incident.members}
    asked = {role: plan for role, plan in plans.items() if d.facts(role).ranks_per_host > 1 or plan.drain}
    ends = (limits.STOP_S + _grace(coupling.reason_of(incident, role)) + plan.drain_s for role, plan in asked.items())
    return max([limits.LEAVE_S if staying else 0.0, *ends])


def _wait(d: StateTransaction, key: RankKey, number: int) -> None:
    """Mark a rank as waiting for a new process, as a member of an incident."""
    reason = coupling.reason_of(d.incidents[number], key[0])
    old = d.ranks[key]
    d.set_rank(key, evolve(old, phase=RankPhase.WAITING, incident=number, pid=0, restart_reason=reason))


def _stop(d: StateTransaction, host: HostId, ranks: list[int], number: int) -> bool:
    """Ask the live ranks of a host to end; return whether there were any."""
    live: list[int] = []
    for rank in ranks:
        old = d.ranks[host.role, rank]
        if old.phase.live:
            reason = coupling.reason_of(d.incidents[number], host.role)
            stopping = evolve(old, phase=RankPhase.STOPPING, incident=number, restart_reason=reason)
            d.set_rank((host.role, rank), stopping)
            live.append(rank)
        else:
            _wait(d, (host.role, rank), number)
    if live:
        d.do(stop_ranks(d, host, tuple(live)))
    return bool(live)


def stop_ranks(d: StateTransaction, host: HostId, ranks: tuple[int, ...]) -> StopRanks:
    """Return the order that ends ranks, in their present incarnations, on a host that will start them again."""
    incarnations = tuple(d.ranks[host.role, rank].incarnation for rank in ranks)
    grace = _grace(d.ranks[host.role, ranks[0]].restart_reason)
    return StopRanks(host, d.hosts[host].life, ranks, grace, "restart", incarnations)


def _grace(reason: str) -> float:
    """Return the seconds that scripts get to end after SIGTERM; 0 for a hang: a hung process would not react to it."""
    return 0.0 if reason == Reason.HANG else limits.SCRIPT_GRACE_S


def _leave(d: StateTransaction, host: HostId, rank: int, number: int) -> bool:
    """Ask a rank to leave its torch group in its process; return whether an answer is awaited."""
    old = d.ranks[host.role, rank]
    if not old.phase.live:
        _wait(d, (host.role, rank), number)
        return False
    reason = d.incidents[number].reason
    d.set_rank((host.role, rank), evolve(old, phase=RankPhase.STOPPING, incident=number, restart_reason=reason))
    d.do(leave_group(d, host, rank))
    return True


def leave_group(d: StateTransaction | JobState, host: HostId, rank: int) -> LeaveGroup:
    """Return the order that takes a rank, in its present incarnation, out of its torch group."""
    own, state = d.ranks[host.role, rank], d.hosts[host]
    sizing = d.sizes.get(host.role)
    parts = sizing is not None and sizing.parting and rank >= sizing.target
    return LeaveGroup(host, state.life, state.actor, rank, own.incarnation, own.restart_reason, parts)


def kill(d: StateTransaction, host: HostId) -> None:
    """Kill a host's process, if it has one."""
    state = d.hosts[host]
    if state.phase is not HostPhase.DOWN:
        d.set_host(host, evolve(state, phase=HostPhase.DOWN, pid=0, address=""))
        d.do(KillHost(host, state.life, state.actor))


def launch(d: StateTransaction, number: int) -> None:
    """Start the members of a restart whose backoff is over."""
    incident = evolve(d.incidents[number], launched=True)
    d.incidents = d.incidents.set(number, incident)
    d.wake_at(incident.deadline)
    _hold(d, incident, -1)
    d.touched.ranks.update(incident.members)
    # At once: an earlier restart of the job that lost all its members to others left that to them.
    _start_in_order(d)
    hosts = dict.fromkeys(d.facts(role).host_of(rank) for role, rank in incident.members)
    for role in sorted({role for role, _ in incident.members}):
        if d.facts(role).world:
            starting.ensure_host(d, HostId(role, STORE))
    with d.many():
        for host in hosts:
            if d.hosts[host].phase is HostPhase.READY:
                starting.try_start(d, host)
            else:
                starting.ensure_host(d, host)


def stop_overdue(d: StateTransaction, number: int) -> None:
    """Kill the hosts that did not end their ranks in time; their other live ranks join the restart."""
    incident = evolve(d.incidents[number], stop_by=None)
    d.incidents = d.incidents.set(number, incident)
    late = [key for key in incident.members if _is_stopping(d, key, number)]
    hosts = dict.fromkeys(d.facts(role).host_of(rank) for role, rank in late)
    for host in hosts:
        kill(d, host)
        for rank in d.facts(host.role).ranks_of(host.index):
            _swept_along(d, (host.role, rank), number)
    for host in hosts:
        starting.ensure_host(d, host)


def _swept_along(d: StateTransaction, key: RankKey, number: int) -> None:
    """Add a rank, whose host was killed because of another rank, to that restart, unless it is in one already."""
    rank = d.ranks[key]
    if not rank.phase.live:
        return
    if rank.incident in d.incidents:
        _wait(d, key, rank.incident)
        return
    incident = d.incidents[number]
    joined = evolve(incident, members=(*incident.members, key), pending=incident.pending + 1)
    d.incidents = d.incidents.set(number, joined)
    _wait(d, key, number)


def _is_stopping(d: StateTransaction, key: RankKey, number: int) -> bool:
    rank = d.ranks[key]
    return rank.incident == number and rank.phase is RankPhase.STOPPING
