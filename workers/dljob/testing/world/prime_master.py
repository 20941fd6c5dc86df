"""PrimeMaster in a simulated world: the real core, its journal, and its deaths and restarts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dljob.master.placement.reissue import kills, live_hosts, ready_spares, reissue
from dljob.master.state.actions import Action, Note
from dljob.master.state.events import (
    MasterStarted,
    NodesSeen,
    NodeThawed,
    RankEnded,
    RankReady,
    RankServes,
    WeightsLoaded,
)
from dljob.master.state.evolve import evolve
from dljob.master.state.state import JobState
from dljob.master.state.views import NodeView, Outcome, Reason
from dljob.master.transition import next_wake, transition
from dljob.telemetry import reasons
from dljob.testing.world import elastic, executor, fleets, invariants, server_invariants, servers, weight_invariants
from dljob.testing.world.environment import reported
from dljob.testing.world.model import (
    HANG_S,
    STALL_S,
    Arrive,
    AskIfKnown,
    NodeOverdue,
    ReportHang,
    ReportStalls,
    Silence,
    SpareKey,
    Watched,
)
from dljob.testing.world.state import GONE, WorldState

HEARTBEAT_S = 1.0
"""Seconds between two requests by which a process asks PrimeMaster whether it is still known."""
_ANSWERS = (reasons.COMMAND_ACCEPTED, reasons.COMMAND_REFUSED)
NODE_GONE = Outcome(ok=False, reason=Reason.NODE_LOST, message="its node is gone")


class MasterWorld(WorldState):
    """A world in which PrimeMaster lives: it journals events, folds them into its state, and orders actions."""

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
        for sent in batch:
            # Judged here: an earlier one of the batch may have been the one before it.
            arrival = servers.in_order(self, sent) if self.serving else sent
            if arrival is None:
                continue
            self.journal.append((now, arrival.event))
            step = transition(self.state, arrival.event, now)
            # Few steps change sizes, so the checks of them are left out otherwise.
            if step.state.sizes is not self.state.sizes:
                self.problems.extend(elastic.moved(self.state, step.state))
                self.problems.extend(elastic.check_elastic(self.state, step.state))
                self.problems.extend(fleets.checked(self.state, step.state, arrival.event))
            if self.serving:
                self.problems.extend(server_invariants.check_step(self, self.state, arrival.event, step))
            self.problems.extend(weight_invariants.ordered(step.state, step.actions))
            self.state = self.known = step.state
            self.problems.extend(weight_invariants.ranks_with_left_weights(self))
            self.problems.extend(weight_invariants.served(self))
            actions.extend(step.actions)
            # After the journal has the report: its process drops it for good.
            self.acknowledge(arrival)
            if isinstance(arrival.event, NodesSeen):
                self._note_nodes(self.state, arrival.event.nodes)
        self.events += len(batch)
        self.carry_out(actions, doomed)

    def _note_nodes(self, state: JobState, nodes: tuple[NodeView, ...]) -> None:
        """Record the nodes that PrimeMaster saw last; if that snapshot is outdated, poll again.

        `runtime.controller.master_loop` compares with the last snapshot received too, whichever poll it came from.
        """
        self.reported_nodes = reported(state, nodes)
        present_nodes = self.listed_nodes()
        # Equal lists of a large cluster are not compared in their other form.
        if present_nodes != nodes and self.reported_nodes != reported(state, present_nodes):
            self.look()

    def acknowledge(self, arrival: Arrive) -> None:
        """Acknowledge a report: its process drops it, since the journal holds it."""
        event, actor = arrival.event, arrival.actor
        process = self.processes.get(actor)
        if process is not None and isinstance(event, RankReady | RankEnded | RankServes | WeightsLoaded):
            remaining = list(process.reports)
            # One only: a server may say the same twice.
            if event in remaining:
                remaining.remove(event)
            self.processes[actor] = evolve(process, reports=tuple(remaining))

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
        self.end_master()

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
            self.tell((Arrive(started), Arrive(NodesSeen(self.listed_nodes()))))
            self.reattach()
            self.listen()
        self.look()

    def reattach(self) -> None:
        """Watch the live actors, report those that died, and repeat actions that may not have taken effect."""
        state = self.state
        if state is None:
            return
        for host, process_state in live_hosts(state):
            self.attach(process_state.actor, Watched(host, process_state.incarnation, process_state.node))
        for (role, node, slot), process_state in ready_spares(state):
            self.attach(process_state.actor, Watched(SpareKey(role, node, slot), process_state.incarnation, node))
        self.carry_out(reissue(state, self.clock()))
        # Processes of earlier PrimeMasters ask whether they are known, and end themselves if not.
        for actor in self.processes:
            if actor not in self.watched:
                self.later(AskIfKnown(actor), HEARTBEAT_S)

    def listen(self) -> None:
        """Detect silent nodes and hung ranks again: the detectors' own state died with the last PrimeMaster."""
        for running in sorted(self.hung, key=lambda r: (r.role, r.rank)):
            actor = next(a for i, a in self.running[running.role, running.rank] if i == running.incarnation)
            self.later(ReportHang(actor, running), HANG_S)
        if self.stalls or self.known.stalls:
            self.later(ReportStalls(), STALL_S)
        for name, node in self.nodes.items():
            if node.silence is not Silence.NONE:
                self.later(NodeOverdue(name), self.job.fault_tolerance.node.freeze_seconds)
            # It was excluded for its silence, and answers by now.
            elif (exclusion := self.known.exclusions.get(name)) is not None and exclusion.silent:
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
