"""Node checks in a world: their results, the bad nodes, and the invariant that no rank starts on an unchecked node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dljob.master.state.actions import CheckNodes
from dljob.master.state.events import NodesChecked
from dljob.master.state.pairing import NodeFacts, TeamFacts
from dljob.testing.world.fault_schedule import Timed, chance
from dljob.testing.world.model import Arrive, FaultMove, Running
from dljob.testing.world.state import WorldState

HANGS_S = 60.0
"""Seconds to wait for a node that does not answer."""
SOON_S = 60.0
"""Seconds from the beginning by which a bad node turns bad."""
ALONE, TOGETHER = 0, 1
"""What does not work on a bad node: something by itself, or its network."""


def check(w: WorldState, a: CheckNodes) -> None:
    """Answer a round of checks, at once, or after `HANGS_S` if a node does not answer."""
    facts = {place.node: _facts(w, place.node) for place in a.places}
    fit = {node for node, node_facts in facts.items() if not node_facts.trouble and not node_facts.unmade}
    # Nodes test each other only once each is sound by itself.
    teams = tuple(_team(w, team) for team in a.teams if fit.issuperset(team))
    passed = {node for team in teams if not team.trouble for node in team.nodes}
    # A single node has no partner to test its network with.
    is_single_node = len({node for _, _, node in w.known.checks[a.role].places}) == 1
    w.fit.update((a.role, node) for node in fit if node in passed or is_single_node or node not in w.bad)
    # A checker on a silent node never answers: the round lasts until its timeout.
    waits = any(node in w.nodes and not w.reachable(node) for node in facts)
    w.later(Arrive(NodesChecked(a.role, a.number, tuple(facts.values()), teams)), HANGS_S if waits else 0.0)
    w.look()


def _facts(w: WorldState, node: str) -> NodeFacts:
    if node not in w.nodes:
        return NodeFacts(node, unmade="its checker died")
    if not w.reachable(node):
        return NodeFacts(node, trouble="its checker did not come up")
    return NodeFacts(node, "cpu", 10.0, trouble="it lacks a device" if w.bad.get(node) == ALONE else "")


def _team(w: WorldState, team: tuple[str, ...]) -> TeamFacts:
    return TeamFacts(team, trouble="it hung") if any(node in w.bad for node in team) else TeamFacts(team, 10.0)


def spoil(w: WorldState, f: FaultMove) -> None:
    """Turn a node bad; its running ranks continue."""
    node_names = sorted(w.nodes)
    if node_names:
        w.bad[f.text or node_names[f.pick % len(node_names)]] = int(f.value)


def unfit(w: WorldState, running: Running) -> Iterator[str]:
    """A rank of a role whose nodes are checked may start only on one that passed for that role."""
    facts = w.job.roles[running.role]
    node = w.processes[w.owner[facts.host_of(running.rank)]].node
    if facts.plan.pre_check and (running.role, node) not in w.fit:
        yield f"check: {running.role}/{running.rank} starts on {node}, which did not pass"


def asked_for(seed: int, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the manifest with node checks for some of its torch worlds."""
    rng = chance(f"checks {seed}")
    roles = manifest["spec"]["roles"]
    checked = [r.get("type") == "Elastic" and rng.random() < 0.7 for r in roles]
    roles_with_checks = [{**r, "comm": {"preCheck": True}} if yes else r for r, yes in zip(roles, checked, strict=True)]
    return {**manifest, "spec": {**manifest["spec"], "roles": roles_with_checks}} if any(checked) else manifest


def bad_nodes(seed: int, manifest: Mapping[str, Any]) -> tuple[Timed, ...]:
    """Return up to two faults that turn a node bad, for jobs whose nodes are checked."""
    rng = chance(f"bad nodes {seed}")
    if not any(role.get("comm", {}).get("preCheck") for role in manifest["spec"]["roles"]):
        return ()
    count = rng.choice((1, 1, 2))
    # Half of them are bad from the beginning, before the first check.
    at = (0.0 if rng.random() < 0.5 else round(rng.random() * SOON_S, 3) for _ in range(count))
    return tuple(Timed(when, FaultMove("bad", rng.randrange(1 << 16), rng.choice((ALONE, TOGETHER)))) for when in at)
