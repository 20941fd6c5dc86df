"""Orders that a new epoch repeats: everything that was ordered and not answered.

The journal holds events, not whether an action was carried out. So a PrimeMaster that takes over repeats, from the
state alone, each order whose answer is missing; actions are idempotent for this reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from dljob.master.failure.restart import leave_group, stop_ranks
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
from dljob.master.state.job import STORE
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
    return tuple(action for host, own in hosts for action in _kills(host, own))


def reissue(state: JobState, now: float) -> tuple[Action, ...]:
    """Return the orders that may not have been carried out. Each is idempotent; kills come first."""
    if state.phase.final:
        # The predecessor may have died between the last event and the writing of the result.
        verdict = state.verdict
        return () if verdict is None else (Finish(verdict.ok, verdict.reason, verdict.message),)
    if state.verdict is not None and state.verdict.release_at is not None:
        return (Release(),)
    hosts = sorted(state.hosts.items(), key=lambda item: (item[0].role, item[0].index))
    d = StateTransaction(state, now)
    there = {role: visible_devices.of_nodes(d, role) for role in d.job.roles}
    # An ending job starts nothing: only the requests to leave are repeated.
    if state.verdict is not None:
        return tuple(action for host, own in hosts for action in _leave(d, host, own))
    return (
        *kills(state),
        *_units(state),
        *(action for host, own in hosts for action in _host(d, host, own, there)),
        *(
            SpawnSpare(role, node, slot, spare.life)
            for (role, node, slot), spare in sorted(state.spares.items())
            if spare.phase is SparePhase.SPAWNING
        ),
        *checks.reissue_rounds(d),
        *departures.orders(state, now),
        *elastic.orders(state, now),
        *relaunch.orders(state),
        *weights.orders(d),
    )


def leftovers(state: JobState, held: Iterable[tuple[str, int]]) -> tuple[Unreserve, ...]:
    """Return the orders for reservations that no unit has any more. `held`: (unit, token) of all that there are.

    `reissue` repeats the last Unreserve of a unit. Earlier ones are lost where a unit moved twice while a kill was
    slow, and PrimeMaster died before it carried out either.
    """

    def is_wanted(unit: str, token: int) -> bool:
        own = state.units.get(unit)
        return own is not None and own.token == token and own.phase in (UnitPhase.RESERVING, UnitPhase.HELD)

    return tuple(Unreserve(unit, token) for unit, token in held if not is_wanted(unit, token))


def live_hosts(state: JobState) -> tuple[tuple[HostId, HostState], ...]:
    """Return the hosts that a new epoch watches: those that had answered."""
    ready = ((host, own) for host, own in state.hosts.items() if own.phase is HostPhase.READY)
    return tuple(sorted(ready, key=lambda item: (item[0].role, item[0].index)))


def ready_spares(state: JobState) -> tuple[tuple[SpareKey, SpareState], ...]:
    """Return the spares that a new epoch watches."""
    return tuple(sorted((key, own) for key, own in state.spares.items() if own.phase is SparePhase.READY))


def _kills(host: HostId, own: HostState) -> Iterator[Action]:
    """Yield the kills of all former processes of a host that may still live."""
    # A process is known by its actor's name, or by its life where it never answered.
    former: list[tuple[int, str]] = []
    if own.phase is HostPhase.DOWN and own.life:
        former.append((own.life, own.actor))
    elif own.life > 1:
        former.append((own.life - 1, ""))
    if own.past:
        former.append((own.life - 1, own.past))
    each = {actor or life: (life, actor) for life, actor in (*own.unconfirmed, *former)}
    yield from (KillHost(host, life, actor) for life, actor in reversed(each.values()))


def _units(state: JobState) -> Iterator[Action]:
    """Yield the reservations to make, and those to give back: of an earlier token, or of a unit without a node."""
    for name, unit in sorted(state.units.items()):
        if unit.phase in (UnitPhase.RESERVING, UnitPhase.HELD) and unit.token > 1:
            yield Unreserve(name, unit.token - 1)  # its removal may have been ordered just before the new reservation
        if unit.phase is UnitPhase.RESERVING:
            yield Reserve(name, unit.token, unit.node, limits.RESERVE_S, memory_overrides.given(state.grants, name))
        elif unit.phase is not UnitPhase.HELD and unit.token:
            yield Unreserve(name, unit.token)


def _host(
    d: StateTransaction, host: HostId, own: HostState, there: Mapping[str, visible_devices.VisibleDevices]
) -> Iterator[Action]:
    """Yield the orders of a host and its ranks that have no answer: its spawn, starts, and stops."""
    if own.phase is HostPhase.SPAWNING:
        unit = d.facts(host.role).unit_of(host)
        yield SpawnHost(host, own.life, unit, d.units[unit].token, limits.SPAWN_S)
    if own.phase is not HostPhase.READY or host.index == STORE:
        # Not up yet, or a store host, which has no ranks.
        return
    facts = d.facts(host.role)
    begun = _in_phase(d, host, RankPhase.STARTING)
    # A host ignores the start of an incarnation that it has started already.
    if begun:
        store = d.hosts[HostId(host.role, STORE)].address if facts.world else ""
        yield starting.order(d, host, begun, store, there[host.role])
    stopping = _in_phase(d, host, RankPhase.STOPPING)
    sizing = d.sizes.get(host.role)
    if sizing is not None and (leavers := tuple(rank for rank in stopping if rank in sizing.leaving)):
        yield leaving.order(d, host, leavers)
        stopping = tuple(rank for rank in stopping if rank not in leavers)
    # A rank in a thread host stops only by leaving its group in process; otherwise its host would be killed.
    if stopping and facts.plan.host is HostKind.THREAD:
        yield leave_group(d, host, *stopping)
    elif stopping:
        yield stop_ranks(d, host, stopping)


def _leave(d: StateTransaction, host: HostId, own: HostState) -> Iterator[Action]:
    """Yield the stop order of a host's ranks at the end of the job."""
    live = () if host.index == STORE else _in_phase(d, host, *(phase for phase in RankPhase if phase.live))
    if own.phase is HostPhase.READY and live and d.verdict is not None:
        incarnations = tuple(d.ranks[host.role, rank].incarnation for rank in live)
        yield StopRanks(host, own.life, live, limits.GRACE_S, d.verdict.reason, incarnations)


def _in_phase(d: StateTransaction, host: HostId, *phases: RankPhase) -> tuple[int, ...]:
    """Return the ranks of a host that are in one of these phases."""
    ranks = d.facts(host.role).ranks_of(host.index)
    return tuple(rank for rank in ranks if d.ranks[host.role, rank].phase in phases)
