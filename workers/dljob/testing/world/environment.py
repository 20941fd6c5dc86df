"""The environment of a PrimeMaster: nodes, reservations, processes, and pending items."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from operator import attrgetter
from typing import TypeAlias

from immutables import Map

from dljob.master.placement import elastic
from dljob.master.state.actions import Action
from dljob.master.state.events import RankEnded, RankReady, RankServes, WeightsLoaded
from dljob.master.state.evolve import evolve
from dljob.master.state.memory_overrides import Overrides, unit_with_memory
from dljob.master.state.state import JobState, RankKey
from dljob.master.state.views import HostId, NodeView
from dljob.plan.model import JobPlan
from dljob.testing.world.model import Arrive, Carry, Item, Pending, Process, ReportStalls, Running, Silence, Watched
from dljob.testing.world.tables import NodeTable, PlacedTable

_SHOWN, _WHERE = attrgetter("id", "leaving"), attrgetter("node")

ReportedNodes: TypeAlias = tuple[NodeView, ...] | tuple[tuple[str, float | None], ...]
"""The part of the nodes by which snapshots are compared: all of it, or only names and departures."""


def reported(state: JobState, node_views: tuple[NodeView, ...]) -> ReportedNodes:
    """Return the part of the nodes by which snapshots are compared, as `runtime.controller.node_change_filter` does.

    Free resources matter only while something is to be placed, or a role is to grow.
    """
    return tuple(map(_SHOWN, node_views)) if elastic.is_settled(state) else node_views


class Surroundings:
    """Nodes and the processes on them; their reports to PrimeMaster become pending items."""

    def __init__(self, plan: JobPlan, nodes: Iterable[NodeView], now: float) -> None:
        # The widest plan knows the units of every size of the roles.
        self.plan = plan.widest
        self.now = now
        self.pending: dict[int, Pending] = {}
        self.arriving: dict[int, None] = {}
        """Numbers of the pending items that are events for PrimeMaster."""
        self.carrying: dict[int, Action] = {}
        """The pending items that are actions: a few, among tens of thousands of items in a large job."""
        self.late: dict[str, int] = {}
        """Actor that cannot be created -> number of the pending report of that, due at the end of its deadline."""
        self.serial = 0
        self.placed: dict[str, tuple[str, ...]] = {}
        """Node -> the actors of its live processes."""
        self._surround(nodes)
        self._serve()

    def _surround(self, nodes: Iterable[NodeView]) -> None:
        """Set up the nodes, without anything running on them."""
        self.nodes = NodeTable(nodes)
        self.groups = PlacedTable[tuple[str, int], str](str)
        self.granted: dict[tuple[str, int], Overrides] = {}
        """The memory that reservations hold beyond the plan."""
        self.struck: set[tuple[str, int]] = set()
        """Reservations that disappeared with their nodes without being released."""
        self.processes: dict[str, Process] = {}
        self.watched = PlacedTable[str, Watched](_WHERE)
        self.owner: dict[HostId, str] = {}
        """The newest actor of each host."""
        self.running: dict[RankKey, tuple[tuple[int, str], ...]] = {}
        """(incarnation, actor) of each live process of a rank."""
        self.worlds: dict[tuple[str, int], Map[str, int]] = {}
        """(role, generation) -> actor -> its number of live ranks; entries without live ranks are removed."""
        self.hung: set[Running] = set()
        """Ranks that hang: they make no step and never end by themselves."""
        self.met: set[tuple[Running, Running]] = set()
        """(rank, peer) that ran at one time, where the rank's role is coupled to the peer's and restarts with it."""
        self.started: dict[RankKey, int] = {}
        """The latest incarnation that was started of each rank."""
        self.reserving: set[tuple[str, int]] = set()
        self.looking = False
        self.reported_nodes: ReportedNodes | None = None
        self.refusing = 0
        """The number of reservations that will be refused although there is room."""
        self.versions: tuple[int, int] = (0, 0)
        """The newest version of weights, and the number of loads that will fail."""
        self.doomed: int | None = None
        """When PrimeMaster dies at the next event: -1 before it is journaled, else after so many of its effects; None:
        never.
        """
        self.outlived = False
        """Whether actions that are pending when PrimeMaster dies still take effect, without an answer to it."""
        self.admitted = False
        self.was_ready: set[RankKey] = set()
        self.ended: set[RankKey] = set()
        self.bad: dict[str, int] = {}
        """Bad nodes, and what is broken there (`checks.ALONE` or `checks.TOGETHER`)."""
        self.fit: set[tuple[str, str]] = set()
        """(role, node) pairs that passed a node check."""

    def _serve(self) -> None:
        """Set up what concerns servers, and ranks that stand still."""
        self.stalls: dict[Running, float] = {}
        """Rank that stands still -> since when (unix seconds); all others wait for it."""
        self.cut_versions: dict[int, int] = {}
        """Cut -> the newest version of weights when its trainer saved."""
        self.left_versions: dict[int, tuple[int, int]] = {}
        """Incarnation of the trainer -> (a, b): versions after a, up to b, are of steps that it has left."""
        self.said: dict[Running, bool] = {}
        """The last word of the host of each live server: whether it gets requests."""
        self.heard: dict[RankKey, tuple[int, bool]] = {}
        """(incarnation, word) of each server, as PrimeMaster heard it last."""
        self.asked: dict[tuple[str, int, int], tuple[float, float]] = {}
        """(role, rank, incarnation) -> when PrimeMaster first and last ordered its drain, in PrimeMaster's time."""
        self.draining: set[Running] = set()
        self.stubborn: set[Running] = set()
        """Servers that ignore their drain, and every signal."""

    def later(self, item: Item, wait: float = 0.0) -> int:
        """Add a pending item that takes effect in `wait` seconds or later; return its number."""
        self.serial += 1
        self.pending[self.serial] = Pending(item, self.now + wait)
        # Indices for the two kinds that are searched most.
        if isinstance(item, Arrive):
            self.arriving[self.serial] = None
        elif isinstance(item, Carry):
            self.carrying[self.serial] = item.action
        return self.serial

    def reachable(self, node: str) -> bool:
        """Whether a node exists and answers."""
        found_node = self.nodes.get(node)
        return found_node is not None and found_node.silence is Silence.NONE

    def on(self, node: str) -> list[Process]:
        """Return the processes on a node."""
        return [self.processes[actor] for actor in self.placed.get(node, ())]

    def begin_process(self, new: Process) -> None:
        """Record a process that begins."""
        self.processes[new.actor] = new
        self.placed[new.node] = (*self.placed.get(new.node, ()), new.actor)

    def end_process(self, actor: str) -> Process | None:
        """Forget a process that ends, and return it."""
        process = self.processes.pop(actor, None)
        if process is not None:
            remaining = tuple(placed_actor for placed_actor in self.placed.pop(process.node) if placed_actor != actor)
            if remaining:
                self.placed[process.node] = remaining
        return process

    def report(self, process: Process, event: RankReady | RankEnded | RankServes | WeightsLoaded) -> Process:
        """Let a process report on a rank. It repeats the report until PrimeMaster acknowledges it."""
        new = evolve(process, reports=(*process.reports, event))
        self.processes[process.actor] = new
        # Otherwise the report waits in the process, which repeats it when PrimeMaster attaches to it.
        if process.actor in self.watched and self.reachable(process.node):
            self.later(Arrive(event, process.actor))
        return new

    def start_running(self, actor: str, running: Running) -> None:
        """Record that a rank runs in a process."""
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
        """Record that a rank no longer runs in a process."""
        key = (running.role, running.rank)
        remaining = tuple(entry for entry in self.running.get(key, ()) if entry != (running.incarnation, actor))
        if remaining:
            self.running[key] = remaining
        else:
            self.running.pop(key, None)
        self._count(running, actor, -1)
        self.hung.discard(running)
        if self.stalls.pop(running, None) is not None:
            self.later(ReportStalls())
        self.said.pop(running, None)
        self.draining.discard(running)
        self.stubborn.discard(running)
        if self.met:
            self.met = {pair for pair in self.met if pair[0] != running}

    def take(self, node: str, unit: str, times: int, overrides: Overrides = ()) -> bool:
        """Take a unit's resources from a node, or with `times` -1 give them back; False where there is no room."""
        found_node = self.nodes.get(node)
        if found_node is None:
            return False
        free = dict(found_node.view.free)
        for name, amount in unit_with_memory(self.plan, unit, overrides).demand:
            free[name] = free.get(name, 0) - times * amount
            if free[name] < 0:
                return False
        view = replace(found_node.view, free=tuple(sorted((k, v) for k, v in free.items() if v)))
        self.nodes[node] = evolve(found_node, view=view)
        return True
