"""State of a simulated world: PrimeMaster's state and journal, and the ends of the processes around it."""

from __future__ import annotations

from collections.abc import Iterable

from dljob.master.state.actions import Finish, Note
from dljob.master.state.events import Event
from dljob.master.state.evolve import evolve
from dljob.master.state.job import Job
from dljob.master.state.state import JobState
from dljob.master.state.views import NodeView, Outcome, Reason
from dljob.master.transition import initial
from dljob.plan.model import JobPlan
from dljob.spec.model import DLJobSpec
from dljob.testing.world.environment import Surroundings
from dljob.testing.world.model import Arrive, Boot, Carry, Lapse, PollNodes, lost, made_by

UID = "5eed" + "0" * 28
# A fixed date in 2001, so that traces do not depend on the day.
EPOCH_S = 1_000_000_000.0
"""Unix seconds at which every world begins."""
GONE = Outcome(ok=False, reason=Reason.UNKNOWN)


class WorldState(Surroundings):
    """State of a job and of its surroundings, without what changes it by itself.

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
        self.epoch: int = 0
        self.events: int = 0
        self.finished: Finish | None = None
        self.problems: list[str] = []
        self.notes: list[tuple[float, Note]] = []
        self.serving = any(role.ports for role in plan.roles.values())
        """Whether the job has servers."""
        self.obeyed: int = 0
        """Number of commands that were accepted or refused."""
        super().__init__(plan, nodes, EPOCH_S)
        self.later(Boot())

    # -- PrimeMaster

    @property
    def job(self) -> Job:
        """The job with the present sizes of its roles."""
        return self.known.job

    def clock(self) -> float:
        """Return PrimeMaster's time: the clock at its boot, then monotonic, never before the journal's last record."""
        self.last = max(self.last, self.now + self.ahead)
        return self.last

    def look(self) -> None:
        """Schedule a poll of the nodes, unless one is pending: they may have changed."""
        if self.state is not None and not self.looking:
            self.looking = True
            self.later(PollNodes())

    def listed_nodes(self) -> tuple[NodeView, ...]:
        """Return the nodes as the cluster lists them."""
        return tuple(self.nodes.views.values())

    def end_master(self) -> None:
        """End PrimeMaster: its pending actions and the pending events for it are lost."""
        self.state = None
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

    # -- processes

    def die(self, actor: str, outcome: Outcome = GONE) -> None:
        """End a process; PrimeMaster learns of it if the node is reachable."""
        process = self.end_process(actor)
        if process is None:
            return
        for running in process.ranks:
            self.stop_running(actor, running)
        if self.reachable(process.node):
            self.lost(actor, outcome)

    def kill(self, actor: str) -> None:
        """Kill a process; on an unreachable node it ends once the node is reachable again."""
        process = self.processes.get(actor)
        if process is None:
            return
        if self.reachable(process.node):
            self.die(actor)
        else:
            self.processes[actor] = evolve(process, condemned=True)

    def coming(self, actor: str) -> bool:
        """Whether an actor is still being created, so that PrimeMaster has no call to it yet."""
        return any(made_by(action) == actor for action in self.carrying.values())

    def lost(self, actor: str, outcome: Outcome) -> None:
        """Break PrimeMaster's call to an actor, which reports the actor's loss."""
        # A creation that is pending reports its own failure.
        if actor not in self.watched or self.coming(actor):
            return
        watched = self.watched[actor]
        del self.watched[actor]
        self.later(Arrive(lost(watched.occupant, watched.incarnation, outcome)))

    def release_group(self, key: tuple[str, int]) -> None:
        """Remove a reservation together with the processes in it."""
        self.struck.discard(key)
        node = self.groups.pop(key, None)
        if node is None:
            return
        self.take(node, key[0], -1, self.granted.pop(key, ()))
        # Ray ends the actors of a placement group with it.
        for process in [p for p in self.on(node) if p.group == key]:
            self.kill(process.actor)
        self.look()
