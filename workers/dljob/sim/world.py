"""A job's whole world: one PrimeMaster (the real core) and everything around it, as far as the core can tell.

A world is driven by moves: `moves()` are those that can be made now, `faults(...)` what could go wrong now,
`apply(move)` makes one (the same move in the same world leads to the same world), `clone()` is a copy to try one on,
`violations()` says which laws are broken. What is on its way is in `pending`: whoever drives the world says when each
item happens; a world knows no chance.

    world = World(plan, spec, nodes)
    while move := choose(world.moves()):
        world.apply(move)
        assert not world.problems
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dljob.master.actions import Action, Finish, Note
from dljob.master.events import Event, MasterStarted, NodesSeen, NodeThawed, RankEnded, RankReady, Tick
from dljob.master.evolve import evolve
from dljob.master.job import Job
from dljob.master.reissue import live_hosts, ready_spares, reissue
from dljob.master.state import JobState
from dljob.master.transition import initial, next_wake, transition
from dljob.master.views import NodeView, Outcome, Reason
from dljob.plan.model import JobPlan
from dljob.sim import elastic, executor, happenings, laws, mishaps
from dljob.sim.surroundings import Surroundings
from dljob.sim.things import (
    Arrive,
    Beacon,
    Boot,
    Carry,
    Fault,
    Happen,
    Lapse,
    Look,
    Move,
    Notice,
    Pending,
    Silence,
    SpareId,
    Stall,
    Wake,
    Watched,
)
from dljob.spec.model import DLJobSpec
from dljob.telemetry import reasons

UID = "5eed" + "0" * 28
EPOCH_S = 1_000_000_000.0
"""Unix seconds at which every world begins."""
BEACON_S = 1.0
"""How often a process asks whether it is known."""
_ANSWERS = (reasons.COMMAND_ACCEPTED, reasons.COMMAND_REFUSED)
GONE = Outcome(ok=False, reason=Reason.UNKNOWN)
NODE_GONE = Outcome(ok=False, reason=Reason.NODE_LOST, message="its node is gone")


class World(Surroundings):
    """One job and its surroundings.

    Attributes:
        now: virtual unix seconds.
        state: what PrimeMaster knows; None while there is none.
        pending: what is on its way, by number, in the order of its making.
        problems: the laws that were broken so far, in words.
    """

    def __init__(self, plan: JobPlan, spec: DLJobSpec, nodes: Iterable[NodeView], *, own_nodes: bool = False) -> None:
        self.offset = 0.0
        """How far the machine's clock is ahead of `now`."""
        self.ahead = 0.0
        """How far PrimeMaster's time is ahead of `now`."""
        self.last = 0.0
        """The latest time that a record of the journal carries."""
        self.begin = initial(plan, spec, UID, EPOCH_S, own_nodes=own_nodes)
        self.state: JobState | None = None
        self.known: JobState = self.begin
        """What the journal leads to; the state of the present PrimeMaster, or of the last one."""
        self.base: JobState = self.begin
        """The snapshot that the journal begins with."""
        self.base_at = 0
        """How many events of the journal are in that snapshot."""
        self.journal: list[tuple[float, Event]] = []
        self.epoch = 0
        self.events = 0
        self.finished: Finish | None = None
        self.problems: list[str] = []
        self.notes: list[tuple[float, Note]] = []
        self.obeyed = 0
        """How often a command was answered."""
        super().__init__(plan, nodes, EPOCH_S)
        self.later(Boot())

    # -- the interface

    @property
    def job(self) -> Job:
        """The job with as many ranks as PrimeMaster knows it to have."""
        return self.known.job

    def moves(self) -> list[Move]:
        """What can happen now without anything going wrong."""
        found: list[Move] = [Happen(number) for number in self.pending]
        if self.state is not None and next_wake(self.state) is not None:
            found.append(Wake())
        return found

    def faults(self, *kinds: str) -> list[Move]:
        """What could go wrong now, of these kinds (see `mishaps.FAULTS`): one fault for each victim."""
        return [fault for kind in kinds for fault in mishaps.possible(self, kind)]

    def apply(self, move: Move) -> None:
        """Make a move. Time only goes on when an item or a timer is later than now."""
        match move:
            case Happen(number, more):
                what = [self._pop(each) for each in (number, *more)]
                self.now = max(self.now, *(each.least for each in what)) if more else max(self.now, what[0].least)
                happenings.happen(self, what[0].item, *(each.item for each in what[1:]))
            case Wake():
                self.now = max(self.now, (self.wake_at() or self.now))
                self.tell((Arrive(Tick()),))
            case Fault():
                mishaps.fault(self, move)

    def _pop(self, number: int) -> Pending:
        self.arriving.pop(number, None)
        self.carrying.pop(number, None)
        return self.pending.pop(number)

    def clone(self) -> World:
        """A world like this one that goes its own way."""
        new = object.__new__(World)
        new.__dict__.update(
            {
                name: value.copy() if isinstance(value, dict | list | set) else value
                for name, value in vars(self).items()
            }
        )
        return new

    def violations(self) -> list[str]:
        """Every law that is broken, the whole world looked through."""
        return [*self.problems, *laws.sweep(self)]

    # -- PrimeMaster

    def clock(self) -> float:
        """PrimeMaster's time: the machine's when it booted, never less than the journal's, and then its own count."""
        self.last = max(self.last, self.now + self.ahead)
        return self.last

    def wake_at(self) -> float | None:
        """When PrimeMaster's timer is due, in virtual time."""
        wake = next_wake(self.state) if self.state is not None else None
        return None if wake is None else max(self.now, wake - self.ahead)

    def tell(self, batch: Sequence[Arrive]) -> None:
        """PrimeMaster takes in a batch of events: journal, transitions, orders."""
        if self.state is None:
            return
        doomed, self.doomed = self.doomed, None
        if doomed is not None and doomed < 0:
            self.crash()
            return
        now = self.clock()
        actions: list[Action] = []
        for arrival in batch:
            self.journal.append((now, arrival.event))
            step = transition(self.state, arrival.event, now)
            if step.state.sizes is not self.state.sizes:
                self.problems.extend(elastic.moved(self.state, step.state))
                self.problems.extend(elastic.kept(self.state, step.state))
            self.state = self.known = step.state
            actions.extend(step.actions)
            self.acknowledge(arrival)
        self.events += len(batch)
        self.carry_out(actions, doomed)

    def acknowledge(self, arrival: Arrive) -> None:
        """A report that is in the journal need not be kept by who made it."""
        event, actor = arrival.event, arrival.actor
        process = self.processes.get(actor)
        if process is not None and isinstance(event, RankReady | RankEnded):
            left = tuple(report for report in process.reports if report != event)
            self.processes[actor] = evolve(process, reports=left)

    def carry_out(self, actions: Iterable[Action], doomed: int | None = None) -> None:
        """Give a step's orders to the executor: what ends things first, then what begins things."""
        count = 0
        for action in executor.in_order(actions):
            if isinstance(action, Note):
                self.notes.append((self.now, action))
                self.obeyed += action.reason in _ANSWERS
                continue
            if doomed is not None and count >= doomed:
                break
            count += 1
            executor.order(self, action)
        if doomed is not None:
            self.crash()

    def crash(self) -> None:
        """PrimeMaster dies; what it was doing is cut off, what was on its way to it is lost."""
        if self.state is None:
            return
        self.state = None
        if self.outlived and self.finished is None:
            for action in list(self.carrying.values()):
                executor.effect(self, action)
        self.outlived = False
        self.watched.clear()
        self.reserving.clear()
        self.looking = False
        for number in [n for n, p in self.pending.items() if isinstance(p.item, Arrive | Carry | Look)]:
            del self.pending[number]
        self.arriving.clear()
        self.carrying.clear()
        if self.finished is None:
            self.later(Boot())
            self.later(Lapse("", self.epoch), self.job.fault_tolerance.lease)

    def boot(self) -> None:
        """A PrimeMaster starts: it replays the journal, and takes the job in hand."""
        first = self.epoch == 0
        self.epoch += 1
        self.ahead = max(self.offset, self.last - self.now)
        if not first:
            self.problems.extend(laws.replayed(self))
            self.base, self.base_at = laws.restored(self.known), len(self.journal)
            self.problems.extend(laws.unread(self.known, self.base))
        self.state = self.known
        if self.state.phase.final:
            self.carry_out(reissue(self.state, self.clock()))
            return
        if first:
            self.tell((Arrive(MasterStarted(1)),))
        else:
            seen = self.told_nodes = self.seen()
            started = MasterStarted(self.epoch, "PrimeMaster was lost")
            self.tell((Arrive(started), Arrive(NodesSeen(seen))))
            self.reattach()
            self.listen()
        self.look()

    def reattach(self) -> None:
        """Hear those who live, mourn those who died meanwhile, order again what may not have been carried out."""
        state = self.state
        if state is None:
            return
        for host, own in live_hosts(state):
            self.attach(own.actor, Watched(host, own.life, own.node))
        for (role, node, slot), own in ready_spares(state):
            self.attach(own.actor, Watched(SpareId(role, node, slot), own.life, node))
        self.carry_out(reissue(state, self.clock()))
        for actor in self.processes:
            if actor not in self.watched:
                self.later(Beacon(actor), BEACON_S)

    def listen(self) -> None:
        """Find out anew which nodes answer, and which ranks stand still."""
        for running in sorted(self.hung, key=lambda r: (r.role, r.rank)):
            actor = next(a for i, a in self.running[running.role, running.rank] if i == running.incarnation)
            self.later(Stall(actor, running), mishaps.HANG_S)
        for name, node in self.nodes.items():
            if node.silence is not Silence.NONE:
                self.later(Notice(name), self.job.fault_tolerance.node.freeze_seconds)
            elif (own := self.known.exclusions.get(name)) is not None and own.silent:
                self.later(Arrive(NodeThawed(name)))

    def attach(self, actor: str, watched: Watched) -> None:
        """Hear an actor: what it said before, or that it is dead."""
        if actor in self.watched:
            return
        self.watched[actor] = watched
        process = self.processes.get(actor)
        if not self.reachable(watched.node):
            if watched.node not in self.nodes or not self.nodes[watched.node].listed:
                self.lost(actor, NODE_GONE)
        elif process is None:
            self.lost(actor, GONE)
        else:
            for report in process.reports:
                self.later(Arrive(report, actor))

    def look(self) -> None:
        """The nodes may have changed: PrimeMaster will look."""
        if self.state is not None and not self.looking:
            self.looking = True
            self.later(Look())

    def seen(self) -> tuple[NodeView, ...]:
        """The nodes as the cluster lists them."""
        return tuple(node.view for node in self.nodes.values() if node.listed)

    # -- processes

    def die(self, actor: str, outcome: Outcome = GONE) -> None:
        """A process ends; PrimeMaster hears of it when it hears the node."""
        process = self.processes.pop(actor, None)
        if process is None:
            return
        for running in process.ranks:
            self.stop_running(actor, running)
        if self.reachable(process.node):
            self.lost(actor, outcome)

    def lost(self, actor: str, outcome: Outcome) -> None:
        """PrimeMaster's call to an actor breaks."""
        if actor not in self.watched or executor.coming(self, actor):
            return
        watched = self.watched.pop(actor)
        self.later(Arrive(executor.lost(watched.who, watched.life, outcome)))

    def release_group(self, key: tuple[str, int]) -> None:
        """A reservation goes, and with it who lives in it."""
        self.struck.discard(key)
        node = self.groups.pop(key, None)
        if node is None:
            return
        self.take(node, key[0], -1, self.granted.pop(key, ()))
        for process in [p for p in self.processes.values() if p.group == key]:
            executor.kill(self, process.actor)
        self.look()
