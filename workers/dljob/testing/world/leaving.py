"""Announced departures of nodes in a world, and the invariant that nothing is placed on such a node."""

from __future__ import annotations

from dataclasses import replace

from dljob.master.state.actions import Reserve, SaveCopies
from dljob.master.state.events import CauseLearned, CopiesSaved, NodesSeen
from dljob.master.state.evolve import evolve
from dljob.master.state.views import Clue
from dljob.telemetry.evidence import Source
from dljob.testing.world import server_invariants
from dljob.testing.world.fault_schedule import Timed, chance
from dljob.testing.world.model import Arrive, Depart, FaultMove, Silence, StrikeOff
from dljob.testing.world.state import WorldState

EVICTED = Clue(Source.POD.value, "EvictionByEvictionAPI: Eviction API: evicting")
GONE_S = 1.0
"""Seconds until the cluster reports a drained machine as gone."""
SOON_S = 200.0
"""Departures are announced within this many seconds from the beginning."""
OFTEN = 0.25
"""The share of seeds with announced departures."""


def drain(w: WorldState, f: FaultMove) -> None:
    """The cluster drains a node, which departs after `value` seconds."""
    name = _picked(w, f)
    if name:
        node = w.nodes[name]
        w.nodes[name] = evolve(node, view=replace(node.view, leaving=w.now + f.value))
        w.later(Depart(name), f.value)
        w.look()


def evict(w: WorldState, f: FaultMove) -> None:
    """A node's pod is reported as evicted; the node departs after `value` seconds, or never if that is 0."""
    name = _picked(w, f)
    if name:
        w.later(Arrive(CauseLearned(f"node/{name}", (EVICTED,))))
        if f.value:
            w.later(Depart(name), f.value)


def _picked(w: WorldState, f: FaultMove) -> str:
    # A node that is silent, or announced already, cannot be announced.
    # A driver that knows its machines names one.
    if f.text:
        return f.text
    node_names = sorted(n for n, node in w.nodes.items() if node.silence is Silence.NONE and node.view.leaving is None)
    return node_names[f.pick % len(node_names)] if node_names else ""


def depart(w: WorldState, i: Depart) -> None:
    """The machine departs with everything that runs on it."""
    node = w.nodes.get(i.node)
    if node is None or node.silence is not Silence.NONE:
        return
    w.problems.extend(server_invariants.departs(w, w.known, i.node))
    w.nodes[i.node] = evolve(node, silence=Silence.CUT, since=w.now)
    for actor in [p.actor for p in w.on(i.node)]:
        w.die(actor)
    w.later(StrikeOff(i.node), GONE_S)


def save(w: WorldState, a: SaveCopies) -> None:
    """Copies are written to disk, and PrimeMaster gets a new snapshot of the nodes."""
    w.later(Arrive(NodesSeen(w.listed_nodes())))
    w.later(Arrive(CopiesSaved(a.node)))


def may_reserve(w: WorldState, a: Reserve) -> None:
    """A unit may not be reserved on a node whose departure is announced."""
    departure = w.known.departures.get(a.node)
    if departure is not None:
        w.problems.append(f"leaving: {a.unit} goes to {a.node}, which is to go: {departure.announcement}")


def notices(seed: int) -> tuple[Timed, ...]:
    """Return up to three announced departures, for some seeds."""
    rng = chance(f"leaving {seed}")
    if rng.random() > OFTEN:
        return ()
    moves = (
        FaultMove(rng.choice(("drain", "evict")), rng.randrange(1 << 16), rng.choice((2.0, 30.0, 30.0, 120.0)))
        for _ in range(rng.choice((1, 1, 2, 3)))
    )
    # Some evictions are announced and never happen.
    moves_with_false_alarms = [replace(f, value=0.0) if f.kind == "evict" and rng.random() < 0.3 else f for f in moves]
    return tuple(Timed(round(rng.random() * SOON_S, 3), fault) for fault in moves_with_false_alarms)
