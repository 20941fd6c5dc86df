"""A faults file on a simulated job: the same file and the same report as on a real job.

Everything takes as long as on a quiet machine, and no other fault happens. While all ranks run, the first driver role
makes one step per second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dljob.master.failure import ending
from dljob.master.state.events import CauseLearned, HangFound
from dljob.master.state.state import Phase
from dljob.master.state.views import Clue, Reason
from dljob.plan import incidents
from dljob.plan.incidents import InjectedFault, Key, Moment, ObservedFault
from dljob.plan.role import HostKind
from dljob.plan.targets import MASTER, NODE, OPERATOR, POD_DELETED, Target, chosen, ranked, target_of
from dljob.spec.loading.faults import FileFault
from dljob.telemetry.evidence import Source
from dljob.testing.simulate.drive import Case, Driver, Durations
from dljob.testing.world import invariants
from dljob.testing.world.faults import KILLED
from dljob.testing.world.model import Arrive, Boot, Carry, FaultMove, Item, Move, PollNodes, SetUp, Silence, Up
from dljob.testing.world.state import EPOCH_S

STEP_S = 1.0
PATIENCE_S = 3600.0
"""Seconds after the start, or after the last fault, within which the job must recover."""
# Longer than any run, so user code never ends by itself.
FOR_EVER_S = 1e9
STILL_S = 3.0
"""Seconds until a node agent detects that a rank with step reports is stopped."""
GONE_S = 1.2
"""Seconds until an embedded Ray reports a node whose raylet was killed."""
_TAKES: Mapping[type, float] = {Arrive: 0.01, Carry: 0.01, Up: 0.5, SetUp: 0.3, PollNodes: 0.1, Boot: 0.4}


class Scenario(Driver):
    """Drives a job through the faults of a file."""

    def __init__(self, manifest: Mapping[str, Any], faults: Sequence[FileFault], *, trace: bool = False) -> None:
        super().__init__(Case(0, manifest, ()), trace=trace, pace=Durations(work=(FOR_EVER_S, FOR_EVER_S)))
        self._faults = tuple(faults)
        self._waiting = dict(enumerate(self._faults))
        self._events: Counter[str] = Counter()
        self._heard = 0
        self._incidents: dict[Key, ObservedFault] = {}
        self._step = 0
        self._last = EPOCH_S
        """When a fault was last injected."""
        self._striking = False
        self.strikes: list[InjectedFault] = []

    def play(self) -> dict[str, Any]:
        """Inject all faults until the job has recovered; return `incidents.report` with the broken invariants."""
        w = self.world
        self._schedule()
        while not (self._is_calm() or w.finished or w.problems):
            self._until(w.now + STEP_S)
            if self._well():
                self._step += 1
            self._inject_due()
        report = incidents.report(self._faults, self.strikes, self._incidents.values(), w.known.running_at)
        return {
            **report,
            "phase": w.known.phase.value,
            "problems": [*w.problems, *invariants.sweep(w), *invariants.replayed(w)],
        }

    def _is_calm(self) -> bool:
        w = self.world
        # A fault with a duration is not over yet.
        busy = any(s.at + (s.fault.seconds or 0) > w.now for s in self.strikes)
        # One step later, because the effect of a fault must show before calm counts.
        calm = self._well() and not busy and w.now > self._last + STEP_S
        return w.now > self._last + PATIENCE_S or (not self._waiting and calm)

    def _well(self) -> bool:
        known = self.world.known
        # Events on their way could still end the calm.
        return known.phase is Phase.RUNNING and self.world.state is not None and not self.world.arriving

    def _make(self, move: Move) -> None:
        super()._make(move)
        self._inject_due()

    def _delay(self, item: Item) -> float:
        return _TAKES.get(type(item)) or super()._delay(item)

    def _inject_due(self) -> None:
        """Read what the job reports, and inject the faults that are due."""
        w = self.world
        for fault in w.known.faults:
            observed_fault = ObservedFault(
                fault.reason, fault.target, fault.level, fault.detected_at, fault.recovered_at
            )
            self._incidents[observed_fault.key] = observed_fault
        for _, note in w.notes[self._heard :]:
            self._events[note.reason] += 1
        self._heard = len(w.notes)
        # Injecting a fault makes moves, which call this again.
        if self._striking or w.known.running_at is None:
            return
        self._striking = True
        now = Moment(w.now - w.known.running_at, self._step, self._events)
        for number in [n for n, fault in self._waiting.items() if incidents.is_due(fault.when, now)]:
            self._strike(number)
        self._schedule()
        self._striking = False

    # -- doing

    def _strike(self, number: int) -> None:
        """Inject one fault; one whose target has no process yet waits."""
        w, fault = self.world, self._waiting[number]
        target = target_of(fault.target, w.job.plan)
        at = w.now
        if target.role == MASTER:
            done = w.state is not None
            moves = [FaultMove("crash")] if done else []
        elif target.queue or target.role == OPERATOR:
            moves = [FaultMove("nothing")]  # neither queues nor an operator are simulated
        elif target.role == NODE:
            moves = self._to_node(target, fault)
        else:
            moves = self._to_ranks(target, fault)
        if not moves:
            return
        del self._waiting[number]
        self._last = w.now
        self.strikes.append(InjectedFault(number, fault, at))
        for move in moves:
            # A stopped or slow rank is only recorded: see `_to_rank`.
            if move.kind != "nothing":
                self._make(move)

    def _to_node(self, target: Target, fault: FileFault) -> list[FaultMove]:
        w = self.world
        # A node that does not answer has no number for a fault to name.
        listed = [name for name, node in w.nodes.items() if node.silence is Silence.NONE]
        unit_nodes = [unit.node for unit in (w.known.units[name] for name in w.job.plan.units)]
        name = chosen(target.node, ranked(unit_nodes, listed))
        if name is None or not w.reachable(name):
            return []
        if fault.fault == "kill":
            if target.pod:
                w.tell((Arrive(CauseLearned(f"node/{name}", (Clue(Source.POD, POD_DELETED),))),))
            return [FaultMove("node lost", value=GONE_S, text=name)]
        if fault.fault == "leave":
            announced = w.nodes[name].view.leaving is not None
            return [] if announced else [FaultMove("drain", value=float(fault.seconds or GONE_S), text=name)]
        # Also a cut: connections through one do not break while it lasts, which the world's own `cut` lets them.
        return [FaultMove("freeze", value=float(fault.seconds or FOR_EVER_S), text=name)]

    def _to_ranks(self, target: Target, fault: FileFault) -> list[FaultMove]:
        """Return the moves for all ranks that have not ended; none until each of them has a process."""
        w, role = self.world, target.role
        known = ((rank, w.known.ranks.get((role, rank))) for rank in target.ranks)
        # A fleet may get this rank later.
        present_ranks = [
            rank for rank, rank_state in known if rank_state is not None and ending.is_unfinished(rank_state)
        ]
        # The evidence of a kill for memory goes to PrimeMaster, which must be there to receive it.
        nobody_hears = fault.fault == "oom" and w.state is None
        if nobody_hears or not all(self._process_of(role, rank) for rank in present_ranks):
            return []
        return [move for rank in present_ranks for move in self._to_rank(role, rank, fault)]

    def _process_of(self, role: str, rank: int) -> int:
        """Return the incarnation of the rank's newest process if it is reachable, else 0."""
        incarnation, actor = self.world.running.get((role, rank), ((0, ""),))[-1]
        return incarnation if actor and self.world.reachable(self.world.processes[actor].node) else 0

    def _to_rank(self, role: str, rank: int, fault: FileFault) -> list[FaultMove]:
        """Return the moves for one rank. `slow` does nothing here, since the simulation has no speed of ranks."""
        w, incarnation = self.world, self._process_of(role, rank)
        if fault.fault in ("stop", "slow"):
            # A node agent detects no shorter stop.
            if fault.fault == "stop" and (fault.seconds or FOR_EVER_S) > STILL_S:
                self._stands_still(role, rank, incarnation)
            return [FaultMove("nothing")]
        if fault.fault == "oom":
            # Before the end of the process, which is attributed by this line.
            line = Clue(Source.KERNEL, f"Out of memory: Killed process ({role}/{rank})")
            w.tell((Arrive(CauseLearned(f"{role}/{rank}", (line,), incarnation)),))
        # A script is a process of its own in its host; a class runs in the host, which dies with it.
        if w.job.roles[role].plan.host is HostKind.FORK:
            return [FaultMove("error", value=KILLED, text=f"{role}/{rank}")]
        return [FaultMove("kill", value=KILLED, text=f"{role}/{rank}")]

    def _stands_still(self, role: str, rank: int, incarnation: int) -> None:
        """Have PrimeMaster receive the hang, where hang detection is on."""
        if self.world.job.fault_tolerance.hang.action != "Ignore":
            hang = HangFound(role, rank, incarnation, Reason.HANG.value, "its process is stopped")
            self.world.later(Arrive(hang), STILL_S)
