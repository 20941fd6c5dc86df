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


def per_node(d: StateTransaction) -> int:
    """Return the number of spares that each node keeps for each role that runs there."""
    return d.job.fault_tolerance.spares.processes_per_node


def keep(d: StateTransaction, role: str, nodes: Iterable[str], count: int = 0) -> None:
    """Order the spares of a role that these nodes lack, up to `count` or the spec's number on each, the larger one."""
    # The node of a unit without one is empty.
    for node in sorted(set(nodes) - {""}):
        for slot in range(max(count, per_node(d))):
            spare = d.spares.get((role, node, slot))
            # A slot that was taken gets another life, so that events of its former spare stay stale.
            if spare is None or spare.phase is SparePhase.TAKEN:
                _spawn(d, role, node, slot, SpareState(SparePhase.SPAWNING, 1 + (spare.life if spare else 0)))


def homes(d: StateTransaction, role: str, ranks: Iterable[int]) -> set[str]:
    """Return the nodes that now hold the units of these ranks; a node that units left is not among them."""
    facts = d.facts(role)
    units = (d.units[facts.unit_of(facts.host_of(rank))] for rank in ranks)
    return {unit.node for unit in units if unit.phase is UnitPhase.HELD}


def take(d: StateTransaction, host: HostId, node: str) -> bool:
    """Make a ready spare of this node the host's process, with the host's devices; return whether there was one.

    The next spare is ordered only when the rank is ready again: its start would take processor time from the restart.
    """
    old = d.hosts[host]
    # Stores have no spares, and the first process of a host is always a new actor in its reservation.
    if host.index < 0 or not old.life:
        return False
    # A spare lives outside the reservation, so Ray gives it no device ids: only the ids that this host had on this node
    # are known to be its own.
    devices = old.devices if old.node == node else ()
    if d.facts(host.role).plan.accelerator is not None and not devices:
        return False
    # Slots of a role and node are numbered without gaps from 0 on.
    for slot in itertools.takewhile(lambda slot: (host.role, node, slot) in d.spares, itertools.count()):
        spare = d.spares[host.role, node, slot]
        if spare.phase is SparePhase.READY:
            life = old.life + 1
            past = old.actor or old.past
            process = (life, d.now, node, spare.pid, spare.actor, past)
            new = HostState(HostPhase.READY, *process, devices, slots=old.slots, unconfirmed=old.replaced)
            d.set_host(host, new)
            d.set_spare((host.role, node, slot), evolve(spare, phase=SparePhase.TAKEN))
            return True
    return False


def dismiss(d: StateTransaction, role: str) -> None:
    """End all spares of a role that has completed."""
    for key in sorted(d.spares):
        if key[0] == role:
            end(d, key)


def end(d: StateTransaction, key: SpareKey) -> None:
    """End a spare that is needed no longer, if it lives."""
    spare = d.spares[key]
    if spare.phase.alive:
        d.do(KillSpare(*key, spare.life, spare.actor))
        # Without an actor, so that its loss is not taken for that of a host (`taker`).
        d.set_spare(key, evolve(spare, phase=SparePhase.TAKEN, actor=""))


def taker(d: StateTransaction, event: SpareLost) -> HostId | None:
    """Return the host that a lost spare had become before its loss was reported; None: it was still a spare."""
    spare = d.spares.get((event.role, event.node, event.slot))
    if spare is None or spare.life != event.life or spare.phase is not SparePhase.TAKEN or not spare.actor:
        return None
    mine = (host for host, own in d.hosts.items() if host.role == event.role and own.actor == spare.actor)
    return next((host for host in mine if d.hosts[host].phase is HostPhase.READY), None)


def end_on_nodes(d: StateTransaction, nodes: frozenset[str]) -> None:
    """End the spares of nodes that the job leaves.

    Their lives stay known: such a node may be used again, and a new spare must not have the name of a former one.
    """
    for key in sorted(key for key in d.spares if key[1] in nodes):
        spare = d.spares[key]
        if spare.phase.alive:
            d.do(KillSpare(*key, spare.life, spare.actor))
        d.set_spare(key, SpareState(SparePhase.TAKEN, spare.life))


def forget_nodes(d: StateTransaction, nodes: frozenset[str]) -> None:
    """Forget the spares of nodes that are gone from Ray: their ids never come back."""
    end_on_nodes(d, nodes)
    for key in [key for key in d.spares if key[1] in nodes]:
        d.set_spare(key, None)


def ready(d: StateTransaction, event: SpareReady) -> None:
    """Record that a spare is ready."""
    key = (event.role, event.node, event.slot)
    spare = d.spares.get(key)
    if spare is not None and spare.life == event.life and spare.phase is SparePhase.SPAWNING:
        new = SpareState(SparePhase.READY, event.life, event.actor, event.pid)
        d.set_spare(key, new)


def replace_lost(d: StateTransaction, event: SpareLost) -> None:
    """Replace a spare that died or did not come up, unless it failed to come up too often in a row."""
    key = (event.role, event.node, event.slot)
    spare = d.spares.get(key)
    if spare is None or spare.life != event.life or spare.phase in _ENDED_PHASES:
        return
    if d.ending:
        # A spare created now might come up after the release, and stay behind.
        d.set_spare(key, evolve(spare, phase=SparePhase.TAKEN, actor=""))
        return
    # Only failures to come up count: a spare that was ready proves that the node can make one.
    failures = spare.failures + 1 if spare.phase is SparePhase.SPAWNING else 0
    if failures >= limits.SPARE_FAILURES:
        d.set_spare(key, evolve(spare, phase=SparePhase.LOST, failures=failures))
        message = (
            f"spare {event.slot} on {d.node_title(event.node)} failed to come up {counted(failures, 'time')}: given up"
        )
        d.note(reasons.SPARE_POOL_DEGRADED, event.role, message)
        return
    _spawn(d, *key, SpareState(SparePhase.SPAWNING, spare.life + 1, failures=failures))


def _spawn(d: StateTransaction, role: str, node: str, slot: int, spare: SpareState) -> None:
    """Order a spare, and record it."""
    d.set_spare((role, node, slot), spare)
    d.do(SpawnSpare(role, node, slot, spare.life))
