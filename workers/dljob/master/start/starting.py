"""Starting: hosts when the dependencies of their role allow it, ranks when all that they wait for is ready."""

from __future__ import annotations

from collections.abc import Collection

from dljob.master.start import checks, spares, visible_devices
from dljob.master.state import limits, staleness
from dljob.master.state.actions import RankStart, SpawnHost, StartRanks
from dljob.master.state.evolve import evolve
from dljob.master.state.job import STORE_HOST_INDEX
from dljob.master.state.state import HostPhase, HostState, RankPhase, RankState, UnitPhase
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import HostId


def is_role_completed(tx: StateTransaction, role: str) -> bool:
    """Whether all ranks of a role have ended for good, well or by a rule that ignores their failure."""
    role_state = tx.roles[role]
    return role_state.succeeded_count + role_state.failed_count == tx.facts(role).plan.replicas


def are_dependencies_met(tx: StateTransaction, role: str) -> bool:
    """Whether the roles that a role depends on allow its ranks to start."""
    return not _unmet_dependencies(tx, role)


def _unmet_dependencies(tx: StateTransaction, role: str) -> tuple[str, ...]:
    """Return the dependencies of a role that are not met. A completed role meets Ready, too."""
    return tuple(
        dependency
        for dependency, kind in tx.facts(role).plan.depends_on
        if not (is_role_completed(tx, dependency) or (kind == "Ready" and tx.roles[dependency].was_ready))
    )


def unmet_prerequisites(tx: StateTransaction, role: str) -> tuple[str, ...]:
    """Return what must come before a role that has not begun; empty if it has begun, or is of the first wave.

    A role that has not begun has nothing to restart: its lost units are replaced, or not, by the time of its turn.
    """
    if tx.facts(role).starts_with_job or tx.roles[role].hosts_ordered:
        return ()
    has_ending_ranks = tx.roles[role].stop_by is not None
    return (*_unmet_dependencies(tx, role), *(("the end of its earlier ranks",) if has_ending_ranks else ()))


def _may_start_hosts(tx: StateTransaction, role: str) -> bool:
    """Whether the hosts of a role may start: already while it waits for another role to be ready, not to complete."""
    return all(
        is_role_completed(tx, dependency)
        or (kind == "Ready" and (tx.roles[dependency].hosts_ordered or tx.roles[dependency].was_ready))
        for dependency, kind in tx.facts(role).plan.depends_on
    )


def start_roles(tx: StateTransaction) -> None:
    """Order the hosts of every role that may have them and has none."""
    # Repeated, because a spawned role may allow the hosts of another one.
    again = True
    while again:
        again = False
        for name in tx.job.roles:
            # A role whose earlier ranks still end begins after them.
            if not tx.roles[name].hosts_ordered and tx.roles[name].stop_by is None and _may_start_hosts(tx, name):
                tx.set_role(name, evolve(tx.roles[name], hosts_ordered=True))
                begin_generation(tx, name)
                again = True
                for host in tx.facts(name).hosts():
                    give_host_process_if_needed(tx, host)


def begin_generation(tx: StateTransaction, role: str) -> None:
    """Begin a new generation of an Elastic role without a torch world; its checkpoints belong to that incarnation.

    A torch world gets its generation when it starts as a whole (`start_world`). Without a store each rank starts when
    it can, so the generation begins with the order.
    """
    facts = tx.facts(role)
    if facts.plan.elastic and not facts.is_torch_world:
        tx.set_role(role, evolve(tx.roles[role], generation=tx.roles[role].generation + 1))


def waits_out_backoff(tx: StateTransaction, rank: RankState) -> bool:
    """Whether a rank waits out the backoff of its restart."""
    # An incident is launched when its backoff ends.
    incident = tx.incidents.get(rank.incident)
    return incident is not None and not incident.is_backoff_over


def _waits_for_coupled_stops(tx: StateTransaction, role: str) -> bool:
    """Whether ranks of a coupled restart that this role is in are still being stopped.

    All end before one starts, also a rank that has joined a later restart: otherwise it would run beside an old rank of
    the other role, which then starts again without it.
    """
    if not tx.facts(role).restart_partners:
        return False
    first_roles = {incident.role for incident in tx.incidents.values()}
    # A restart of the job, which has no role, begins at each of them.
    first_roles = set(tx.job.roles) if "" in first_roles else first_roles
    coupled_restarts = [{name, *coupled} for name in first_roles if (coupled := tx.facts(name).roles_taken_along)]
    roles_of_its_restarts = set[str]().union(*(roles for roles in coupled_restarts if role in roles))
    return any(tx.roles[name].stopping_count for name in roles_of_its_restarts)


def start_after_coupled_stops(tx: StateTransaction) -> None:
    """Start the ranks that waited until the last rank of a coupled role was stopped."""
    if tx.roles is tx.base.roles or not tx.phase.active:
        return
    for name, facts in tx.job.roles.items():
        if facts.restart_partners and tx.base.roles[name].stopping_count and not tx.roles[name].stopping_count:
            for mate in facts.restart_partners:
                if are_dependencies_met(tx, mate):
                    start_waiting_ranks(tx, mate)


def _needs_process(tx: StateTransaction, host: HostId) -> bool:
    """Whether a host has ranks to start; for a store host, whether its role has unfinished ranks."""
    role_state = tx.roles[host.role]
    # Its hosts are ordered once its dependencies allow them.
    if not role_state.hosts_ordered:
        return False
    if host.index == STORE_HOST_INDEX:
        return not is_role_completed(tx, host.role)
    ranks = (tx.ranks[host.role, rank] for rank in tx.facts(host.role).ranks_of(host.index))
    return any(rank.phase is RankPhase.WAITING and not waits_out_backoff(tx, rank) for rank in ranks)


def give_host_process_if_needed(tx: StateTransaction, host: HostId) -> None:
    """Give a host a process if it needs one and its unit is held: a spare of its node, else a new actor."""
    host_state = tx.hosts[host]
    if host_state.phase is not HostPhase.DOWN or not _needs_process(tx, host):
        return
    unit_name = tx.facts(host.role).unit_of(host)
    unit = tx.units[unit_name]
    if unit.phase is not UnitPhase.HELD or _is_host_draining(tx, host):
        return
    # A spare is preferred, because it has imported the role's modules already.
    if spares.take_spare(tx, host, unit.node):
        start_ranks_if_possible(tx, host)
        return
    # On the same node the known devices are kept, so that a spare can take the host over later.
    devices, slots = (host_state.devices, host_state.slots) if host_state.node == unit.node else ((), ())
    # A process that never answered has no actor name: the one before it is kept.
    previous_actor, incarnation = host_state.actor or host_state.previous_actor, host_state.incarnation + 1
    new_state = HostState(HostPhase.SPAWNING, incarnation, tx.now, unit.node, previous_actor=previous_actor)
    new_state = evolve(new_state, devices=devices, slots=slots, unconfirmed=host_state.replaced)
    tx.set_host(host, new_state)
    tx.do(SpawnHost(host, new_state.incarnation, unit_name, unit.token, limits.SPAWN_S))


def start_ranks_if_possible(tx: StateTransaction, host: HostId) -> None:
    """Start the ranks that waited for this host: its own, or the whole torch world if it was the last one missing."""
    if tx.facts(host.role).is_torch_world:
        start_world(tx, host.role)
    elif are_dependencies_met(tx, host.role):
        _start_host(tx, host, "", {})


def start_waiting_ranks(tx: StateTransaction, role: str) -> None:
    """Start all ranks of a role whose hosts are ready."""
    if tx.facts(role).is_torch_world:
        start_world(tx, role)
        return
    for host in tx.facts(role).hosts():
        _start_host(tx, host, "", {})


def start_world(tx: StateTransaction, role: str) -> None:
    """Start a torch world once all its ranks wait, its hosts are ready, its nodes passed and its store serves."""
    facts, role_state = tx.facts(role), tx.roles[role]
    # While a backoff holds some of its ranks back, a torch world cannot start as a whole.
    has_all = role_state.waiting_count == facts.plan.replicas and role_state.ready_host_count == facts.host_count
    can_start = has_all and role_state.incidents_in_backoff == 0 and not _waits_for_coupled_stops(tx, role)
    store = tx.hosts[HostId(role, STORE_HOST_INDEX)]
    # The check is asked before the store, so that it runs while the store's process still imports torch.
    can_join = store.phase is HostPhase.READY and are_dependencies_met(tx, role)
    if not can_start or checks.must_wait_for_check(tx, role) or not can_join:
        return
    tx.set_role(role, evolve(role_state, generation=role_state.generation + 1))
    visible = visible_devices.visible_on_nodes(tx, role)
    with tx.batch_changes():
        for index in range(facts.host_count):
            _start_host(tx, HostId(role, index), store.address, visible)


def _is_host_draining(tx: StateTransaction, host: HostId) -> bool:
    """Whether a host is about to be left and its servers were asked to end: their successors start elsewhere."""
    if (not tx.departures and tx.domain_move is None) or tx.facts(host.role).plan.drain is None:
        return False
    unit = tx.facts(host.role).unit_of(host)
    if tx.domain_move is not None and unit in tx.domain_move.units:
        return True
    departure = tx.departures.get(tx.units[unit].node)
    return departure is not None and (departure.drain_by is not None or departure.drained)


def start_staying_servers(tx: StateTransaction, units: Collection[str]) -> None:
    """Start the servers that wait in units which stay after all."""
    for facts in tx.job.roles.values():
        for host in facts.hosts() if facts.plan.drain is not None else ():
            if facts.unit_of(host) in units:
                give_host_process_if_needed(tx, host)
                start_ranks_if_possible(tx, host)


def _start_host(tx: StateTransaction, host: HostId, store: str, visible: visible_devices.VisibleDevices) -> None:
    """Start the waiting ranks of one ready host."""
    ranks = tx.facts(host.role).ranks_of(host.index)
    # A host whose ranks are still being stopped may have to be killed: no rank starts in it before they are gone.
    has_stopping_ranks = any(tx.ranks[host.role, rank].phase is RankPhase.STOPPING for rank in ranks)
    is_ready = tx.hosts[host].phase is HostPhase.READY and not has_stopping_ranks
    if not is_ready or _is_host_draining(tx, host) or _waits_for_coupled_stops(tx, host.role):
        return
    started: list[int] = []
    for rank in ranks:
        old_state = tx.ranks[host.role, rank]
        if old_state.phase is RankPhase.WAITING and not waits_out_backoff(tx, old_state):
            new_state = evolve(
                old_state,
                phase=RankPhase.STARTING,
                incarnation=old_state.incarnation + 1,
                pid=0,
                process_ordered_at=tx.now,
                ready_at=0.0,
                serving=False,
                cluster="",
                weights=None,
                serves_after_end=False,
            )
            tx.set_rank((host.role, rank), new_state)
            started.append(rank)
    if started:
        tx.do(start_order(tx, host, tuple(started), store, visible))


def start_order(
    tx: StateTransaction, host: HostId, ranks: tuple[int, ...], store: str, visible: visible_devices.VisibleDevices
) -> StartRanks:
    """Return the order that starts ranks in their present incarnations. `visible` is from `visible_on_nodes`."""
    facts, host_state = tx.facts(host.role), tx.hosts[host]
    group_size = facts.plan.group_size
    starts: list[RankStart] = []
    for rank in ranks:
        seat, rank_state = tx.seats[host.role][facts.places[rank // group_size]], tx.ranks[host.role, rank]
        # Local ranks count over all groups of the role on the node, so that `LOCAL_RANK` is unique there.
        devices, device_index = visible_devices.visible_to_rank(facts, host_state, rank, visible)
        starts.append(
            RankStart(
                rank=rank,
                incarnation=rank_state.incarnation,
                local_rank=seat.local_base + rank % group_size,
                local_world_size=seat.local_world_size,
                node_rank=seat.node_rank,
                nodes=seat.nodes,
                restart_reason=rank_state.restart_reason,
                devices=devices,
                device_index=device_index,
                ports=tuple((name, int(address.rpartition(":")[2])) for name, address in rank_state.addresses),
                calls_held=rank_state.calls_held,
                hold_reason=staleness.no_requests_reason(tx, (host.role, rank)) if rank_state.holds_calls else "",
            )
        )
    generation = tx.roles[host.role].generation
    return StartRanks(
        host, host_state.incarnation, host_state.actor, tuple(starts), facts.plan.replicas, generation, store
    )
