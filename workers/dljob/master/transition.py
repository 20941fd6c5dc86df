"""The pure core of PrimeMaster: `transition(state, event, now) -> Step`, defined for every event in every state.

The same state, event and time give the same step, so a replayed journal rebuilds the same state. A stale event (of an
older incarnation, token or epoch, or a command seen before) changes nothing, so every event may arrive late or
twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from immutables import Map

from dljob.master.failure import (
    attribution,
    budget,
    cuts,
    deliveries,
    ending,
    failover,
    hanging,
    lost_peers,
    memory,
    moving,
    restart,
    stalling,
    tf_cluster,
)
from dljob.master.ledger import rules
from dljob.master.placement import (
    admission,
    autoscale,
    checked,
    commands,
    departures,
    elastic,
    nodes,
    previous_attempt,
    timers,
)
from dljob.master.start import (
    checkpoints,
    driver_groups,
    problems,
    relaunch,
    shards,
    spares,
    standby,
    starting,
    weights,
)
from dljob.master.state.actions import KillHost
from dljob.master.state.events import (
    Carried,
    CauseLearned,
    CheckpointCommitted,
    CheckpointDecided,
    Commanded,
    CopiesSaved,
    CutAsked,
    CutBegun,
    CutDamaged,
    CutGivenUp,
    CutSealed,
    CutsFound,
    CutTaken,
    DeliveriesFailed,
    Event,
    GroupAsked,
    HangFound,
    HostLost,
    HostReady,
    LoadSeen,
    MasterStarted,
    NodeFrozen,
    NodesChecked,
    NodesSeen,
    NodeThawed,
    NoteReported,
    PartAnswers,
    PartSilent,
    PeersSeen,
    ProblemReported,
    QueueOpened,
    RankEnded,
    RankReady,
    RankServes,
    RelaunchTold,
    Released,
    ShardsTold,
    SpareLost,
    SpareReady,
    StallsFound,
    Stepped,
    Tick,
    UnitRefused,
    UnitReserved,
    WeightsLoaded,
    WeightsPublished,
    WorkBegan,
)
from dljob.master.state.evolve import evolve
from dljob.master.state.job import STORE_HOST_INDEX, Job
from dljob.master.state.ledger import new_ledger
from dljob.master.state.problems import StandingProblem
from dljob.master.state.state import (
    HostPhase,
    HostState,
    JobState,
    Phase,
    RankPhase,
    RankState,
    RoleState,
    Search,
    Step,
    UnitState,
    homeless_units,
)
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import HostId, Level, Outcome, Reason
from dljob.plan.model import JobPlan
from dljob.spec.model import DLJobSpec
from dljob.telemetry import reasons
from dljob.telemetry.wording import counted


def initial(plan: JobPlan, spec: DLJobSpec, uid: str, now: float, *, own_nodes: bool = False) -> JobState:
    """Return the state of a new job. `now` is its start (unix seconds); `own_nodes` as in `Job`."""
    job = Job(plan, spec, uid, own_nodes)
    units = Map({name: UnitState() for name in plan.units})
    state = JobState(
        job=job,
        phase=Phase.PENDING,
        started_at=now,
        search=Search(),
        roles=Map({name: RoleState(waiting_count=role.replicas) for name, role in plan.roles.items()}),
        ranks=Map({(name, rank): RankState() for name, role in plan.roles.items() for rank in range(role.replicas)}),
        hosts=Map({host: HostState() for facts in job.roles.values() for host in facts.hosts()}),
        units=units,
        homeless=homeless_units(units),
        sizes=elastic.initial_sizings(plan),
        ledger=new_ledger({name: role.replicas for name, role in plan.roles.items()}),
    )
    return evolve(state, wake=timers.earliest_timer(state))


def next_wake(state: JobState) -> float | None:
    """Return when the next Tick is due (unix seconds); None: no timer runs, and only events change anything."""
    return state.wake


def transition(state: JobState, event: Event, now: float) -> Step:
    """Return the new state after an event, the actions to perform and the reason for them."""
    # A finished job changes no more, but a later epoch must still be counted: it fences its predecessor.
    if state.phase.final and not isinstance(event, MasterStarted):
        return Step(state)
    d = StateTransaction(state, now)
    _HANDLERS[type(event)](d, event)
    # Ends that only reported the loss of a peer, where the event has shown the cause or nobody is left to show it.
    _end_inquiries(d)
    # The rules below follow from the state as a whole, whichever event changed it. Their order matters.
    # Ranks of coupled roles start again once all of them have ended.
    starting.start_after_coupled_stops(d)
    # A rule that replaces a node only records it in d.node_departures: its units move here, once, after the handler.
    nodes.leave_by_rule(d)
    # A cause that became known too late for the restart may still ask for more memory.
    memory.raise_memory_of_late_kills(d)
    # Units lost above look for nodes now, and a search without lost units ends.
    admission.follow(d)
    # Servers that have finished go to another domain, or start again where they are.
    admission.follow_move(d)
    moving.restart_staying_servers(d)
    # Roles that a restart of the job ended begin anew once their servers have finished, or were killed just now.
    restart.start_ended_roles_anew(d)
    if d.running_at is not None and d.phase.active:
        well = not d.incidents and (d.phase is Phase.RUNNING or _first_wave_was_ready(d))
        d.phase = Phase.RUNNING if well else Phase.RECOVERING
    # Growth and standby nodes depend on the phase settled above; a node that a role grows onto stands by no longer.
    elastic.follow(d)
    # The last rule that begins restarts was above.
    restart.launch_new_coupled_restarts(d)
    standby.update_standby_spares(d)
    # Ranks that ended or restarted above give their data leases back.
    shards.return_leases(d)
    # Ranks that became ready, or whose load is due again, load now.
    weights.order_loads(d)
    # A cut ends with its ranks, or is committed when the last of it is on disk.
    cuts.commit_or_give_up_cut(d)
    # Ranks that ended or restarted above stand still no longer.
    if d.stalls:
        stalling.drop_ended_ranks_from_stalls(d)
    # Last: the ledger books each rank by the state in which the whole transition leaves it.
    rules.settle(d, event)
    return Step(d.freeze(), tuple(d.actions), "; ".join(d.reasons))


def _master_started(d: StateTransaction, event: MasterStarted) -> None:
    """Handle a new epoch: count the restart, and fail the job when master.maxRestarts is exceeded."""
    if event.epoch <= d.epoch:
        return
    d.epoch = event.epoch
    for role, text in event.chosen:
        d.note(reasons.RESOURCES_CHOSEN, role, text)
    if event.epoch == 1 or d.phase.final:  # the first start is no restart
        return
    most = d.job.spec.master.max_restarts
    count = budget.add_mark(d, budget.MASTER_BUDGET_KEY)
    d.count_restart(Level.MASTER)
    cause = f"PrimeMaster restarted{f': {event.cause}' if event.cause else ''}"
    d.recover_faults((d.add_fault(Level.MASTER, reasons.MASTER_RESTARTED, "master", cause),))
    message = f"{cause}; epoch {event.epoch}, {counted(d.live_rank_count, 'rank')} still alive"
    d.note(reasons.MASTER_RESTARTED, "master", message, level=Level.MASTER.value)
    if event.journal:
        _other_version(d, event)
    if count > most:
        window = d.job.fault_tolerance.window_seconds
        limit_message = f"PrimeMaster restarted {counted(count, 'time')} within {window} s, {most} are allowed"
        ending.fail_job(d, reasons.MASTER_BUDGET, limit_message)


def _other_version(d: StateTransaction, event: MasterStarted) -> None:
    """Report a journal of another version. If its state was not taken over, the restart of all ranks is not charged."""
    if not event.anew:
        d.note(reasons.JOURNAL_TAKEN_OVER, "master", event.journal)
        return
    d.note(reasons.JOURNAL_NOT_TAKEN_OVER, "master", event.journal)
    if not d.ending:
        d.count_restart(Level.JOB)
        d.add_fault(Level.JOB, "Unknown", "job", event.journal)


def _first_wave_was_ready(d: StateTransaction) -> bool:
    """Whether all first-wave roles were ready. For a job that ran before, False means that it had to begin anew."""
    return all(d.roles[name].was_ready for name, facts in d.job.roles.items() if facts.starts_with_job)


def _host_ready(d: StateTransaction, event: HostReady) -> None:
    """Handle a host's first answer: record its node, pid and devices, and start its ranks if nothing is missing."""
    state = d.hosts.get(event.host)
    if state is None or state.incarnation != event.incarnation or state.phase is not HostPhase.SPAWNING:
        return
    new = evolve(
        state,
        phase=HostPhase.READY,
        node=event.node,
        pid=event.pid,
        actor=event.actor,
        devices=event.devices,
        slots=event.slots,
        address=event.address,
        unconfirmed=(),  # the executor kills before it spawns: an answer proves that the earlier kills were carried out
    )
    d.set_host(event.host, new)
    if d.phase.active:
        starting.start_ranks_if_possible(d, event.host)


def _host_lost(d: StateTransaction, event: HostLost) -> None:
    """Handle the end of a host's process, with which all its unfinished ranks ended."""
    state = d.hosts.get(event.host)
    if state is None or state.incarnation != event.incarnation or state.phase is HostPhase.DOWN:
        # A process that was already being replaced may have been the first cause of that restart: only attribute it.
        if state is not None and event.host.index != STORE_HOST_INDEX and event.incarnation >= state.incarnation - 1:
            ranks = d.facts(event.host.role).ranks_of(event.host.index)
            attribution.record_late_loss(d, event.host.role, ranks, event.outcome)
        return
    # A lost node takes all its hosts: handle them as one failure rather than as one restart for each host.
    if event.outcome.reason is Reason.NODE_LOST and nodes.node_lost(d, state.node):
        return
    if not lost_peers.hold_host_loss(d, event):
        _lose_host(d, event)


def _lose_host(d: StateTransaction, event: HostLost) -> None:
    """Take a lost host and its ranks down, unless that was done meanwhile."""
    state = d.hosts[event.host]
    if state.incarnation != event.incarnation or state.phase is HostPhase.DOWN:
        attribution.record_late_loss(
            d, event.host.role, d.facts(event.host.role).ranks_of(event.host.index), event.outcome
        )
        return
    # A report about a process that was being created proves, too, that the kills ordered before it were carried out.
    unconfirmed = () if state.phase is HostPhase.SPAWNING else state.unconfirmed
    d.set_host(event.host, evolve(state, phase=HostPhase.DOWN, pid=0, address="", unconfirmed=unconfirmed))
    # Kill it all the same: a host that could not be made in time may still come up after this report.
    d.do(KillHost(event.host, state.incarnation, state.actor))
    if event.host.index == STORE_HOST_INDEX:
        if d.phase.active:
            failover.restart_world(d, event.host.role, event.outcome)
        return
    # Its ranks: as failures, as ordered stops, or as leavers of a job that ends.
    keys = [(event.host.role, rank) for rank in d.facts(event.host.role).ranks_of(event.host.index)]
    if not d.phase.active:
        for key in keys:
            if d.ranks[key].phase.live:
                ending.record_stopped_rank(d, key)
        return
    # Ranks that were being stopped are gone as ordered, which is no failure; only the others cost a budget.
    asked = [key for key in keys if d.ranks[key].phase is RankPhase.STOPPING]
    # A role whose earlier ranks still end has nothing else to lose.
    begun_anew = d.roles[event.host.role].stop_by is None
    lost = [key for key in keys if begun_anew and ending.is_unfinished(d.ranks[key]) and key not in asked]
    # `begun` must be asked before the ranks become WAITING below.
    role, begun = event.host.role, failover.has_started_a_rank(d, event.host.role)
    for key in (*asked, *lost):
        ending.mark_without_process(d, key)
    if lost:
        ranks = tuple(rank for _, rank in lost)
        failover.handle_failed_ranks(d, role, ranks, event.outcome, host_lost=True, has_started_rank=begun)
    else:
        starting.give_host_process_if_needed(d, event.host)


def _end_inquiries(d: StateTransaction) -> None:
    """Handle ends that were held while the cause was looked for, where that is over."""
    if d.inquiries:
        for held_event in lost_peers.end_inquiries(d):
            if isinstance(held_event, RankEnded):
                _end_rank(d, held_event)
            else:
                _lose_host(d, held_event)


def _spare_lost(d: StateTransaction, event: SpareLost) -> None:
    """Handle the end of a spare; if a host has taken it meanwhile, that host is lost."""
    host = spares.host_of_lost_spare(d, event)
    if host is None:
        spares.replace_lost(d, event)
    else:
        outcome = Outcome(
            ok=False, reason=Reason.UNKNOWN, message="the spare that became its process died before it started"
        )
        _host_lost(d, HostLost(host, d.hosts[host].incarnation, outcome))


def _rank_ready(d: StateTransaction, event: RankReady) -> None:
    """Handle a ready rank: its restart, if any, may be over, and roles that wait for it may start."""
    key = (event.role, event.rank)
    rank = d.ranks.get(key)
    if rank is None or rank.incarnation != event.incarnation or rank.phase is not RankPhase.STARTING:
        return
    failover.mark_rank_done_in_restart(d, key)
    new = evolve(
        rank,
        phase=RankPhase.READY,
        pid=event.pid,
        incident=0,
        goal=event.goal,
        stepped=False,
        has_worked=False,
        ready_at=d.now,
    )
    d.set_rank(key, new)
    _confirm(d, d.facts(event.role).host_of(event.rank))
    if d.phase.active:
        ending.advance_role_and_job(d, event.role)


def _rank_serves(d: StateTransaction, event: RankServes) -> None:
    """Record where a rank serves, and whether it gets requests; each change of a ready rank is told.

    So is a server that cannot become ready. One that starts fails its probe too, of which nothing is reported.
    """
    key = (event.role, event.rank)
    rank = d.ranks.get(key)
    if rank is None or rank.incarnation != event.incarnation:
        return
    if rank.phase not in (RankPhase.STARTING, RankPhase.READY):
        return
    # A restarted rank that becomes ready for the first time is no change of readiness: its restart is told.
    if rank.phase is RankPhase.READY and rank.addresses and rank.serving != event.ready:
        words = "is ready again" if event.ready else "gets no requests: it is not ready"
        d.note(reasons.READINESS_CHANGED, f"{event.role}/{event.rank}", f"{words} ({event.why})")
    elif rank.phase is RankPhase.STARTING and event.why and not event.ready:
        words = f"does not become ready: its server does not serve what readinessProbe asks for ({event.why})"
        d.note(reasons.READINESS_CHANGED, f"{event.role}/{event.rank}", words)
    new_state = evolve(rank, addresses=event.addresses, serving=event.ready, cluster=event.cluster or rank.cluster)
    d.set_rank(key, new_state)
    if event.cluster:
        tf_cluster.restart_chief_on_new_address(d, event, rank)


def _confirm(d: StateTransaction, host: HostId) -> None:
    """Forget the unconfirmed kills of a host: a rank that started in it proves that they were carried out."""
    state = d.hosts[host]
    if state.unconfirmed:
        d.set_host(host, evolve(state, unconfirmed=()))


def _stepped(d: StateTransaction, event: Stepped) -> None:
    """Handle a step of a restarted rank: it repeats work below `goal`, or does new work from there on."""
    key = (event.role, event.rank)
    rank = d.ranks.get(key)
    if rank is None or rank.incarnation != event.incarnation or rank.goal is None:
        return
    goal = None if event.step >= rank.goal else rank.goal
    if rank.phase is RankPhase.READY and (goal is None or not rank.stepped):
        d.set_rank(key, evolve(rank, goal=goal, stepped=True))


def _work_began(d: StateTransaction, event: WorkBegan) -> None:
    """Record the first work of processes: before it they were starting, which only now is known."""
    for role, number, incarnation, at in event.ranks:
        key = (role, number)
        rank = d.ranks.get(key)
        if rank is None or rank.incarnation != incarnation or rank.phase is not RankPhase.READY:
            continue
        if not rank.has_worked:
            d.set_rank(key, evolve(rank, has_worked=True))
            d.changes.first_work_at[key] = at


def _rank_ended(d: StateTransaction, event: RankEnded) -> None:
    """Handle the end of a rank's user code, or hold it while the cause of a lost peer is looked for."""
    key = (event.role, event.rank)
    rank = d.ranks.get(key)
    present = rank is not None and rank.incarnation == event.incarnation and rank.phase in _RUNNING
    if not (present and d.phase.active and not event.outcome.ok and lost_peers.hold_end(d, key, event.outcome)):
        _end_rank(d, event)


_RUNNING = (RankPhase.STARTING, RankPhase.READY)


def _end_rank(d: StateTransaction, event: RankEnded) -> None:
    """Handle the end of a rank's user code: by itself, as ordered, at the job's end, or too late to change anything."""
    key = (event.role, event.rank)
    rank = d.ranks.get(key)
    if rank is None:
        return
    is_present = rank.incarnation == event.incarnation and rank.phase.live
    if is_present and event.outcome.ok and event.outcome.error_type:
        frame = f" (at {event.outcome.frame})" if event.outcome.frame else ""
        name, error = f"{event.role}/{event.rank}", f"{event.outcome.error_type}: {event.outcome.message}"
        words = f"{error}{frame}; the result of its run() counts all the same"
        d.note(reasons.SHUTDOWN_FAILED, name, words)
        problems.record_problem(d, StandingProblem(reasons.SHUTDOWN_FAILED, name, f"{name}: {words}", d.now))
    if not is_present:
        # The rank was already taken down: its end may still be the first cause of why.
        attribution.handle_late_end(d, *key, event.incarnation, event.outcome)
    elif not d.phase.active:
        attribution.handle_late_end(d, *key, event.incarnation, event.outcome)
        ending.record_stopped_rank(d, key)
    elif rank.phase is RankPhase.STOPPING:
        # It ended as ordered, which is no failure; with the last one a torch world can start again.
        ending.mark_without_process(d, key)
        restart.replace_stopped_host(d, key)
        starting.start_ranks_if_possible(d, d.facts(event.role).host_of(event.rank))
        attribution.handle_late_end(d, *key, event.incarnation, event.outcome)
        departures.leave_after_drain(d)
    elif event.outcome.ok:
        failover.mark_rank_done_in_restart(d, key)
        step = event.outcome.step
        ended = evolve(rank, phase=RankPhase.SUCCEEDED, incident=0, ended_at=d.now, end_step=step)
        d.set_rank(key, evolve(ended, serves_after_end=event.outcome.serves))
        lost_peers.shorten_inquiry(d, event.role)
        if event.outcome.message and not event.outcome.error_type:
            d.note(reasons.PROCESSES_LEFT, f"{event.role}/{event.rank}", event.outcome.message)
        if event.rank == 0 and event.role == d.job.drivers[0]:
            d.result = event.outcome.result
        ending.advance_role_and_job(d, event.role)
    else:
        ending.mark_without_process(d, key)
        failover.handle_failed_ranks(d, event.role, (event.rank,), event.outcome, host_lost=False)


def _checkpoint_decided(d: StateTransaction, event: CheckpointDecided) -> None:
    if checkpoints.superseded_reason(d, event.world, event.run_id) or cuts.accept_decision(d, event):
        checkpoints.record_decision(d, event)
        cuts.handle_decided_checkpoint(d, event)


def _copies_saved(d: StateTransaction, event: CopiesSaved) -> None:
    departures.handle_saved_copies(d, event)
    elastic.handle_saved_copies(d)


def _released(d: StateTransaction, _event: Released) -> None:
    ending.handle_released(d)


def _note_reported(d: StateTransaction, event: NoteReported) -> None:
    d.note(event.reason, "job", event.message)


def _tick(d: StateTransaction, _event: Tick) -> None:
    _end_inquiries(d)  # before the time of the next Tick is set
    timers.tick(d)


_HANDLERS: dict[type, Callable[[StateTransaction, Any], None]] = {
    MasterStarted: _master_started,
    Carried: previous_attempt.take_over,
    NodesSeen: nodes.handle_nodes,
    NodeFrozen: nodes.handle_frozen_node,
    PartSilent: nodes.handle_silence,
    PartAnswers: nodes.handle_answer,
    NodeThawed: nodes.handle_thawed_node,
    CopiesSaved: _copies_saved,
    RelaunchTold: relaunch.report_answer,
    UnitReserved: admission.handle_reserved_unit,
    UnitRefused: admission.handle_refused_unit,
    GroupAsked: driver_groups.record_pending_group,
    NoteReported: _note_reported,
    ProblemReported: problems.report_problem,
    HostReady: _host_ready,
    HostLost: _host_lost,
    SpareReady: spares.record_ready_spare,
    SpareLost: _spare_lost,
    NodesChecked: checked.handle_checked_nodes,
    RankReady: _rank_ready,
    RankServes: _rank_serves,
    WeightsPublished: weights.handle_published_version,
    WeightsLoaded: weights.handle_load_answer,
    Stepped: _stepped,
    WorkBegan: _work_began,
    RankEnded: _rank_ended,
    CheckpointCommitted: checkpoints.record_commit,
    CheckpointDecided: _checkpoint_decided,
    QueueOpened: cuts.handle_opened_queue,
    DeliveriesFailed: deliveries.handle_failed_deliveries,
    CutsFound: cuts.handle_found_cuts,
    CutAsked: cuts.handle_cut_request,
    CutBegun: cuts.handle_begun_cut,
    CutTaken: cuts.handle_saved_checkpoint,
    CutSealed: cuts.handle_sealed_cut,
    CutGivenUp: cuts.handle_given_up_cut,
    CutDamaged: cuts.handle_damaged_cut,
    ShardsTold: shards.handle_report,
    HangFound: hanging.report_hang,
    StallsFound: stalling.report_stalls,
    CauseLearned: departures.handle_learned_cause,
    PeersSeen: lost_peers.handle_seen_peers,
    Commanded: commands.handle_command,
    LoadSeen: autoscale.follow_load,
    Tick: _tick,
    Released: _released,
}
