"""Orders that a new epoch repeats: everything that was ordered and not answered.

The journal holds events, not whether an action was carried out. So a PrimeMaster that takes over repeats, from the
state alone, each order whose answer is missing; actions are idempotent for this reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from dljob.master.failure.restart import leave_order, stop_order
from dljob.master.placement import departures, elastic, leaving
from dljob.master.start import checks, relaunch, starting, visible_devices, weights
from dljob.master.state import limits, memory_overrides
from dljob.master.state.actions import (
    Action,
    Finish,
    KillHost,
    Release,
    Reserve,
    SpawnHost,
    SpawnSpare,
    StopRanks,
    Unreserve,
)
from dljob.master.state.job import STORE_HOST_INDEX
from dljob.master.state.state import (
    HostPhase,
    HostState,
    JobState,
    RankPhase,
    SpareKey,
    SparePhase,
    SpareState,
    UnitPhase,
)
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import HostId
from dljob.plan.role import HostKind


def kills(state: JobState) -> tuple[Action, ...]:
    """Return the kills that may not have been carried out. They run before anything that the first events start."""
    if state.phase.final or state.verdict is not None:
        return ()
    hosts = sorted(state.hosts.items(), key=lambda item: (item[0].role, item[0].index))
    return tuple(action for host, host_state in hosts for action in _host_kills(host, host_state))


def reissue(state: JobState, now: float) -> tuple[Action, ...]:
    """Return the orders that may not have been carried out. Each is idempotent; kills come first."""
    if state.phase.final:
        # The predecessor may have died between the last event and the writing of the result.
        verdict = state.verdict
        return () if verdict is None else (Finish(verdict.ok, verdict.reason, verdict.message),)
    if state.verdict is not None and state.verdict.release_at is not None:
        return (Release(),)
    hosts = sorted(state.hosts.items(), key=lambda item: (item[0].role, item[0].index))
    tx = StateTransaction(state, now)
    devices = {role: visible_devices.visible_on_nodes(tx, role) for role in tx.job.roles}
    # An ending job starts nothing: only the requests to leave are repeated.
    if state.verdict is not None:
        return tuple(action for host, host_state in hosts for action in _stop_orders(tx, host, host_state))
    return (
        *kills(state),
        *_unit_orders(state),
        *(action for host, host_state in hosts for action in _host_orders(tx, host, host_state, devices)),
        *(
            SpawnSpare(role, node, slot, spare.incarnation)
            for (role, node, slot), spare in sorted(state.spares.items())
            if spare.phase is SparePhase.SPAWNING
        ),
        *checks.reissue_rounds(tx),
        *departures.orders(state, now),
        *elastic.orders(state, now),
        *relaunch.repeated_requests(state),
        *weights.repeated_orders(tx),
    )


def leftovers(state: JobState, reservations: Iterable[tuple[str, int]]) -> tuple[Unreserve, ...]:
    """Return the orders for reservations that no unit has any more. `reservations`: all (unit, token) that exist.

    `reissue` repeats the last Unreserve of a unit. Earlier ones are lost where a unit moved twice while a kill was
    slow, and PrimeMaster died before it carried out either.
    """

    def is_wanted(unit: str, token: int) -> bool:
        known = state.units.get(unit)
        return known is not None and known.token == token and known.phase in (UnitPhase.RESERVING, UnitPhase.HELD)

    return tuple(Unreserve(unit, token) for unit, token in reservations if not is_wanted(unit, token))


def live_hosts(state: JobState) -> tuple[tuple[HostId, HostState], ...]:
    """Return the hosts that a new epoch watches: those that had answered."""
    ready = ((host, host_state) for host, host_state in state.hosts.items() if host_state.phase is HostPhase.READY)
    return tuple(sorted(ready, key=lambda item: (item[0].role, item[0].index)))


def ready_spares(state: JobState) -> tuple[tuple[SpareKey, SpareState], ...]:
    """Return the spares that a new epoch watches."""
    return tuple(sorted((key, spare) for key, spare in state.spares.items() if spare.phase is SparePhase.READY))


def _host_kills(host: HostId, host_state: HostState) -> Iterator[Action]:
    """Yield the kills of all former processes of a host that may still live."""
    # A process is known by its actor's name, or by its incarnation where it never answered.
    former: list[tuple[int, str]] = []
    if host_state.phase is HostPhase.DOWN and host_state.incarnation:
        former.append((host_state.incarnation, host_state.actor))
    elif host_state.incarnation > 1:
        former.append((host_state.incarnation - 1, ""))
    if host_state.previous_actor:
        former.append((host_state.incarnation - 1, host_state.previous_actor))
    by_process = {
        actor or incarnation: (incarnation, actor) for incarnation, actor in (*host_state.unconfirmed, *former)
    }
    yield from (KillHost(host, incarnation, actor) for incarnation, actor in reversed(by_process.values()))


def _unit_orders(state: JobState) -> Iterator[Action]:
    """Yield the reservations to make, and those to give back: of an earlier token, or of a unit without a node."""
    for name, unit in sorted(state.units.items()):
        if unit.phase in (UnitPhase.RESERVING, UnitPhase.HELD) and unit.token > 1:
            yield Unreserve(name, unit.token - 1)  # its removal may have been ordered just before the new reservation
        if unit.phase is UnitPhase.RESERVING:
            memory = memory_overrides.overrides_of_unit(state.memory_overrides, name)
            yield Reserve(name, unit.token, unit.node, limits.RESERVE_S, memory)
        elif unit.phase is not UnitPhase.HELD and unit.token:
            yield Unreserve(name, unit.token)


def _host_orders(
    tx: StateTransaction, host: HostId, host_state: HostState, devices: Mapping[str, visible_devices.VisibleDevices]
) -> Iterator[Action]:
    """Yield the orders of a host and its ranks that have no answer: its spawn, starts, and stops."""
    if host_state.phase is HostPhase.SPAWNING:
        unit = tx.facts(host.role).unit_of(host)
        yield SpawnHost(host, host_state.incarnation, unit, tx.units[unit].token, limits.SPAWN_S)
    if host_state.phase is not HostPhase.READY or host.index == STORE_HOST_INDEX:
        # Not up yet, or a store host, which has no ranks.
        return
    facts = tx.facts(host.role)
    begun = _in_phase(tx, host, RankPhase.STARTING)
    # A host ignores the start of an incarnation that it has started already.
    if begun:
        store = tx.hosts[HostId(host.role, STORE_HOST_INDEX)].address if facts.is_torch_world else ""
        yield starting.start_order(tx, host, begun, store, devices[host.role])
    stopping = _in_phase(tx, host, RankPhase.STOPPING)
    sizing = tx.sizes.get(host.role)
    if sizing is not None and (leavers := tuple(rank for rank in stopping if rank in sizing.leaving)):
        yield leaving.leave_order(tx, host, leavers)
        stopping = tuple(rank for rank in stopping if rank not in leavers)
    # A rank in a thread host stops only by leaving its group in process; otherwise its host would be killed.
    if stopping and facts.plan.host is HostKind.THREAD:
        yield leave_order(tx, host, *stopping)
    elif stopping:
        yield stop_order(tx, host, stopping)


def _stop_orders(tx: StateTransaction, host: HostId, host_state: HostState) -> Iterator[Action]:
    """Yield the stop order of a host's ranks at the end of the job."""
    live_ranks = (
        () if host.index == STORE_HOST_INDEX else _in_phase(tx, host, *(phase for phase in RankPhase if phase.live))
    )
    if host_state.phase is HostPhase.READY and live_ranks and tx.verdict is not None:
        incarnations = tuple(tx.ranks[host.role, rank].incarnation for rank in live_ranks)
        yield StopRanks(
            host, host_state.incarnation, live_ranks, limits.JOB_END_GRACE_S, tx.verdict.reason, incarnations
        )


def _in_phase(tx: StateTransaction, host: HostId, *phases: RankPhase) -> tuple[int, ...]:
    """Return the ranks of a host that are in one of these phases."""
    ranks = tx.facts(host.role).ranks_of(host.index)
    return tuple(rank for rank in ranks if tx.ranks[host.role, rank].phase in phases)
