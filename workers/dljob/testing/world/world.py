"""A job's simulated world: one PrimeMaster (the real core), and a model of all that the core can observe.

A driver advances a world by moves: `moves()` lists the possible ones, `faults(...)` the possible faults, `apply(move)`
makes one (the same move in the same world leads to the same world), `clone()` copies the world to try a move on, and
`violations()` lists the broken invariants. Items that have not taken effect yet are in `pending`; the driver chooses
when each does. A world itself has no randomness.

    world = World(plan, spec, nodes)
    while move := choose(world.moves()):
        world.apply(move)
        assert not world.problems
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dljob.master.placement.reissue import kills, live_hosts, ready_spares, reissue
from dljob.master.state.actions import Action, Finish, Note
from dljob.master.state.events import Event, MasterStarted, NodesSeen, NodeThawed, RankEnded, RankReady, Tick
from dljob.master.state.evolve import evolve
from dljob.master.state.job import Job
from dljob.master.state.state import JobState
from dljob.master.state.views import NodeView, Outcome, Reason
from dljob.master.transition import initial, next_wake, transition
from dljob.plan.model import JobPlan
from dljob.spec.model import DLJobSpec
from dljob.telemetry import reasons
from dljob.testing.world import elastic, events, executor, invariants
from dljob.testing.world import faults as mishaps
from dljob.testing.world.environment import Surroundings
from dljob.testing.world.model import (
    Arrive,
    AskIfKnown,
    Boot,
    Carry,
    FaultMove,
    Happen,
    Lapse,
    Move,
    NodeOverdue,
    Pending,
    PollNodes,
    Silence,
    SpareKey,
    Stall,
    Wake,
    Watched,
)

UID = "5eed" + "0" * 28
# A fixed date in 2001, so that traces do not depend on the day.
EPOCH_S = 1_000_000_000.0
"""Unix seconds at which every world begins."""
BEACON_S = 1.0
"""Seconds between two requests by which a process asks PrimeMaster whether it is still known."""
_ANSWERS = (reasons.COMMAND_ACCEPTED, reasons.COMMAND_REFUSED)
GONE = Outcome(ok=False, reason=Reason.UNKNOWN)
NODE_GONE = Outcome(ok=False, reason=Reason.NODE_LOST, message="its node is gone")


class World(Surroundings):
    """One job and its surroundings.

    Attributes:
        now: virtual unix seconds.
        state: PrimeMaster's state; None while no PrimeMaster runs.
        pending: items that have not taken effect yet, by number, in the order of their creation.
        problems: messages of the invariants broken so far.
    """

    def __init__(self, plan: JobPlan, spec: DLJobSpec, nodes: Iterable[NodeView], *, own_nodes: bool = False) -> None:
        self.offset = 0.0
        """Seconds that the machine's clock is ahead of `now`."""
        self.ahead = 0.0
        """Seconds that PrimeMaster's time is ahead of `now`."""
        self.last = 0.0
        """The latest time of a record in the journal."""
        self.begin = initial(plan, spec, UID, EPOCH_S, own_nodes=own_nodes)
        self.state: JobState | None = None
        self.known: JobState = self.begin
        """State after all events of the journal; the state of the present PrimeMaster, or of the last one."""
        self.base: JobState = self.begin
        """Snapshot from which the present PrimeMaster started."""
        self.base_at = 0
        """Number of the journal's events that this snapshot contains."""
        self.journal: list[tuple[float, Event]] = []
        self.epoch = 0
        self.events = 0
        self.finished: Finish | None = None
        self.problems: list[str] = []
        self.notes: list[tuple[float, Note]] = []
        self.obeyed = 0
        """Number of commands that were accepted or refused."""
        super().__init__(plan, nodes, EPOCH_S)
        self.later(Boot())

    # -- the interface

    @property
    def job(self) -> Job:
        """The job with the present sizes of its roles."""
        return self.known.job

    def moves(self) -> list[Move]:
        """Return the possible moves without faults."""
        found: list[Move] = [Happen(number) for number in self.pending]
        if self.state is not None and next_wake(self.state) is not None:
            found.append(Wake())
        return found

    def faults(self, *kinds: str) -> list[Move]:
        """Return the possible faults of these kinds (see `mishaps.FAULTS`): one for each victim."""
        return [fault for kind in kinds for fault in mishaps.possible(self, kind)]

    def apply(self, move: Move) -> None:
        """Make a move. Time advances only when an item or a timer is later than now."""
        match move:
            case Happen(number, more):
                what = [self._pop(each) for each in (number, *more)]
                self.now = max(self.now, *(each.least for each in what)) if more else max(self.now, what[0].least)
                events.happen(self, what[0].item, *(each.item for each in what[1:]))
            case Wake():
                self.now = max(self.now, (self.wake_at() or self.now))
                self.tell((Arrive(Tick()),))
            case FaultMove():
                mishaps.fault(self, move)

    def _pop(self, number: int) -> Pending:
        self.arriving.pop(number, None)
        self.carrying.pop(number, None)
        return self.pending.pop(number)

    def clone(self) -> World:
        """Return an independent copy of the world."""
        # Tables are copied; the values in them are frozen, and shared.
        new = object.__new__(World)
        new.__dict__.update(
            {
                name: value.copy() if isinstance(value, dict | list | set) else value
                for name, value in vars(self).items()
            }
        )
        return new

    def violations(self) -> list[str]:
        """Return all broken invariants, after a check of the whole world."""
        return [*self.problems, *invariants.sweep(self)]

    # -- PrimeMaster

    def clock(self) -> float:
        """Return PrimeMaster's time: the clock at its boot, then monotonic, never before the journal's last record."""
        self.last = max(self.last, self.now + self.ahead)
        return self.last

    def wake_at(self) -> float | None:
        """Return the virtual time at which PrimeMaster's timer is due; None without one."""
        wake = next_wake(self.state) if self.state is not None else None
        # A timer that is overdue is due now.
        return None if wake is None else max(self.now, wake - self.ahead)

    def tell(self, batch: Sequence[Arrive]) -> None:
        """Fold a batch of events into PrimeMaster's state: journal, transitions, actions."""
        if self.state is None:
            return
        # A planned death of PrimeMaster: before the event is journaled (-1), or after some of its actions took effect.
        doomed, self.doomed = self.doomed, None
        if doomed is not None and doomed < 0:
            self.crash()
            return
        now = self.clock()
        actions: list[Action] = []
        for arrival in batch:
            self.journal.append((now, arrival.event))
            step = transition(self.state, arrival.event, now)
            # Few steps change sizes, so the checks of them are left out otherwise.
            if step.state.sizes is not self.state.sizes:
                self.problems.extend(elastic.moved(self.state, step.state))
                self.problems.extend(elastic.kept(self.state, step.state))
            self.state = self.known = step.state
            actions.extend(step.actions)
            # After the journal has the report: its process drops it for good.
            self.acknowledge(arrival)
            if isinstance(arrival.event, NodesSeen):
                self._told(self.state, arrival.event.nodes)
        self.events += len(batch)
        self.carry_out(actions, doomed)

    def _told(self, state: JobState, nodes: tuple[NodeView, ...]) -> None:
        """Record the nodes that PrimeMaster saw last; if that snapshot is outdated, poll again.

        `runtime.controller.master_loop` compares with the last snapshot received too, whichever poll it came from.
        """
        self.told_nodes = events.sighting(state, nodes)
        if self.told_nodes != events.sighting(state, self.seen()):
            self.look()

    def acknowledge(self, arrival: Arrive) -> None:
        """Acknowledge a report: its process drops it, since the journal holds it."""
        event, actor = arrival.event, arrival.actor
        process = self.processes.get(actor)
        if process is not None and isinstance(event, RankReady | RankEnded):
            left = tuple(report for report in process.reports if report != event)
            self.processes[actor] = evolve(process, reports=left)

    def carry_out(self, actions: Iterable[Action], doomed: int | None = None) -> None:
        """Pass the actions of a step to the executor: ends first, then creations."""
        count = 0
        for action in executor.in_order(actions):
            if isinstance(action, Note):
                self.notes.append((self.now, action))
                self.obeyed += action.reason in _ANSWERS
                continue
            # The planned death of PrimeMaster: the actions after it are lost.
            if doomed is not None and count >= doomed:
                break
            count += 1
            executor.order(self, action)
        if doomed is not None:
            self.crash()

    def crash(self) -> None:
        """Kill PrimeMaster: its pending actions and the pending events for it are lost."""
        if self.state is None:
            return
        self.state = None
        # Ray carries out requests that it has received, also when their sender dies.
        if self.outlived and self.finished is None:
            for action in list(self.carrying.values()):
                executor.effect(self, action)
        self.outlived = False
        self.watched.clear()
        self.reserving.clear()
        self.looking = False
        for number in [n for n, p in self.pending.items() if isinstance(p.item, Arrive | Carry | PollNodes)]:
            del self.pending[number]
        self.arriving.clear()
        self.carrying.clear()
        self.late.clear()
        if self.finished is None:
            self.later(Boot())
            # The leases of all processes run out unless the next PrimeMaster starts in time.
            self.later(Lapse("", self.epoch), self.job.fault_tolerance.lease)

    def boot(self) -> None:
        """Start a PrimeMaster: it replays the journal, re-attaches to live actors and repeats unfinished actions."""
        first = self.epoch == 0
        self.epoch += 1
        # The new process starts from the machine's clock, but not before the journal's last record.
        self.ahead = max(self.offset, self.last - self.now)
        # The replay of the journal must lead to the state that the dead PrimeMaster had.
        if not first:
            self.problems.extend(invariants.replayed(self))
            # Written and read, as a snapshot of the store is.
            self.base, self.base_at = invariants.restored(self.known), len(self.journal)
            self.problems.extend(invariants.unread(self.known, self.base))
        self.state = self.known
        # The job has ended: only the writing of its result may have to be repeated.
        if self.state.phase.final:
            self.carry_out(reissue(self.state, self.clock()))
            return
        if first:
            self.tell((Arrive(MasterStarted(1)),))
        else:
            # Kills first: an actor that the last epoch condemned must not be attached below.
            self.carry_out(kills(self.state))
            started = MasterStarted(self.epoch, "PrimeMaster was lost")
            self.tell((Arrive(started), Arrive(NodesSeen(self.seen()))))
            self.reattach()
            self.listen()
        self.look()

    def reattach(self) -> None:
        """Watch the live actors, report those that died, and repeat actions that may not have taken effect."""
        state = self.state
        if state is None:
            return
        for host, own in live_hosts(state):
            self.attach(own.actor, Watched(host, own.life, own.node))
        for (role, node, slot), own in ready_spares(state):
            self.attach(own.actor, Watched(SpareKey(role, node, slot), own.life, node))
        self.carry_out(reissue(state, self.clock()))
        # Processes of earlier PrimeMasters ask whether they are known, and end themselves if not.
        for actor in self.processes:
            if actor not in self.watched:
                self.later(AskIfKnown(actor), BEACON_S)

    def listen(self) -> None:
        """Detect silent nodes and hung ranks again: the detectors' own state died with the last PrimeMaster."""
        for running in sorted(self.hung, key=lambda r: (r.role, r.rank)):
            actor = next(a for i, a in self.running[running.role, running.rank] if i == running.incarnation)
            self.later(Stall(actor, running), mishaps.HANG_S)
        for name, node in self.nodes.items():
            if node.silence is not Silence.NONE:
                self.later(NodeOverdue(name), self.job.fault_tolerance.node.freeze_seconds)
            # It was excluded for its silence, and answers by now.
            elif (own := self.known.exclusions.get(name)) is not None and own.silent:
                self.later(Arrive(NodeThawed(name)))

    def attach(self, actor: str, watched: Watched) -> None:
        """Watch an actor: it repeats its unacknowledged reports, or its death is reported."""
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
        """Schedule a poll of the nodes, unless one is pending: they may have changed."""
        if self.state is not None and not self.looking:
            self.looking = True
            self.later(PollNodes())

    def seen(self) -> tuple[NodeView, ...]:
        """Return the nodes as the cluster lists them."""
        return tuple(node.view for node in self.nodes.values() if node.listed)

    # -- processes

    def die(self, actor: str, outcome: Outcome = GONE) -> None:
        """End a process; PrimeMaster learns of it if the node is reachable."""
        process = self.processes.pop(actor, None)
        if process is None:
            return
        for running in process.ranks:
            self.stop_running(actor, running)
        if self.reachable(process.node):
            self.lost(actor, outcome)

    def lost(self, actor: str, outcome: Outcome) -> None:
        """Break PrimeMaster's call to an actor, which reports the actor's loss."""
        # A creation that is pending reports its own failure.
        if actor not in self.watched or executor.coming(self, actor):
            return
        watched = self.watched.pop(actor)
        self.later(Arrive(executor.lost(watched.who, watched.life, outcome)))

    def release_group(self, key: tuple[str, int]) -> None:
        """Remove a reservation together with the processes in it."""
        self.struck.discard(key)
        node = self.groups.pop(key, None)
        if node is None:
            return
        self.take(node, key[0], -1, self.granted.pop(key, ()))
        # Ray ends the actors of a placement group with it.
        for process in [p for p in self.processes.values() if p.group == key]:
            executor.kill(self, process.actor)
        self.look()
