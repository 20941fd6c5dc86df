"""Effects of PrimeMaster's actions on a world: a model of the executor, of Ray, and of the hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dljob.master.persistence.superseded import lasting
from dljob.master.state.actions import (
    Action,
    CheckNodes,
    Finish,
    HoldCalls,
    KillHost,
    KillSpare,
    LeaveGroup,
    LoadWeights,
    RelaunchNode,
    Release,
    Reserve,
    SaveCopies,
    SpawnHost,
    SpawnSpare,
    StartRanks,
    StopRanks,
    Unreserve,
)
from dljob.master.state.events import RankEnded, RelaunchTold, Released, UnitRefused, UnitReserved
from dljob.master.state.evolve import evolve
from dljob.master.state.views import HostId, Outcome, Reason
from dljob.testing.world import checks, coupling_invariants, invariants, leaving, servers, weight_invariants
from dljob.testing.world.model import (
    Arrive,
    Carry,
    Process,
    Running,
    SetUp,
    SpareKey,
    Up,
    Watched,
    host_actor,
    lost,
    made_by,
    spare_actor,
)
from dljob.testing.world.state import WorldState

LATE = Outcome(ok=False, reason=Reason.UNKNOWN, message="did not start in time")
LEFT = Outcome(ok=True)
SPARE_S = 120.0
# `runtime.controller.executor` awaits these before it takes any other action.
_ENDINGS = (KillHost, KillSpare, Unreserve)


def in_order(actions: Iterable[Action]) -> list[Action]:
    """Return the actions in the order in which the executor takes them: ends first."""
    todo = lasting(actions)
    return [a for a in todo if isinstance(a, _ENDINGS)] + [a for a in todo if not isinstance(a, _ENDINGS)]


def order(w: WorldState, action: Action) -> None:
    """Start an action. Ends take effect at once; everything else becomes a pending item."""
    match action:
        case KillHost():
            end_actor(w, action.actor or host_actor(action.host, action.incarnation))
        case KillSpare():
            end_actor(w, action.actor or spare_actor(action.role, action.node, action.slot, action.incarnation))
        case Unreserve():
            key = (action.unit, action.token)
            # Not carried out yet: cancel the reservation itself.
            if key in w.reserving:
                w.reserving.discard(key)
                drop(w, lambda a: isinstance(a, Reserve) and (a.unit, a.token) == key)
            w.release_group(key)
        case Finish():
            finish(w, action)
        case Reserve() | SpawnHost() | SpawnSpare():
            begin(w, action)
        case _:
            w.later(Carry(action))


def begin(w: WorldState, action: Reserve | SpawnHost | SpawnSpare) -> None:
    """Start an action that creates something with a name, unless the same is being created already."""
    if isinstance(action, SpawnHost):
        actor = host_actor(action.host, action.incarnation)
        # A repeated order: the actor is there, or being created.
        if actor in w.watched:
            return
        invariants.may_spawn(w, action, actor)
        w.watched[actor] = Watched(action.host, action.incarnation, w.groups.get((action.unit, action.token), ""))
    elif isinstance(action, SpawnSpare):
        actor = spare_actor(action.role, action.node, action.slot, action.incarnation)
        if actor in w.watched:
            return
        w.watched[actor] = Watched(SpareKey(action.role, action.node, action.slot), action.incarnation, action.node)
    # A repeated order: the same reservation is pending.
    elif (action.unit, action.token) in w.reserving:
        return
    else:
        invariants.may_reserve(w, action)
        leaving.may_reserve(w, action)
        w.reserving.add((action.unit, action.token))
    w.later(Carry(action))


def drop(w: WorldState, match: Callable[[Action], bool]) -> None:
    """Cancel actions that have not taken effect."""
    for number in [number for number, action in w.carrying.items() if match(action)]:
        del w.pending[number], w.carrying[number]


def end_actor(w: WorldState, actor: str) -> None:
    """End an actor, whatever its state, and drop its pending reports."""
    if w.watched.pop(actor, None) is not None:
        # Its creation must not take effect after its end.
        drop(w, lambda a: made_by(a) == actor)
    number = w.late.pop(actor, 0)
    if number in w.arriving:  # an actor that is no longer watched is not reported (`worker_hosts.py`, `_gone`)
        del w.pending[number], w.arriving[number]
    w.kill(actor)


# -- effects


def effect(w: WorldState, action: Action) -> None:
    """Let an action take effect. An action to a process on a silent node waits until the node answers again."""
    # These are calls to a process: Ray delivers them once the node answers again.
    if isinstance(action, StartRanks | StopRanks | LeaveGroup | LoadWeights | HoldCalls) and _silent(w, action):
        w.later(Carry(action), 0.25)
        return
    _EFFECTS[type(action)](w, action)


def _silent(w: WorldState, action: StartRanks | StopRanks | LeaveGroup | LoadWeights | HoldCalls) -> bool:
    # A stop names only the host, whose newest actor is meant.
    actor = w.owner.get(action.host, "") if isinstance(action, StopRanks) else action.actor
    process = w.processes.get(actor)
    return process is not None and not w.reachable(process.node)


def _reserve(w: WorldState, a: Reserve) -> None:
    key = (a.unit, a.token)
    w.reserving.discard(key)
    # A reservation that an earlier PrimeMaster ordered may exist already: it is adopted.
    if key not in w.groups:
        drained = a.node in w.nodes and w.nodes[a.node].view.leaving is not None
        if w.refusing or drained or not w.reachable(a.node) or not w.take(a.node, a.unit, 1, a.memory):
            w.refusing = max(0, w.refusing - 1)
            w.later(Arrive(UnitRefused(a.unit, a.token, f"node {a.node} would not hold it")), a.deadline_s)
            return
        w.groups[key] = a.node
        if a.memory:
            w.granted[key] = a.memory
        invariants.note_held_units(w)
    w.later(Arrive(UnitReserved(a.unit, a.token, w.groups[key])))
    w.look()


def _spawn_host(w: WorldState, a: SpawnHost) -> None:
    actor = host_actor(a.host, a.incarnation)
    node = w.groups.get((a.unit, a.token), "")
    _bring_up(w, Process(actor, node, a.host, a.incarnation, (a.unit, a.token)), a.deadline_s)


def _spawn_spare(w: WorldState, a: SpawnSpare) -> None:
    actor = spare_actor(a.role, a.node, a.slot, a.incarnation)
    _bring_up(w, Process(actor, a.node, SpareKey(a.role, a.node, a.slot), a.incarnation), SPARE_S)


def _bring_up(w: WorldState, new: Process, deadline_s: float) -> None:
    """Find the actor or create it on its node; one that cannot be created is reported lost after its deadline."""
    if not w.reachable(new.node):
        w.watched.pop(new.actor, None)
        # A node that is gone fails at once, a silent one after the deadline.
        w.late[new.actor] = w.later(
            Arrive(lost(new.occupant, new.incarnation, LATE)), deadline_s if new.node in w.nodes else 0.0
        )
        return
    # The same actor may exist already, created for an earlier PrimeMaster: the executor finds it by its name.
    known = w.processes.get(new.actor)
    if known is None:
        w.begin_process(new)
        if isinstance(new.occupant, HostId):
            w.owner[new.occupant] = new.actor
    # One that is still starting answers by itself later (`events._up`).
    if known is None or known.up:
        w.later(Up(new.actor))


def _start(w: WorldState, a: StartRanks) -> None:
    # A spare becomes the host whose ranks it starts.
    watched = w.watched.get(a.actor)
    if watched is not None:
        # The watch follows, so that a loss is reported as that of the host.
        w.watched[a.actor] = evolve(watched, occupant=a.host, incarnation=a.incarnation)
    process = w.processes.get(a.actor)
    if process is None or not w.reachable(process.node):
        return
    invariants.may_become(w, process, a.host)
    process = evolve(process, occupant=a.host, incarnation=a.incarnation)
    w.processes[a.actor] = process
    w.owner[a.host] = a.actor
    for start in a.ranks:
        _enter(w, a.actor, Running(a.host.role, start.rank, start.incarnation, a.generation))


def _enter(w: WorldState, actor: str, running: Running) -> None:
    """Start a rank in a process, unless this incarnation started there before: a repeated order is harmless."""
    process = w.processes[actor]
    this = (running.rank, running.incarnation)
    if this in process.begun:
        return
    invariants.may_start(w, running)
    coupling_invariants.meet(w, running)
    w.processes[actor] = evolve(process, ranks=(*process.ranks, running), begun=(*process.begun, this))
    w.start_running(actor, running)
    w.later(SetUp(actor, running))


def _stop(w: WorldState, a: StopRanks) -> None:
    actor = w.owner.get(a.host, "")
    watched = w.watched.get(actor)
    # By now the actor is another host, or another incarnation of this one.
    if watched is None or (watched.occupant, watched.incarnation) != (a.host, a.host_incarnation):
        return
    process = w.processes.get(actor)
    if process is None or not w.reachable(process.node):
        return
    # An order that was late must not stop an incarnation that started after it.
    latest = dict(zip(a.ranks, a.incarnations, strict=False))
    for running in process.ranks:
        is_meant = running.rank in a.ranks and running.incarnation <= latest.get(running.rank, running.incarnation)
        if is_meant and not servers.drain(w, actor, running):
            process = leave(w, process, running, LEFT)


def _leave_group(w: WorldState, a: LeaveGroup) -> None:
    """Let a rank leave its torch group while its process stays; an incarnation not yet started here never starts."""
    process = w.processes.get(a.actor)
    if a.actor not in w.watched or process is None or not w.reachable(process.node) or process.deaf:
        return
    running = next((r for r in process.ranks if (r.rank, r.incarnation) == (a.rank, a.incarnation)), None)
    if running is not None:
        leave(w, process, running, LEFT)
    elif (a.rank, a.incarnation) not in process.begun:
        w.processes[a.actor] = evolve(process, begun=(*process.begun, (a.rank, a.incarnation)))
        w.report(w.processes[a.actor], RankEnded(a.host.role, a.rank, a.incarnation, LEFT))


def leave(w: WorldState, process: Process, running: Running, outcome: Outcome) -> Process:
    """End a rank of a live process, which reports it."""
    w.stop_running(process.actor, running)
    process = evolve(process, ranks=tuple(r for r in process.ranks if r != running))
    return w.report(process, RankEnded(running.role, running.rank, running.incarnation, outcome))


def _release(w: WorldState, _a: Release) -> None:
    # Nothing is watched from here on: the ends below are no losses.
    w.watched.clear()
    drop(w, lambda _: True)
    w.reserving.clear()
    for actor in list(w.processes):
        w.kill(actor)
    for key in list(w.groups):
        w.release_group(key)
    w.later(Arrive(Released()))


def finish(w: WorldState, action: Finish) -> None:
    """End the job: PrimeMaster leaves, and its pending actions are dropped."""
    if w.finished is None:
        w.finished = action
    w.problems.extend(invariants.left_behind(w))
    if w.state is not None:
        w.end_master()


def _relaunch(w: WorldState, a: RelaunchNode) -> None:
    """Report a node to the relauncher. Machines that join are faults of kind `join`."""
    w.later(Arrive(RelaunchTold(a.node)))


_EFFECTS: dict[type, Callable[[WorldState, Any], None]] = {
    Reserve: _reserve,
    SpawnHost: _spawn_host,
    SpawnSpare: _spawn_spare,
    CheckNodes: checks.check,
    SaveCopies: leaving.save,
    RelaunchNode: _relaunch,
    StartRanks: _start,
    StopRanks: _stop,
    LeaveGroup: _leave_group,
    LoadWeights: weight_invariants.load,
    HoldCalls: weight_invariants.hold,
    Release: _release,
}
