"""The faults that can happen in a world."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dljob.master.state.events import Commanded, NodesSeen, RankServes
from dljob.master.state.evolve import evolve
from dljob.master.state.views import HostId, NodeView, Outcome, Reason
from dljob.testing.world import checks, elastic, executor, fleets, leaving, servers, weight_invariants
from dljob.testing.world.events import on
from dljob.testing.world.model import (
    GO_ON_S,
    HANG_S,
    STALL_S,
    Arrive,
    Break,
    FaultMove,
    GoOn,
    Heal,
    Lapse,
    Node,
    NodeOverdue,
    ReportHang,
    ReportStalls,
    Silence,
    StrikeOff,
)
from dljob.testing.world.prime_master import MasterWorld

BREAK_S, STRIKE_OFF_S = 1.25, 10.0
"""Seconds until calls to a cut node break, and until the cluster removes a silent node from its list."""
ERRORS = (
    Outcome(ok=False, reason=Reason.UNKNOWN),
    Outcome(ok=False, reason=Reason.UNKNOWN, code=137),
    Outcome(ok=False, reason=Reason.USER_ERROR, error_type="ValueError", frame="train.py:7 in step", step=1),
    Outcome(ok=False, reason=Reason.USER_ERROR, error_type="ValueError", frame="train.py:9 in step", step=9),
    Outcome(
        ok=False,
        reason=Reason.USER_ERROR,
        error_type="DistBackendError",
        frame="train.py:11 in step",
        message="ncclRemoteError: remote process exited or there was a network error",
    ),
    Outcome(ok=False, reason=Reason.UNKNOWN, code=3),
    Outcome(ok=False, reason=Reason.IMPORT_ERROR, error_type="ImportError", frame="train.py:1", fatal=True),
)
"""Outcomes of user code that failed; the last one ends the job."""
LOST_PEER = 4
"""The index of an error that only reports the loss of a peer."""
KILLED = 1
"""The index of a SIGKILL with a known exit code: a fork host sees its rank's, a node agent a host's.

At 0 nothing is known.
"""


def fault(w: MasterWorld, f: FaultMove) -> None:
    """Apply a fault. Without a possible victim nothing happens."""
    FAULTS[f.kind](w, f)


def _kill_process(w: MasterWorld, f: FaultMove) -> None:
    actor = w.owner.get(_host_named(w, f.text), "") if f.text else _picked(w.processes, f.pick)
    w.die(actor, ERRORS[int(f.value)])


def _picked(of: Iterable[str], pick: int) -> str:
    """Return one of the names; empty where there is none."""
    # Sorted, so that a pick means the same victim in every run.
    sorted_names = sorted(of)
    return sorted_names[pick % len(sorted_names)] if sorted_names else ""


def _host_named(w: MasterWorld, rank: str) -> HostId:
    role, _, number = rank.partition("/")
    return w.job.roles[role].host_of(int(number))


def _end_rank(w: MasterWorld, f: FaultMove) -> None:
    # A named rank comes from a faults file; without a name `pick` chooses among the live ones.
    if f.text:
        role, _, number = f.text.partition("/")
        live = [key for key in ((role, int(number)),) if key in w.running]
    else:
        live = sorted(w.running)
    if not live:
        return
    key = live[f.pick % len(live)]
    # A fault of a file hits the newest process; a drawn one the oldest, which may be one that is being replaced.
    incarnation, actor = w.running[key][-1 if f.text else 0]
    process = w.processes[actor]
    running = next(r for r in process.ranks if (r.role, r.rank, r.incarnation) == (*key, incarnation))
    if w.reachable(process.node):
        w.ended.add(key)
        executor.leave(w, process, running, ERRORS[int(f.value) % len(ERRORS)])


def _sicken(w: MasterWorld, f: FaultMove) -> None:
    """The liveness probe of a server fails, and its host ends it."""
    sick_server = servers.sick(w, f)
    if sick_server is not None:
        executor.leave(w, *sick_server, servers.SICK)


def _deafen(w: MasterWorld, f: FaultMove) -> None:
    """User code of a process catches the exception that would take it out of its torch group."""
    actor = _picked(w.processes, f.pick)
    if actor:
        w.processes[actor] = evolve(w.processes[actor], deaf=True)


def _hang(w: MasterWorld, f: FaultMove) -> None:
    """A rank makes no more steps, and its process stays."""
    live = sorted(w.running)
    if not live:
        return
    key = live[f.pick % len(live)]
    incarnation, actor = w.running[key][0]
    running = next(r for r in w.processes[actor].ranks if (r.role, r.rank, r.incarnation) == (*key, incarnation))
    if running not in w.hung:
        w.hung.add(running)
        w.later(ReportHang(actor, running), HANG_S)


def _stand_still(w: MasterWorld, f: FaultMove) -> None:
    """A rank finishes nothing, and all others wait for it: for `value` 0 until it is restarted, else for GO_ON_S."""
    live = sorted(w.running)
    if not live:
        return
    key = live[f.pick % len(live)]
    incarnation, actor = w.running[key][0]
    running = next(r for r in w.processes[actor].ranks if (r.role, r.rank, r.incarnation) == (*key, incarnation))
    if running in w.stalls:
        return
    w.stalls[running] = w.clock()
    w.later(ReportStalls(), STALL_S)
    if f.value:
        w.later(GoOn(running), GO_ON_S)
    elif running not in w.hung:
        w.hung.add(running)
        w.later(ReportHang(actor, running), HANG_S)


def _speaking(w: MasterWorld, f: FaultMove) -> list[str]:
    if f.text:
        return [f.text] if w.reachable(f.text) else []
    return w.nodes.speaking


def _lose_node(w: MasterWorld, f: FaultMove) -> None:
    """A machine is switched off.

    The cluster notices it after `value` seconds, before all else; 0: later than others do.
    """
    node_names = _speaking(w, f)
    if not node_names:
        return
    name = node_names[f.pick % len(node_names)]
    # Switched off looks like a partition until the cluster removes the machine.
    w.nodes[name] = evolve(w.nodes[name], silence=Silence.CUT, since=w.now)
    for process in on(w, name):
        w.die(process.actor)
    w.later(StrikeOff(name), f.value or STRIKE_OFF_S)
    if not f.value:
        w.later(Break(name), BREAK_S)
    w.later(NodeOverdue(name), w.job.fault_tolerance.node.freeze_seconds)


def _silence(w: MasterWorld, f: FaultMove, how: Silence) -> None:
    node_names = _speaking(w, f)
    if not node_names:
        return
    name = node_names[f.pick % len(node_names)]
    w.nodes[name] = evolve(w.nodes[name], silence=how, since=w.now)
    # Only processes that run on behind a partition notice that their lease is over; frozen ones do when they resume.
    if how is Silence.CUT:
        w.later(Break(name), BREAK_S)
        w.later(Lapse(name, 0), w.job.fault_tolerance.lease)
    w.later(NodeOverdue(name), w.job.fault_tolerance.node.freeze_seconds)
    # A node that is silent for long is removed from the cluster, also if it would answer again later.
    if f.value > STRIKE_OFF_S:
        w.later(StrikeOff(name), STRIKE_OFF_S)
    w.later(Heal(name), f.value)


def _join(w: MasterWorld, f: FaultMove) -> None:
    """A machine joins, of the size of the first ones in its group."""
    groups = sorted(w.job.plan.node_groups)
    group = w.job.plan.node_groups[groups[f.pick % len(groups)]]
    name = f"new-{w.serial}"
    w.serial += 1
    w.nodes[name] = Node(NodeView(name, group.resources, group.resources, group.labels))
    w.look()


def _crash(w: MasterWorld, f: FaultMove) -> None:
    """PrimeMaster dies. `pick` 0: now; 1: at the next event, before it is journaled; n: after n - 2 of its effects."""
    w.outlived = f.value > 0
    if f.pick == 0:
        w.crash()
    else:
        w.doomed = f.pick - 2


def _refuse(w: MasterWorld, f: FaultMove) -> None:
    w.refusing += 1 + f.pick % 3


def _jump(w: MasterWorld, f: FaultMove) -> None:
    """The machine's clock jumps."""
    w.offset += f.value


def _command(w: MasterWorld, f: FaultMove) -> None:
    kind, _, target = f.text.partition(" ")
    if target == "rank":
        names = sorted(w.begin.ranks)
        role, rank = names[f.pick % len(names)]
        target = f"{role}/{rank}"
    elif target == "role":
        names = sorted(w.job.roles)
        target = names[f.pick % len(names)]
    # While no PrimeMaster runs, nobody takes a command.
    if w.state is not None:
        w.later(Arrive(Commanded(f"c{int(f.value)}", kind, target, "somebody")))


def _again(w: MasterWorld, f: FaultMove) -> None:
    """An event of the journal arrives once more."""
    if w.journal and w.state is not None:
        event = w.journal[-1 - f.pick % min(len(w.journal), 40)][1]
        # PrimeMaster polls for the nodes, and numbers tell it words of servers that it has.
        if not isinstance(event, NodesSeen | RankServes):
            w.later(Arrive(event))


FAULTS: dict[str, Callable[[MasterWorld, FaultMove], None]] = {
    "kill": _kill_process,
    "error": _end_rank,
    "deaf": _deafen,
    "hang": _hang,
    "stall": _stand_still,
    "node lost": _lose_node,
    "freeze": lambda w, f: _silence(w, f, Silence.FROZEN),
    "cut": lambda w, f: _silence(w, f, Silence.CUT),
    "join": _join,
    "crash": _crash,
    "refuse": _refuse,
    "scale": elastic.scale,
    "load": fleets.load,
    "clock": _jump,
    "command": _command,
    "again": _again,
    "bad": checks.spoil,
    "drain": leaving.drain,
    "evict": leaving.evict,
    "unready": servers.unready,
    "unhealthy": _sicken,
    "stubborn": servers.harden,
    "publish": weight_invariants.publish,
    "bad load": weight_invariants.spoil,
    "take cut": weight_invariants.take_cut,
    "go back": weight_invariants.go_back,
}
"""The faults by name."""


def possible(w: MasterWorld, kind: str) -> list[FaultMove]:
    """Return the possible faults of a kind now, one for each victim."""
    if kind in ("kill", "deaf"):
        count = len(w.processes)
    elif kind in ("error", "hang", "stall"):
        count = len(w.running)
    elif kind in ("unready", "unhealthy", "stubborn"):
        count = servers.victims(w, kind)
    elif kind == "bad":
        count = len(w.nodes)
    elif kind in ("node lost", "freeze", "cut", "drain", "evict"):
        count = len(_speaking(w, FaultMove(kind)))
    elif kind in ("scale", "load"):
        count = max(2 * len(w.known.sizes), int(w.state is not None))
    else:
        count = int(w.state is not None)
    return [FaultMove(kind, pick) for pick in range(count)]
