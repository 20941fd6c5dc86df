"""Items of a world that take effect without a fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dljob.master.failure.stalling import standing_stalls
from dljob.master.placement import elastic
from dljob.master.state.events import (
    HangFound,
    HostReady,
    NodeFrozen,
    NodesSeen,
    NodeThawed,
    RankReady,
    SpareReady,
    StallsFound,
)
from dljob.master.state.evolve import evolve
from dljob.master.state.stalls import Stall
from dljob.master.state.state import RankPhase
from dljob.master.state.views import Outcome, Reason
from dljob.testing.world import executor, leaving, servers
from dljob.testing.world.environment import reported
from dljob.testing.world.model import (
    Arrive,
    AskIfKnown,
    Boot,
    Break,
    Carry,
    Depart,
    Done,
    Drained,
    GoOn,
    Heal,
    Item,
    Lapse,
    NodeOverdue,
    PollNodes,
    Probed,
    Process,
    ReportHang,
    ReportStalls,
    SetUp,
    Silence,
    SpareKey,
    StrikeOff,
    Up,
    made_by,
)
from dljob.testing.world.prime_master import MasterWorld

DONE = Outcome(ok=True)


def happen(w: MasterWorld, item: Item, *more: Item) -> None:
    """Let a pending item take effect; several events may arrive in one batch."""
    if more:
        w.tell([pending_item for pending_item in (item, *more) if isinstance(pending_item, Arrive)])
    else:
        _HAPPEN[type(item)](w, item)


def _arrive(w: MasterWorld, i: Arrive) -> None:
    w.tell((i,))


def _carry(w: MasterWorld, i: Carry) -> None:
    executor.effect(w, i.action)


def _up(w: MasterWorld, i: Up) -> None:
    process = w.processes.get(i.actor)
    if process is None:
        return
    # On a silent node the first answer waits until the node answers again.
    if not w.reachable(process.node):
        w.later(i, 0.5)
        return
    w.processes[i.actor] = evolve(process, up=True)
    # While its creation is pending, PrimeMaster has no call to the actor.
    if i.actor in w.watched and not w.coming(i.actor):
        w.later(Arrive(_hello(w, process)))


def _hello(w: MasterWorld, process: Process) -> HostReady | SpareReady:
    occupant, actor = process.occupant, process.actor
    if isinstance(occupant, SpareKey):
        return SpareReady(occupant.role, occupant.node, occupant.slot, process.incarnation, actor, 7)
    facts = w.job.roles[occupant.role]
    devices = () if facts.plan.accelerator is None else ((facts.plan.accelerator[0], (str(max(0, occupant.index)),)),)
    slots = tuple(ids for _, ids in devices) * facts.ranks_per_host
    address = f"{process.node}:2900" if occupant.index < 0 else ""
    return HostReady(occupant, process.incarnation, process.node, 7, actor, devices, address, slots)


def _set_up(w: MasterWorld, i: SetUp) -> None:
    process = w.processes.get(i.actor)
    if process is None or i.running not in process.ranks:
        return
    # Code on a frozen node stands still; behind a partition it runs on, and only its reports wait.
    if w.nodes[process.node].silence is Silence.FROZEN:
        w.later(i, 0.5)
        return
    r = i.running
    w.was_ready.add((r.role, r.rank))
    if servers.served(w, r.role):
        # Before it is ready: roles that wait for it find its address.
        servers.say(w, i.actor, r, ready=True)
        process = w.processes[i.actor]
    w.report(process, RankReady(r.role, r.rank, r.incarnation, 1000 + r.incarnation))
    if ends_by_itself(w, r.role):
        w.later(Done(i.actor, r, DONE))


def ends_by_itself(w: MasterWorld, role: str) -> bool:
    """Whether ranks of a role end by themselves: those of drivers, and of roles on whose completion others depend."""
    plans = w.job.plan.roles
    return plans[role].driver or any((role, "Complete") in plan.depends_on for plan in plans.values())


def _done(w: MasterWorld, i: Done) -> None:
    process = w.processes.get(i.actor)
    # A rank that hangs never ends by itself.
    if process is None or i.running not in process.ranks or i.running in w.hung:
        return
    if w.nodes[process.node].silence is Silence.FROZEN or i.running in w.stalls:
        w.later(i, 0.5)
        return
    w.ended.add((i.running.role, i.running.rank))
    executor.leave(w, process, i.running, i.outcome)


def _drained(w: MasterWorld, i: Drained) -> None:
    process = servers.drained(w, i)
    if process is not None:
        executor.leave(w, process, i.running, executor.LEFT)


def _report_hang(w: MasterWorld, i: ReportHang) -> None:
    """The hang detection reports a rank, once PrimeMaster counts it as ready and its node answers."""
    process, r = w.processes.get(i.actor), i.running
    if process is None or r not in w.hung or w.state is None:
        return
    rank_state = w.state.ranks[r.role, r.rank]
    # PrimeMaster has replaced that incarnation, or ends the job anyway.
    if rank_state.incarnation > r.incarnation or w.state.verdict is not None:
        return
    if rank_state.phase is RankPhase.READY and w.reachable(process.node):
        w.later(Arrive(HangFound(r.role, r.rank, r.incarnation, Reason.HANG.value, "it stands still")))
    else:
        w.later(i, 0.5)


def _report_stalls(w: MasterWorld, _i: ReportStalls) -> None:
    if w.state is None or w.finished is not None:
        return
    ranks = tuple(sorted(w.running))
    stalls = tuple(
        Stall(f"{r.role}/{r.rank}@{r.incarnation}", since, "all wait {} for it", f"{r.role}/{r.rank}", ranks)
        for r, since in w.stalls.items()
    )
    if standing_stalls(w.state, stalls) != w.state.stalls:
        w.later(Arrive(StallsFound(stalls)))


def _go_on(w: MasterWorld, i: GoOn) -> None:
    if w.stalls.pop(i.running, None) is not None:
        w.later(ReportStalls())


def _poll_nodes(w: MasterWorld, _i: PollNodes) -> None:
    w.looking = False
    node_views = w.listed_nodes()
    if w.state is None:
        return
    # As in the master loop: a snapshot that can change no decision is not reported, since every event is journaled.
    if reported(w.state, node_views) != w.reported_nodes or (
        elastic.is_settled(w.state) and elastic.room(w.state, node_views)
    ):
        w.tell((Arrive(NodesSeen(node_views)),))


def _boot(w: MasterWorld, _i: Boot) -> None:
    if w.state is None:
        w.boot()


def on(w: MasterWorld, node: str) -> list[Process]:
    """Return the processes on a node."""
    return w.on(node)


def _notice(w: MasterWorld, i: NodeOverdue) -> None:
    node = w.nodes.get(i.node)
    if w.state is None or node is None or node.silence is Silence.NONE or not node.listed or w.state.verdict:
        return
    if w.state.running_at is None:
        w.later(i, 0.5)  # heartbeats are not checked while a job starts
        return
    w.later(Arrive(NodesSeen(w.listed_nodes())))
    w.later(Arrive(NodeFrozen(i.node, w.now - node.since)))


def _watched_actors(w: MasterWorld, node: str) -> list[str]:
    """Return the actors on a node whose loss PrimeMaster notices: it watches them, and their creation is over."""
    coming = {made_by(action) for action in w.carrying.values()}
    return [actor for actor in w.watched.on(node) if actor not in coming]


def _break(w: MasterWorld, i: Break) -> None:
    node = w.nodes.get(i.node)
    if node is None or node.silence is not Silence.CUT:
        return
    for actor in _watched_actors(w, i.node):
        w.lost(actor, Outcome(ok=False, reason=Reason.UNKNOWN, detail="it does not answer"))


def _strike_off(w: MasterWorld, i: StrikeOff) -> None:
    node = w.nodes.get(i.node)
    if node is None or node.silence is Silence.NONE:
        return
    w.nodes[i.node] = evolve(node, listed=False)
    for actor in _watched_actors(w, i.node):
        w.lost(actor, Outcome(ok=False, reason=Reason.NODE_LOST, message="its node is gone"))
    _forget_groups(w, i.node)
    w.look()


def _forget_groups(w: MasterWorld, node: str) -> None:
    for key in w.groups.on(node):
        del w.groups[key]
        w.struck.add(key)


def _heal(w: MasterWorld, i: Heal) -> None:
    node = w.nodes.get(i.node)
    if node is None or node.silence is Silence.NONE:
        return
    away = w.now - node.since
    w.nodes[i.node] = evolve(node, silence=Silence.NONE)
    # Processes end themselves after their lease. A node that the cluster removed never comes back under its name.
    lapsed = not node.listed or away > w.job.fault_tolerance.lease
    for process in on(w, i.node):
        # Its lease is over, its kill was ordered meanwhile, or PrimeMaster does not know it.
        if lapsed or process.condemned or (w.state is not None and process.actor not in w.watched):
            w.die(process.actor)
        elif process.actor in w.watched:
            for report in process.reports:
                w.later(Arrive(report, process.actor))
    for actor in _watched_actors(w, i.node):
        # It ended during the silence: the call to it breaks now.
        if actor not in w.processes:
            w.lost(actor, Outcome(ok=False, reason=Reason.UNKNOWN))
    if node.listed:
        w.later(Arrive(NodeThawed(i.node)))
    else:
        # A machine that was removed never returns under its name.
        del w.nodes[i.node]


def _lapse(w: MasterWorld, i: Lapse) -> None:
    if i.node:
        node = w.nodes.get(i.node)
        # The node may have answered and been cut again since this was planned.
        if node is not None and node.silence is Silence.CUT and w.now >= node.since + w.job.fault_tolerance.lease:
            for process in on(w, i.node):
                w.die(process.actor)
    # Leases without a master: void if the next PrimeMaster has started in time.
    elif w.state is None and w.epoch == i.epoch:
        for actor in list(w.processes):
            w.die(actor)


def _heartbeat(w: MasterWorld, i: AskIfKnown) -> None:
    process = w.processes.get(i.actor)
    if process is None or w.state is None or i.actor in w.watched:
        return
    # The answer of a PrimeMaster that does not watch the process is "unknown", and so the process ends itself.
    if w.reachable(process.node):
        w.die(i.actor)
    else:
        w.later(i, 1.0)


_HAPPEN: dict[type, Callable[[MasterWorld, Any], None]] = {
    Arrive: _arrive,
    Carry: _carry,
    Up: _up,
    SetUp: _set_up,
    Done: _done,
    Probed: servers.probed,
    Drained: _drained,
    ReportHang: _report_hang,
    ReportStalls: _report_stalls,
    GoOn: _go_on,
    PollNodes: _poll_nodes,
    Boot: _boot,
    Break: _break,
    NodeOverdue: _notice,
    StrikeOff: _strike_off,
    Depart: leaving.depart,
    Heal: _heal,
    Lapse: _lapse,
    AskIfKnown: _heartbeat,
}
