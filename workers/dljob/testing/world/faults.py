"""What goes wrong in a world."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from dljob.master.state.events import Commanded, NodesSeen
from dljob.master.state.evolve import evolve
from dljob.master.state.views import HostId, NodeView, Outcome, Reason
from dljob.testing.world import checks, elastic, executor, leaving
from dljob.testing.world.events import on
from dljob.testing.world.model import (
    Arrive,
    Break,
    FaultMove,
    Heal,
    Lapse,
    Node,
    NodeOverdue,
    Silence,
    Stall,
    StrikeOff,
)

if TYPE_CHECKING:
    from dljob.testing.world.world import World

HANG_S = 3.0
"""How long a rank has stood still when it is found."""
BREAK_S, STRIKE_OFF_S = 1.25, 10.0
"""How long calls to a cut node last, and how long the cluster waits for a silent one."""
ERRORS = (
    Outcome(ok=False, reason=Reason.UNKNOWN),
    Outcome(ok=False, reason=Reason.UNKNOWN, code=137),
    Outcome(ok=False, reason=Reason.USER_ERROR, error_type="ValueError", frame="train.py:7 in step", step=1),
    Outcome(ok=False, reason=Reason.USER_ERROR, error_type="ValueError", frame="train.py:9 in step", step=9),
    Outcome(ok=False, reason=Reason.USER_ERROR, error_type="DistBackendError", frame="train.py:11 in step"),
    Outcome(ok=False, reason=Reason.UNKNOWN, code=3),
    Outcome(ok=False, reason=Reason.IMPORT_ERROR, error_type="ImportError", frame="train.py:1", fatal=True),
)
"""How user code may end badly; the last one ends the job."""
KILLED = 1
"""Which of them is a SIGKILL that somebody saw: a host its rank's, the node's agent a host's. The first is unseen."""


def fault(w: World, f: FaultMove) -> None:
    """Something goes wrong; where there is nobody that it could happen to, nothing does."""
    FAULTS[f.kind](w, f)


def _kill_process(w: World, f: FaultMove) -> None:
    actor = w.owner.get(_host_named(w, f.text), "") if f.text else _picked(w.processes, f.pick)
    w.die(actor, ERRORS[int(f.value)])


def _picked(of: Iterable[str], pick: int) -> str:
    """One of these; empty where there is none."""
    there = sorted(of)
    return there[pick % len(there)] if there else ""


def _host_named(w: World, rank: str) -> HostId:
    role, _, number = rank.partition("/")
    return w.job.roles[role].host_of(int(number))


def _end_rank(w: World, f: FaultMove) -> None:
    if f.text:
        role, _, number = f.text.partition("/")
        live = [key for key in ((role, int(number)),) if key in w.running]
    else:
        live = sorted(w.running)
    if not live:
        return
    key = live[f.pick % len(live)]
    incarnation, actor = w.running[key][-1 if f.text else 0]
    process = w.processes[actor]
    running = next(r for r in process.ranks if (r.role, r.rank, r.incarnation) == (*key, incarnation))
    if w.reachable(process.node):
        w.ended.add(key)
        executor.leave(w, process, running, ERRORS[int(f.value) % len(ERRORS)])


def _deafen(w: World, f: FaultMove) -> None:
    """User code of a process catches whatever would take it out of its group."""
    actor = _picked(w.processes, f.pick)
    if actor:
        w.processes[actor] = evolve(w.processes[actor], deaf=True)


def _hang(w: World, f: FaultMove) -> None:
    """A rank goes on no more, and its process stays."""
    live = sorted(w.running)
    if not live:
        return
    key = live[f.pick % len(live)]
    incarnation, actor = w.running[key][0]
    running = next(r for r in w.processes[actor].ranks if (r.role, r.rank, r.incarnation) == (*key, incarnation))
    if running not in w.hung:
        w.hung.add(running)
        w.later(Stall(actor, running), HANG_S)


def _speaking(w: World, f: FaultMove) -> list[str]:
    if f.text:
        return [f.text] if w.reachable(f.text) else []
    return sorted(name for name, node in w.nodes.items() if node.silence is Silence.NONE)


def _lose_node(w: World, f: FaultMove) -> None:
    """A machine is switched off: the cluster finds out later; `value`: it does after so many seconds, before others."""
    there = _speaking(w, f)
    if not there:
        return
    name = there[f.pick % len(there)]
    w.nodes[name] = evolve(w.nodes[name], silence=Silence.CUT, since=w.now)
    for process in on(w, name):
        w.die(process.actor)
    w.later(StrikeOff(name), f.value or STRIKE_OFF_S)
    if not f.value:
        w.later(Break(name), BREAK_S)
    w.later(NodeOverdue(name), w.job.fault_tolerance.node.freeze_seconds)


def _silence(w: World, f: FaultMove, how: Silence) -> None:
    there = _speaking(w, f)
    if not there:
        return
    name = there[f.pick % len(there)]
    w.nodes[name] = evolve(w.nodes[name], silence=how, since=w.now)
    if how is Silence.CUT:
        w.later(Break(name), BREAK_S)
        w.later(Lapse(name, 0), w.job.fault_tolerance.lease)
    w.later(NodeOverdue(name), w.job.fault_tolerance.node.freeze_seconds)
    if f.value > STRIKE_OFF_S:
        w.later(StrikeOff(name), STRIKE_OFF_S)
    w.later(Heal(name), f.value)


def _join(w: World, f: FaultMove) -> None:
    """A machine joins, as big as one that was there at first."""
    groups = sorted(w.job.plan.node_groups)
    group = w.job.plan.node_groups[groups[f.pick % len(groups)]]
    name = f"new-{w.serial}"
    w.serial += 1
    w.nodes[name] = Node(NodeView(name, group.resources, group.resources, group.labels))
    w.look()


def _crash(w: World, f: FaultMove) -> None:
    """PrimeMaster dies: at once (0), or at the next event: before it is journaled (1), after n - 2 effects (n)."""
    w.outlived = f.value > 0
    if f.pick == 0:
        w.crash()
    else:
        w.doomed = f.pick - 2


def _refuse(w: World, f: FaultMove) -> None:
    w.refusing += 1 + f.pick % 3


def _jump(w: World, f: FaultMove) -> None:
    """The machine's clock is set."""
    w.offset += f.value


def _command(w: World, f: FaultMove) -> None:
    kind, _, target = f.text.partition(" ")
    if target == "rank":
        names = sorted(w.begin.ranks)
        role, rank = names[f.pick % len(names)]
        target = f"{role}/{rank}"
    elif target == "role":
        names = sorted(w.job.roles)
        target = names[f.pick % len(names)]
    if w.state is not None:
        w.later(Arrive(Commanded(f"c{int(f.value)}", kind, target, "somebody")))


def _again(w: World, f: FaultMove) -> None:
    """An event that was heard is heard once more."""
    if w.journal and w.state is not None:
        event = w.journal[-1 - f.pick % min(len(w.journal), 40)][1]
        if not isinstance(event, NodesSeen):  # it looks for itself, and never twice at the same
            w.later(Arrive(event))


FAULTS: dict[str, Callable[[World, FaultMove], None]] = {
    "kill": _kill_process,
    "error": _end_rank,
    "deaf": _deafen,
    "hang": _hang,
    "node lost": _lose_node,
    "freeze": lambda w, f: _silence(w, f, Silence.FROZEN),
    "cut": lambda w, f: _silence(w, f, Silence.CUT),
    "join": _join,
    "crash": _crash,
    "refuse": _refuse,
    "scale": elastic.scale,
    "clock": _jump,
    "command": _command,
    "again": _again,
    "bad": checks.spoil,
    "drain": leaving.drain,
    "evict": leaving.evict,
}
"""What can go wrong, by name."""


def possible(w: World, kind: str) -> list[FaultMove]:
    """Every fault of a kind that could happen to somebody now, one for each."""
    if kind in ("kill", "deaf"):
        count = len(w.processes)
    elif kind in ("error", "hang"):
        count = len(w.running)
    elif kind == "bad":
        count = len(w.nodes)
    elif kind in ("node lost", "freeze", "cut", "drain", "evict"):
        count = len(_speaking(w, FaultMove(kind)))
    elif kind == "scale":
        count = max(2 * len(w.known.sizes), int(w.state is not None))
    else:
        count = int(w.state is not None)
    return [FaultMove(kind, pick) for pick in range(count)]
