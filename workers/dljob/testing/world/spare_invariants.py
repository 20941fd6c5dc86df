"""Invariants of spares, for a running job without pending events that could change them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dljob.master.start.assign import nodes_of_group, spare_nodes
from dljob.master.state.state import HostPhase, JobState, Phase, RankPhase, SparePhase
from dljob.testing.world.model import Arrive, AskIfKnown, Carry, PollNodes, Process, SpareKey, Up
from dljob.testing.world.state import WorldState

_MOVING = (Arrive, Carry, Up, PollNodes, AskIfKnown)
_OVER = (RankPhase.SUCCEEDED, RankPhase.FAILED)


def at_rest(w: WorldState) -> list[str]:
    """Return the broken invariants; none while PrimeMaster has events to receive or actions to take."""
    state = w.state
    if state is None or state.phase is not Phase.RUNNING:
        return []
    waiting = [
        (p.occupant, p) for p in w.processes.values() if isinstance(p.occupant, SpareKey) and w.reachable(p.node)
    ]
    if not waiting and not state.job.fault_tolerance.spares.nodes:
        return []
    if any(isinstance(pending.item, _MOVING) for pending in w.pending.values()):
        return []
    ready = Counter((spare_key.node, spare_key.role) for spare_key, process in waiting if process.up)
    return [*_check_known(w, state, waiting), *_refilled(w, state, ready), *_few(w, state, ready)]


def _check_known(w: WorldState, state: JobState, waiting: list[tuple[SpareKey, Process]]) -> Iterator[str]:
    """Each waiting process is a spare that PrimeMaster knows, or becomes a host; no spare is on a removed node."""
    hosts = {host_state.actor for host_state in state.hosts.values() if host_state.phase is HostPhase.READY}
    for spare_key, process in waiting:
        spare = state.spares.get((spare_key.role, spare_key.node, spare_key.slot))
        known = spare is not None and spare.incarnation == process.incarnation and spare.phase.alive
        # Condemned: its kill is on the way.
        if not known and process.actor not in hosts and not process.condemned:
            yield f"leak: {process.actor} waits on {process.node}, and PrimeMaster does not know it"
    for role, node, slot in state.spares:
        if node not in w.nodes:
            yield f"leak: spare {slot} of {role} is on {node}, which is gone"


def _refilled(w: WorldState, state: JobState, ready: Counter[tuple[str, str]]) -> Iterator[str]:
    """As many nodes stand by as asked for, or as are free, each with a process for every host that may move there."""
    # A machine that the cluster removed cannot stand by.
    views = [node.view for node in w.nodes.values() if node.listed]
    # A node where spares died is left alone for a while, and so is one that is excluded or about to depart.
    lost = {node for (_, node, _), spare_state in state.spares.items() if spare_state.phase is SparePhase.LOST}
    used_nodes = {*w.groups.values(), *lost, *state.exclusions, *state.departures}
    for group, count in spare_nodes(state.job.plan).items():
        group_nodes = {view.id for view in nodes_of_group(views, group)}
        free = group_nodes - used_nodes
        silent = {node for node in free if not w.reachable(node)}
        need = _needs(state, group_nodes)
        warm = [node for node in free - silent if all(ready[node, role] >= most for role, most in need.items())]
        # A silent node may or may not stand by, so it is not counted either way.
        if len(warm) < min(count, len(free)) - len(silent):
            yield f"spare: {len(warm)} nodes of {group} stand by, not {count}; free: {', '.join(sorted(free))}"


def _needs(state: JobState, nodes: set[str]) -> dict[str, int]:
    """Return role -> the most hosts it has on one of these nodes, for roles that were ready and are not over.

    Roles with devices are left out: only a process in a reserved bundle gets devices, so no spare can stand in for it.
    """
    needed: dict[str, int] = {}
    for role, facts in state.job.roles.items():
        if facts.plan.accelerator is not None:
            continue
        hosts_by_node = Counter(state.units[facts.unit_of(host)].node for host in facts.hosts() if host.index >= 0)
        most = max((count for node, count in hosts_by_node.items() if node in nodes), default=0)
        if most and state.roles[role].was_ready and not _has_ended(state, role):
            needed[role] = most
    return needed


def _has_ended(state: JobState, role: str) -> bool:
    return all(state.ranks[role, rank].phase in _OVER for rank in range(state.job.plan.roles[role].replicas))


def _few(w: WorldState, state: JobState, ready: Counter[tuple[str, str]]) -> Iterator[str]:
    """No more processes wait than asked for: none of a role that is over, and many only on nodes without ranks."""
    asked = sum(spare_nodes(state.job.plan).values())
    warm: dict[str, list[str]] = {}
    for (node, role), count in ready.items():
        if _has_ended(state, role):
            yield f"leak: {count} spares of {role} wait on {node}, and the role is over"
        elif count > state.job.fault_tolerance.spares.processes_per_node:
            warm.setdefault(role, []).append(node)
            if node in w.groups.values():
                yield f"leak: {count} spares of {role} wait on {node}, where units are"
    for role, nodes in warm.items():
        if len(nodes) > asked:
            yield f"leak: {role} has spares on {', '.join(sorted(nodes))}; {asked} nodes are to stand by"
