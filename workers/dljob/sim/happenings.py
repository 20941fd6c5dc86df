"""What happens in a world by itself, and what goes wrong in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from dljob.master.events import Commanded, HostReady, NodeFrozen, NodesSeen, NodeThawed, RankReady, SpareReady
from dljob.master.evolve import evolve
from dljob.master.state import Phase
from dljob.master.views import HostId, NodeView, Outcome, Reason
from dljob.sim import executor
from dljob.sim.things import (
    Arrive,
    Beacon,
    Boot,
    Break,
    Carry,
    Done,
    Fault,
    Heal,
    Item,
    Lapse,
    Look,
    Node,
    Notice,
    Process,
    SetUp,
    Silence,
    SpareId,
    StrikeOff,
    Up,
)

if TYPE_CHECKING:
    from dljob.sim.world import World

BREAK_S, STRIKE_OFF_S = 1.25, 10.0
"""How long calls to a cut node last, and how long the cluster waits for a silent one."""
DONE = Outcome(ok=True)
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


def happen(w: World, item: Item, *more: Item) -> None:
    """An item that was on its way happens; events may arrive together."""
    if more:
        w.tell([each for each in (item, *more) if isinstance(each, Arrive)])
    else:
        _HAPPEN[type(item)](w, item)


def _arrive(w: World, i: Arrive) -> None:
    w.tell((i,))


def _carry(w: World, i: Carry) -> None:
    executor.effect(w, i.action)


def _up(w: World, i: Up) -> None:
    process = w.processes.get(i.actor)
    if process is None:
        return
    if not w.reachable(process.node):
        w.later(i, 0.5)
        return
    w.processes[i.actor] = evolve(process, up=True)
    if i.actor in w.watched and not executor.coming(w, i.actor):
        w.later(Arrive(_hello(w, process)))


def _hello(w: World, process: Process) -> HostReady | SpareReady:
    who, actor = process.who, process.actor
    if isinstance(who, SpareId):
        return SpareReady(who.role, who.node, who.slot, process.life, actor, 7, f"{actor}.log")
    facts = w.job.roles[who.role]
    devices = () if facts.plan.accelerator is None else ((facts.plan.accelerator[0], (str(max(0, who.index)),)),)
    address = f"{process.node}:2900" if who.index < 0 else ""
    return HostReady(who, process.life, process.node, 7, actor, devices, f"{actor}.log", address)


def _set_up(w: World, i: SetUp) -> None:
    process = w.processes.get(i.actor)
    if process is None or i.running not in process.ranks:
        return
    if w.nodes[process.node].silence is Silence.FROZEN:
        w.later(i, 0.5)
        return
    r = i.running
    w.was_ready.add((r.role, r.rank))
    w.report(process, RankReady(r.role, r.rank, r.incarnation, 1000 + r.incarnation))
    if ends_by_itself(w, r.role):
        w.later(Done(i.actor, r, DONE))


def ends_by_itself(w: World, role: str) -> bool:
    """Whether ranks of a role end: drivers do, and those whose completion somebody waits for."""
    plans = w.job.plan.roles
    return plans[role].driver or any((role, "Complete") in plan.depends_on for plan in plans.values())


def _done(w: World, i: Done) -> None:
    process = w.processes.get(i.actor)
    if process is None or i.running not in process.ranks:
        return
    if w.nodes[process.node].silence is Silence.FROZEN:
        w.later(i, 0.5)
        return
    w.ended.add((i.running.role, i.running.rank))
    executor.leave(w, process, i.running, i.outcome)


def _look(w: World, _i: Look) -> None:
    w.looking = False
    seen = w.seen()
    if w.state is None:
        return
    # What is free matters only while something is to be placed.
    view = tuple(v.id for v in seen) if w.state.phase is Phase.RUNNING else seen
    if view != w.told_nodes:
        w.told_nodes = view
        w.tell((Arrive(NodesSeen(seen)),))


def _boot(w: World, _i: Boot) -> None:
    if w.state is None:
        w.boot()


def _on(w: World, node: str) -> list[Process]:
    return [process for process in w.processes.values() if process.node == node]


def _notice(w: World, i: Notice) -> None:
    node = w.nodes.get(i.node)
    if w.state is None or node is None or node.silence is Silence.NONE or not node.listed or w.state.verdict:
        return
    if w.state.running_at is None:
        w.later(i, 0.5)  # while a job starts, nobody looks
        return
    w.later(Arrive(NodesSeen(w.seen())))
    w.later(Arrive(NodeFrozen(i.node, w.now - node.since)))


def _heard_on(w: World, node: str) -> list[str]:
    """The actors of a node that PrimeMaster hears: those whose making is under way are not there yet."""
    coming = {executor.made_by(p.item.action) for p in w.pending.values() if isinstance(p.item, Carry)}
    return [actor for actor, watched in w.watched.items() if watched.node == node and actor not in coming]


def _break(w: World, i: Break) -> None:
    node = w.nodes.get(i.node)
    if node is None or node.silence is not Silence.CUT:
        return
    for actor in _heard_on(w, i.node):
        w.lost(actor, Outcome(ok=False, reason=Reason.UNKNOWN, detail="it does not answer"))


def _strike_off(w: World, i: StrikeOff) -> None:
    node = w.nodes.get(i.node)
    if node is None or node.silence is Silence.NONE:
        return
    w.nodes[i.node] = evolve(node, listed=False)
    for actor in _heard_on(w, i.node):
        w.lost(actor, Outcome(ok=False, reason=Reason.NODE_LOST, message="its node is gone"))
    _forget_groups(w, i.node)
    w.look()


def _forget_groups(w: World, node: str) -> None:
    for key in [key for key, at in w.groups.items() if at == node]:
        del w.groups[key]
        w.struck.add(key)


def _heal(w: World, i: Heal) -> None:
    node = w.nodes.get(i.node)
    if node is None or node.silence is Silence.NONE:
        return
    away = w.now - node.since
    w.nodes[i.node] = evolve(node, silence=Silence.NONE)
    lapsed = not node.listed or away > w.job.fault_tolerance.lease_seconds
    for process in _on(w, i.node):
        if lapsed or process.condemned or (w.state is not None and process.actor not in w.watched):
            w.die(process.actor)
        elif process.actor in w.watched:
            for report in process.reports:
                w.later(Arrive(report, process.actor))
    for actor in _heard_on(w, i.node):
        if actor not in w.processes:
            w.lost(actor, Outcome(ok=False, reason=Reason.UNKNOWN))
    if node.listed:
        w.later(Arrive(NodeThawed(i.node)))
    else:
        del w.nodes[i.node]


def _lapse(w: World, i: Lapse) -> None:
    if i.node:
        node = w.nodes.get(i.node)
        if (
            node is not None
            and node.silence is Silence.CUT
            and w.now >= node.since + w.job.fault_tolerance.lease_seconds
        ):
            for process in _on(w, i.node):
                w.die(process.actor)
    elif w.state is None and w.epoch == i.epoch:
        for actor in list(w.processes):
            w.die(actor)


def _beacon(w: World, i: Beacon) -> None:
    process = w.processes.get(i.actor)
    if process is None or w.state is None or i.actor in w.watched:
        return
    if w.reachable(process.node):
        w.die(i.actor)
    else:
        w.later(i, 1.0)


_HAPPEN: dict[type, Callable[[World, Any], None]] = {
    Arrive: _arrive,
    Carry: _carry,
    Up: _up,
    SetUp: _set_up,
    Done: _done,
    Look: _look,
    Boot: _boot,
    Break: _break,
    Notice: _notice,
    StrikeOff: _strike_off,
    Heal: _heal,
    Lapse: _lapse,
    Beacon: _beacon,
}


# -- what goes wrong


def fault(w: World, f: Fault) -> None:
    """Something goes wrong; where there is nobody that it could happen to, nothing does."""
    FAULTS[f.kind](w, f)


def _kill_process(w: World, f: Fault) -> None:
    actor = w.owner.get(_host_named(w, f.text), "") if f.text else _picked(w.processes, f.pick)
    w.die(actor)


def _picked(of: Iterable[str], pick: int) -> str:
    """One of these; empty where there is none."""
    there = sorted(of)
    return there[pick % len(there)] if there else ""


def _host_named(w: World, rank: str) -> HostId:
    role, _, number = rank.partition("/")
    return w.job.roles[role].host_of(int(number))


def _end_rank(w: World, f: Fault) -> None:
    if f.text:
        role, _, number = f.text.partition("/")
        live = [key for key in ((role, int(number)),) if key in w.running]
    else:
        live = sorted(w.running)
    if not live:
        return
    key = live[f.pick % len(live)]
    incarnation, actor = w.running[key][0]
    process = w.processes[actor]
    running = next(r for r in process.ranks if (r.role, r.rank, r.incarnation) == (*key, incarnation))
    if w.reachable(process.node):
        w.ended.add(key)
        executor.leave(w, process, running, ERRORS[int(f.value) % len(ERRORS)])


def _speaking(w: World, f: Fault) -> list[str]:
    if f.text:
        return [f.text] if w.reachable(f.text) else []
    return sorted(name for name, node in w.nodes.items() if node.silence is Silence.NONE)


def _lose_node(w: World, f: Fault) -> None:
    """A machine is switched off: the cluster finds out later."""
    there = _speaking(w, f)
    if not there:
        return
    name = there[f.pick % len(there)]
    w.nodes[name] = evolve(w.nodes[name], silence=Silence.CUT, since=w.now)
    for process in _on(w, name):
        w.die(process.actor)
    w.later(StrikeOff(name), STRIKE_OFF_S)
    w.later(Break(name), BREAK_S)
    w.later(Notice(name), w.job.fault_tolerance.node.freeze_seconds)


def _silence(w: World, f: Fault, how: Silence) -> None:
    there = _speaking(w, f)
    if not there:
        return
    name = there[f.pick % len(there)]
    w.nodes[name] = evolve(w.nodes[name], silence=how, since=w.now)
    if how is Silence.CUT:
        w.later(Break(name), BREAK_S)
        w.later(Lapse(name, 0), w.job.fault_tolerance.lease_seconds)
    w.later(Notice(name), w.job.fault_tolerance.node.freeze_seconds)
    if f.value > STRIKE_OFF_S:
        w.later(StrikeOff(name), STRIKE_OFF_S)
    w.later(Heal(name), f.value)


def _join(w: World, f: Fault) -> None:
    """A machine joins, as big as one that was there at first."""
    groups = sorted(w.job.plan.node_groups)
    group = w.job.plan.node_groups[groups[f.pick % len(groups)]]
    name = f"new-{w.serial}"
    w.serial += 1
    w.nodes[name] = Node(NodeView(name, group.resources, group.resources, group.labels))
    w.look()


def _crash(w: World, f: Fault) -> None:
    """PrimeMaster dies: at once (0), or at the next event: before it is journaled (1), after n - 2 effects (n)."""
    w.outlived = f.value > 0
    if f.pick == 0:
        w.crash()
    else:
        w.doomed = f.pick - 2


def _refuse(w: World, f: Fault) -> None:
    w.refusing += 1 + f.pick % 3


def _jump(w: World, f: Fault) -> None:
    """The machine's clock is set."""
    w.offset += f.value


def _command(w: World, f: Fault) -> None:
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


def _again(w: World, f: Fault) -> None:
    """An event that was heard is heard once more."""
    if w.journal and w.state is not None:
        event = w.journal[-1 - f.pick % min(len(w.journal), 40)][1]
        w.later(Arrive(event))


FAULTS: dict[str, Callable[[World, Fault], None]] = {
    "kill": _kill_process,
    "error": _end_rank,
    "node lost": _lose_node,
    "freeze": lambda w, f: _silence(w, f, Silence.FROZEN),
    "cut": lambda w, f: _silence(w, f, Silence.CUT),
    "join": _join,
    "crash": _crash,
    "refuse": _refuse,
    "clock": _jump,
    "command": _command,
    "again": _again,
}
"""What can go wrong, by name."""


def possible(w: World, kind: str) -> list[Fault]:
    """Every fault of a kind that could happen to somebody now, one for each."""
    if kind == "kill":
        count = len(w.processes)
    elif kind == "error":
        count = len(w.running)
    elif kind in ("node lost", "freeze", "cut"):
        count = len(_speaking(w, Fault(kind)))
    else:
        count = int(w.state is not None)
    return [Fault(kind, pick) for pick in range(count)]
