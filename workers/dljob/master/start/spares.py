"""Process spares: kept ready per node and role, and taken by any host of that role and node that needs a process.

A node of the job keeps as many spares of each role as the spec says; a node that stands by (`standby`) keeps as many as
it may have to replace at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from dljob.master.state import limits
from dljob.master.state.actions import KillSpare, SpawnSpare
from dljob.master.state.events import SpareLost, SpareReady
from dljob.master.state.evolve import evolve
from dljob.master.state.state import HostPhase, HostState, SpareKey, SparePhase, SpareState, UnitPhase
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import HostId
from dljob.telemetry import reasons
from dljob.telemetry.wording import counted

_ENDED_PHASES = (SparePhase.TAKEN, SparePhase.LOST)


def spares_per_node(tx: StateTransaction) -> int:
    """Return the number of spares that each node keeps for each role that runs there."""
    return tx.job.fault_tolerance.spares.processes_per_node


def order_missing_spares(tx: StateTransaction, role: str, nodes: Iterable[str], count: int = 0) -> None:
    """Order the spares of a role that these nodes lack, up to `count` or the spec's number on each, the larger one."""
    # The node of a unit without one is empty.
    for node in sorted(set(nodes) - {""}):
        for slot in range(max(count, spares_per_node(tx))):
            spare = tx.spares.get((role, node, slot))
            # A slot that was taken gets another incarnation, so that events of its former spare stay stale.
            if spare is None or spare.phase is SparePhase.TAKEN:
                _spawn(tx, role, node, slot, SpareState(SparePhase.SPAWNING, 1 + (spare.incarnation if spare else 0)))


def nodes_of_ranks(tx: StateTransaction, role: str, ranks: Iterable[int]) -> set[str]:
    """Return the nodes that now hold the units of these ranks; a node that units left is not among them."""
    facts = tx.facts(role)
    units = (tx.units[facts.unit_of(facts.host_of(rank))] for rank in ranks)
    return {unit.node for unit in units if unit.phase is UnitPhase.HELD}


def take_spare(tx: StateTransaction, host: HostId, node: str) -> bool:
    """Make a ready spare of this node the host's process, with the host's devices; return whether there was one.

    The next spare is ordered only when the rank is ready again: its start would take processor time from the restart.
    """
    old_state = tx.hosts[host]
    # Stores have no spares, and the first process of a host is always a new actor in its reservation.
    if host.index < 0 or not old_state.incarnation:
        return False
    # A spare lives outside the reservation, so Ray gives it no device ids: only the ids that this host had on this node
    # are known to be its own.
    devices = old_state.devices if old_state.node == node else ()
    if tx.facts(host.role).plan.accelerator is not None and not devices:
        return False
    # Slots of a role and node are numbered without gaps from 0 on.
    for slot in itertools.takewhile(lambda slot: (host.role, node, slot) in tx.spares, itertools.count()):
        spare = tx.spares[host.role, node, slot]
        if spare.phase is SparePhase.READY:
            incarnation = old_state.incarnation + 1
            past = old_state.actor or old_state.previous_actor
            process = (incarnation, tx.now, node, spare.pid, spare.actor, past)
            new_state = HostState(HostPhase.READY, *process, devices, slots=old_state.slots)
            tx.set_host(host, evolve(new_state, unconfirmed=old_state.replaced))
            tx.set_spare((host.role, node, slot), evolve(spare, phase=SparePhase.TAKEN))
            return True
    return False


def end_spares_of_role(tx: StateTransaction, role: str) -> None:
    """End all spares of a role that has completed."""
    for key in sorted(tx.spares):
        if key[0] == role:
            end_spare(tx, key)


def end_spare(tx: StateTransaction, key: SpareKey) -> None:
    """End a spare that is needed no longer, if it lives."""
    spare = tx.spares[key]
    if spare.phase.alive:
        tx.do(KillSpare(*key, spare.incarnation, spare.actor))
        # Without an actor, so that its loss is not taken for that of a host (`host_of_lost_spare`).
        tx.set_spare(key, evolve(spare, phase=SparePhase.TAKEN, actor=""))


def host_of_lost_spare(tx: StateTransaction, event: SpareLost) -> HostId | None:
    """Return the host that a lost spare had become before its loss was reported; None: it was still a spare."""
    spare = tx.spares.get((event.role, event.node, event.slot))
    if (
        spare is None
        or spare.incarnation != event.incarnation
        or spare.phase is not SparePhase.TAKEN
        or not spare.actor
    ):
        return None
    hosts = (host for host, state in tx.hosts.items() if host.role == event.role and state.actor == spare.actor)
    return next((host for host in hosts if tx.hosts[host].phase is HostPhase.READY), None)


def end_spares_of_nodes(tx: StateTransaction, nodes: frozenset[str]) -> None:
    """End the spares of nodes that the job leaves.

    Their incarnations stay known: such a node may be used again, and no new spare may have the name of a former one.
    """
    for key in sorted(key for key in tx.spares if key[1] in nodes):
        spare = tx.spares[key]
        if spare.phase.alive:
            tx.do(KillSpare(*key, spare.incarnation, spare.actor))
        tx.set_spare(key, SpareState(SparePhase.TAKEN, spare.incarnation))


def forget_spares_of_nodes(tx: StateTransaction, nodes: frozenset[str]) -> None:
    """Forget the spares of nodes that are gone from Ray: their ids never come back."""
    end_spares_of_nodes(tx, nodes)
    for key in [key for key in tx.spares if key[1] in nodes]:
        tx.set_spare(key, None)


def record_ready_spare(tx: StateTransaction, event: SpareReady) -> None:
    """Record that a spare is ready."""
    key = (event.role, event.node, event.slot)
    spare = tx.spares.get(key)
    if spare is not None and spare.incarnation == event.incarnation and spare.phase is SparePhase.SPAWNING:
        new = SpareState(SparePhase.READY, event.incarnation, event.actor, event.pid)
        tx.set_spare(key, new)


def replace_lost(tx: StateTransaction, event: SpareLost) -> None:
    """Replace a spare that died or did not come up, unless it failed to come up too often in a row."""
    key = (event.role, event.node, event.slot)
    spare = tx.spares.get(key)
    if spare is None or spare.incarnation != event.incarnation or spare.phase in _ENDED_PHASES:
        return
    if tx.ending:
        # A spare created now might come up after the release, and stay behind.
        tx.set_spare(key, evolve(spare, phase=SparePhase.TAKEN, actor=""))
        return
    # Only failures to come up count: a spare that was ready proves that the node can make one.
    failures = spare.failures + 1 if spare.phase is SparePhase.SPAWNING else 0
    if failures >= limits.SPARE_FAILURES:
        tx.set_spare(key, evolve(spare, phase=SparePhase.LOST, failures=failures))
        message = (
            f"spare {event.slot} on {tx.node_title(event.node)} failed to come up {counted(failures, 'time')}: given up"
        )
        tx.note(reasons.SPARE_POOL_DEGRADED, event.role, message)
        return
    _spawn(tx, *key, SpareState(SparePhase.SPAWNING, spare.incarnation + 1, failures=failures))


def _spawn(tx: StateTransaction, role: str, node: str, slot: int, spare: SpareState) -> None:
    """Order a spare, and record it."""
    tx.set_spare((role, node, slot), spare)
    tx.do(SpawnSpare(role, node, slot, spare.incarnation))
