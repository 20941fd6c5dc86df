"""What is around a PrimeMaster: nodes, reservations, processes, and what is on its way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

from immutables import Map

from dljob.master.state.actions import Action
from dljob.master.state.events import RankEnded, RankReady
from dljob.master.state.evolve import evolve
from dljob.master.state.memory_overrides import Given, unit_of
from dljob.master.state.state import RankKey
from dljob.master.state.views import HostId, NodeView
from dljob.plan.model import JobPlan
from dljob.testing.world.model import Arrive, Carry, Item, Node, Pending, Process, Running, Silence, Watched

Sighting: TypeAlias = tuple[NodeView, ...] | tuple[tuple[str, float | None], ...]
"""The nodes as far as news of them is compared: whole, or which ones and when they leave."""


class Surroundings:
    """Nodes and what runs on them; what PrimeMaster hears of it is put on its way."""

    def __init__(self, plan: JobPlan, nodes: Iterable[NodeView], now: float) -> None:
        self.plan = plan.widest
        self.now = now
        self.pending: dict[int, Pending] = {}
        self.arriving: dict[int, None] = {}
        """The pending items that are events for PrimeMaster."""
        self.carrying: dict[int, Action] = {}
        self.late: dict[str, int] = {}
        """Actor that cannot be made -> the number of the news of it, which comes when its deadline is over."""
        """The orders among the pending items: few of them, where tens of thousands of ranks are at work."""
        self.serial = 0
        self._surround(nodes)

    def _surround(self, nodes: Iterable[NodeView]) -> None:
        """Nothing runs yet on these nodes."""
        self.nodes: dict[str, Node] = {view.id: Node(view) for view in nodes}
        self.groups: dict[tuple[str, int], str] = {}
        self.granted: dict[tuple[str, int], Given] = {}
        """What reservations hold of memory beyond what the plan says."""
        self.struck: set[tuple[str, int]] = set()
        """Reservations that went with their nodes, and were not given back."""
        self.processes: dict[str, Process] = {}
        self.watched: dict[str, Watched] = {}
        self.owner: dict[HostId, str] = {}
        """The actor that was made a host last."""
        self.running: dict[RankKey, tuple[tuple[int, str], ...]] = {}
        """(incarnation, actor) of each live process of a rank."""
        self.worlds: dict[tuple[str, int], Map[str, int]] = {}
        """Actor -> how many of its ranks live, by role and generation; those of which nobody lives are none."""
        self.hung: set[Running] = set()
        """Ranks that stand still, and never end by themselves."""
        self.started: dict[RankKey, int] = {}
        """The latest incarnation that was ever started."""
        self.reserving: set[tuple[str, int]] = set()
        self.looking = False
        self.told_nodes: Sighting | None = None
        self.refusing = 0
        """So many reservations will be refused, whatever the room."""
        self.doomed: int | None = None
        """PrimeMaster dies at the next event: -1 before it is journaled, else after so many effects of it."""
        self.outlived = False
        """Whether the orders that are on their way when PrimeMaster dies take effect, without an answer to anybody."""
        self.admitted = False
        self.was_ready: set[RankKey] = set()
        self.ended: set[RankKey] = set()
        self.bad: dict[str, int] = {}
        """Nodes where something does not work, and what."""
        self.fit: set[tuple[str, str]] = set()
        """(role, node) that passed a check."""

    def later(self, item: Item, wait: float = 0.0) -> int:
        """Put an item on its way, `wait` seconds at the least; gives its number."""
        self.serial += 1
        self.pending[self.serial] = Pending(item, self.now + wait)
        if isinstance(item, Arrive):
            self.arriving[self.serial] = None
        elif isinstance(item, Carry):
            self.carrying[self.serial] = item.action
        return self.serial

    def reachable(self, node: str) -> bool:
        """Whether a node is there and answers."""
        found = self.nodes.get(node)
        return found is not None and found.silence is Silence.NONE

    def report(self, process: Process, event: RankReady | RankEnded) -> Process:
        """A process says something of a rank, and keeps it until it is acknowledged."""
        new = evolve(process, reports=(*process.reports, event))
        self.processes[process.actor] = new
        if process.actor in self.watched and self.reachable(process.node):
            self.later(Arrive(event, process.actor))
        return new

    def start_running(self, actor: str, running: Running) -> None:
        """A rank has a process."""
        key = (running.role, running.rank)
        self.running[key] = (*self.running.get(key, ()), (running.incarnation, actor))
        self.started[key] = running.incarnation
        self._count(running, actor, 1)

    def _count(self, running: Running, actor: str, change: int) -> None:
        key = (running.role, running.generation)
        world = self.worlds.get(key, Map[str, int]())
        count = world.get(actor, 0) + change
        self.worlds[key] = world.set(actor, count) if count else world.delete(actor)
        if not self.worlds[key]:
            del self.worlds[key]

    def stop_running(self, actor: str, running: Running) -> None:
        """A rank has no process any more."""
        key = (running.role, running.rank)
        left = tuple(one for one in self.running.get(key, ()) if one != (running.incarnation, actor))
        if left:
            self.running[key] = left
        else:
            self.running.pop(key, None)
        self._count(running, actor, -1)
        self.hung.discard(running)

    def take(self, node: str, unit: str, times: int, given: Given = ()) -> bool:
        """Take a unit's demand from a node, or give it back; False when there is no room for it."""
        found = self.nodes.get(node)
        if found is None:
            return False
        free = dict(found.view.free)
        for name, amount in unit_of(self.plan, unit, given).demand:
            free[name] = free.get(name, 0) - times * amount
            if free[name] < 0 and name in dict(found.view.total):
                return False
        view = replace(found.view, free=tuple(sorted((k, v) for k, v in free.items() if v)))
        self.nodes[node] = evolve(found, view=view)
        return True
