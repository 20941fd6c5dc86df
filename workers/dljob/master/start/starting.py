"""Starting: hosts when the dependencies of their role allow it, ranks when all that they wait for is ready."""

from __future__ import annotations

from collections.abc import Collection

from dljob.master.start import checks, spares, visible_devices
from dljob.master.state import limits, staleness
from dljob.master.state.actions import RankStart, SpawnHost, StartRanks
from dljob.master.state.evolve import evolve
from dljob.master.state.job import STORE
from dljob.master.state.state import HostPhase, HostState, RankPhase, RankState, UnitPhase
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import HostId


def completed(d: StateTransaction, role: str) -> bool:
    """Whether all ranks of a role have ended for good, well or by a rule that ignores their failure."""
    state = d.roles[role]
    return state.succeeded + state.failed == d.facts(role).plan.replicas


def dependencies_met(d: StateTransaction, role: str) -> bool:
    """Whether the roles that a role depends on allow its ranks to start."""
    return not _unmet(d, role)


def _unmet(d: StateTransaction, role: str) -> tuple[str, ...]:
    """Return the dependencies of a role that are not met. A completed role meets Ready, too."""
    return tuple(
        other
        for other, kind in d.facts(role).plan.depends_on
        if not (completed(d, other) or (kind == "Ready" and d.roles[other].was_ready))
    )


def ahead(d: StateTransaction, role: str) -> tuple[str, ...]:
    """Return what must come before a role that has not begun; empty if it has begun, or is of the first wave.

    A role that has not begun has nothing to restart: its lost units are replaced, or not, by the time of its turn.
    """
    if d.facts(role).first_wave or d.roles[role].spawned:
        return ()
    ends = d.roles[role].stop_by is not None
    return (*_unmet(d, role), *(("the end of its earlier ranks",) if ends else ()))


def _may_spawn(d: StateTransaction, role: str) -> bool:
    """Whether the hosts of a role may start: already while it waits for another role to be ready, not to complete."""
    return all(
        completed(d, other) or (kind == "Ready" and (d.roles[other].spawned or d.roles[other].was_ready))
        for other, kind in d.facts(role).plan.depends_on
    )


def start_roles(d: StateTransaction) -> None:
    """Order the hosts of every role that may have them and has none."""
    # Repeated, because a spawned role may allow the hosts of another one.
    again = True
    while again:
        again = False
        for name in d.job.roles:
            # A role whose earlier ranks still end begins after them.
            if not d.roles[name].spawned and d.roles[name].stop_by is None and _may_spawn(d, name):
                d.set_role(name, evolve(d.roles[name], spawned=True))
                new_life(d, name)
                again = True
                for host in d.facts(name).hosts():
                    ensure_host(d, host)


def new_life(d: StateTransaction, role: str) -> None:
    """Begin a new generation of an Elastic role without a torch world; its checkpoints belong to that life.

    A torch world gets its generation when it starts as a whole (`start_world`). Without a store each rank starts when
    it can, so the generation begins with the order.
    """
    facts = d.facts(role)
    if facts.plan.elastic and not facts.world:
        d.set_role(role, evolve(d.roles[role], generation=d.roles[role].generation + 1))


def on_hold(d: StateTransaction, rank: RankState) -> bool:
    """Whether a rank waits out the backoff of its restart."""
    # An incident is launched when its backoff ends.
    incident = d.incidents.get(rank.incident)
    return incident is not None and not incident.launched


def _has_stopping_mates(d: StateTransaction, role: str) -> bool:
    """Whether ranks of a restart that takes this role along, or begins at it, are still being stopped.

    All end before one starts, also a rank that has joined a later restart: otherwise it would run beside an old rank of
    the other role, which then starts again without it.
    """
    if not d.facts(role).mates:
        return False
    restarting_roles = {incident.role for incident in d.incidents.values()}
    # A restart of the job, which has no role, begins at each of them.
    leaders = d.job.roles if "" in restarting_roles else restarting_roles
    groups = ((leader, *d.facts(leader).coupled) for leader in leaders if d.facts(leader).coupled)
    return any(d.roles[name].stopping for group in groups if role in group for name in group)


def follow_stops(d: StateTransaction) -> None:
    """Start the ranks that waited until the last rank of a coupled role was stopped."""
    if d.roles is d.base.roles or not d.phase.active:
        return
    for name, facts in d.job.roles.items():
        if facts.mates and d.base.roles[name].stopping and not d.roles[name].stopping:
            for mate in facts.mates:
                if dependencies_met(d, mate):
                    start_waiting(d, mate)


def _has_work(d: StateTransaction, host: HostId) -> bool:
    """Whether a host has ranks to start; for a store host, whether its role has unfinished ranks."""
    role = d.roles[host.role]
    # Its hosts are ordered once its dependencies allow them.
    if not role.spawned:
        return False
    if host.index == STORE:
        return not completed(d, host.role)
    ranks = (d.ranks[host.role, rank] for rank in d.facts(host.role).ranks_of(host.index))
    return any(rank.phase is RankPhase.WAITING and not on_hold(d, rank) for rank in ranks)


def ensure_host(d: StateTransaction, host: HostId) -> None:
    """Give a host a process if it needs one and its unit is held: a spare of its node, else a new actor."""
    state = d.hosts[host]
    if state.phase is not HostPhase.DOWN or not _has_work(d, host):
        return
    name = d.facts(host.role).unit_of(host)
    unit = d.units[name]
    if unit.phase is not UnitPhase.HELD or _drains(d, host):
        return
    # A spare is preferred, because it has imported the role's modules already.
    if spares.take(d, host, unit.node):
        try_start(d, host)
        return
    # On the same node the known devices are kept, so that a spare can take the host over later.
    devices, slots = (state.devices, state.slots) if state.node == unit.node else ((), ())
    past = state.actor or state.past  # a process that never answered has no actor name: keep the one before it
    new = HostState(HostPhase.SPAWNING, state.life + 1, d.now, unit.node, past=past, devices=devices, slots=slots)
    new = evolve(new, unconfirmed=state.replaced)
    d.set_host(host, new)
    d.do(SpawnHost(host, new.life, name, unit.token, limits.SPAWN_S))


def try_start(d: StateTransaction, host: HostId) -> None:
    """Start the ranks that waited for this host: its own, or the whole torch world if it was the last one missing."""
    if d.facts(host.role).world:
        start_world(d, host.role)
    elif dependencies_met(d, host.role):
        _start_host(d, host, "", {})


def start_waiting(d: StateTransaction, role: str) -> None:
    """Start all ranks of a role whose hosts are ready."""
    if d.facts(role).world:
        start_world(d, role)
        return
    for host in d.facts(role).hosts():
        _start_host(d, host, "", {})


def start_world(d: StateTransaction, role: str) -> None:
    """Start a torch world once all its ranks wait, its hosts are ready, its nodes passed and its store serves."""
    facts, state = d.facts(role), d.roles[role]
    # While a backoff holds some of its ranks back, a torch world cannot start as a whole.
    whole = state.waiting == facts.plan.replicas and state.hosts_ready == facts.host_count and state.hold == 0
    whole = whole and not _has_stopping_mates(d, role)
    store = d.hosts[HostId(role, STORE)]
    # The check is asked before the store, so that it runs while the store's process still imports torch.
    if not whole or checks.pending(d, role) or store.phase is not HostPhase.READY or not dependencies_met(d, role):
        return
    d.set_role(role, evolve(state, generation=state.generation + 1))
    there = visible_devices.of_nodes(d, role)
    with d.many():
        for index in range(facts.host_count):
            _start_host(d, HostId(role, index), store.address, there)


def _drains(d: StateTransaction, host: HostId) -> bool:
    """Whether a host is about to be left and its servers were asked to end: their successors start elsewhere."""
    if (not d.departures and d.moving is None) or d.facts(host.role).plan.drain is None:
        return False
    unit = d.facts(host.role).unit_of(host)
    if d.moving is not None and unit in d.moving.units:
        return True
    own = d.departures.get(d.units[unit].node)
    return own is not None and (own.drain_by is not None or own.drained)


def start_again(d: StateTransaction, units: Collection[str]) -> None:
    """Start the servers that wait in units which stay after all."""
    for facts in d.job.roles.values():
        for host in facts.hosts() if facts.plan.drain is not None else ():
            if facts.unit_of(host) in units:
                ensure_host(d, host)
                try_start(d, host)


def _start_host(d: StateTransaction, host: HostId, store: str, there: visible_devices.VisibleDevices) -> None:
    """Start the waiting ranks of one ready host."""
    mine = d.facts(host.role).ranks_of(host.index)
    # A host whose ranks are still being stopped may have to be killed: no rank starts in it before they are gone.
    stopping = any(d.ranks[host.role, rank].phase is RankPhase.STOPPING for rank in mine)
    if d.hosts[host].phase is not HostPhase.READY or stopping or _drains(d, host) or _has_stopping_mates(d, host.role):
        return
    started: list[int] = []
    for rank in mine:
        old = d.ranks[host.role, rank]
        if old.phase is RankPhase.WAITING and not on_hold(d, old):
            new = evolve(
                old,
                phase=RankPhase.STARTING,
                incarnation=old.incarnation + 1,
                pid=0,
                since=d.now,
                ready_at=0.0,
                serving=False,
                cluster="",
                weights=None,
                serves_after_end=False,
            )
            d.set_rank((host.role, rank), new)
            started.append(rank)
    if started:
        d.do(order(d, host, tuple(started), store, there))


def order(
    d: StateTransaction, host: HostId, ranks: tuple[int, ...], store: str, there: visible_devices.VisibleDevices
) -> StartRanks:
    """Return the order that starts ranks in their present incarnations. `there` is from `visible_devices.of_nodes`."""
    facts, state = d.facts(host.role), d.hosts[host]
    size = facts.plan.group_size
    starts: list[RankStart] = []
    for rank in ranks:
        seat, own = d.seats[host.role][facts.places[rank // size]], d.ranks[host.role, rank]
        # Local ranks count over all groups of the role on the node, so that `LOCAL_RANK` is unique there.
        devices, device_index = visible_devices.of_rank(facts, state, rank, there)
        starts.append(
            RankStart(
                rank=rank,
                incarnation=own.incarnation,
                local_rank=seat.local_base + rank % size,
                local_world_size=seat.local_world_size,
                node_rank=seat.node_rank,
                nodes=seat.nodes,
                restart_reason=own.restart_reason,
                devices=devices,
                device_index=device_index,
                ports=tuple((name, int(address.rpartition(":")[2])) for name, address in own.addresses),
                calls_held=own.calls_held,
                hold_reason=staleness.why_out(d, (host.role, rank)) if own.holds_calls else "",
            )
        )
    generation = d.roles[host.role].generation
    return StartRanks(host, state.life, state.actor, tuple(starts), facts.plan.replicas, generation, store)
