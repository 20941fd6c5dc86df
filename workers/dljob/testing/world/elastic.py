"""Elastic roles of a world: jobs that have some, orders of other sizes, and the invariants of sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any

from dljob.master.failure.ending import is_unfinished
from dljob.master.placement import resizing
from dljob.master.start.starting import is_role_completed
from dljob.master.state.events import Commanded
from dljob.master.state.sizing import Sizing
from dljob.master.state.state import HostPhase, JobState, Phase, RankKey, RankPhase
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import Level, NodeView
from dljob.testing.world import fleets
from dljob.testing.world.fault_schedule import Timed, chance
from dljob.testing.world.jobs import CLASS, MODULE
from dljob.testing.world.model import Arrive, FaultMove
from dljob.testing.world.state import WorldState

OFTEN = 0.3
"""The share of jobs with an elastic role."""
STAYS = 0.7
"""Of these, the share whose remaining ranks keep their processes (restarts in process)."""
FLEETS = 0.5
"""Of these, the share whose ranks come and go while the others run on (Actor)."""
SOON_S = 300.0


def with_bounds(seed: int, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the manifest, for some seeds with one more role of variable size.

    The choice has a random source of its own, so that all other choices of a seed stay as they were.
    """
    rng = chance(f"elastic {seed}")
    if rng.random() > OFTEN:
        return manifest
    spec = manifest["spec"]
    group, size, groups = spec["nodeGroups"][0], rng.choice((1, 1, 2)), rng.randint(2, 3)
    # One of its groups fills most of a machine, so that each loss of a node counts.
    cpu = (int(group["cpu"]) // 2 + 1) // size
    more = rng.choice((0, 0, 1))
    role: dict[str, Any] = {
        "name": "e",
        "type": "Elastic",
        "driver": rng.random() < 0.7,
        "entrypoint": CLASS if rng.random() < 0.4 else MODULE,
        "replicas": size * groups,
        "replicasPerGroup": size,
        # One group less than all unless the role may grow: else the bounds would leave it no choice of size.
        "minReplicas": size * rng.randint(1, groups - (not more)),
        "maxReplicas": size * (groups + more),
        "resources": {"cpu": str(max(cpu, 1))},
        "restartPolicy": {"maxRestarts": rng.choice((3, 10))},
    }
    if role["entrypoint"] == CLASS and chance(f"stays {seed}").random() < STAYS:
        role = {**role, "restartPolicy": {**role["restartPolicy"], "level": "InProcess"}}
    if chance(f"fleet {seed}").random() < FLEETS:
        role = {**role, "type": "Actor", "driver": False, "restartPolicy": {"maxRestarts": 10}}
        role = fleets.with_policy(seed, role)
    machines = {**group, "replicas": group["replicas"] + groups}
    # Room for the additional group.
    if more:
        machines["maxReplicas"] = machines["replicas"] + 1
    return {**manifest, "spec": {**spec, "roles": [*spec["roles"], role], "nodeGroups": [machines]}}


def orders(seed: int) -> tuple[Timed, ...]:
    """Return up to three orders of other sizes, for some seeds."""
    rng = chance(f"scale {seed}")
    if rng.random() > OFTEN:
        return ()
    moves = (FaultMove("scale", rng.randrange(1 << 16), float(1000 + n)) for n in range(rng.randint(1, 3)))
    return tuple(Timed(round(rng.random() * SOON_S, 3), fault) for fault in moves)


def scale(w: WorldState, f: FaultMove) -> None:
    """Order another number of ranks, now and then one that is out of bounds."""
    names = sorted(w.known.sizes)
    # While no PrimeMaster runs, nobody takes a command.
    if names and w.state is not None:
        role = names[f.pick % len(names)]
        role_plan = w.job.roles[role].plan
        # The last number is one too many: PrimeMaster must refuse it.
        numbers = [
            *range(role_plan.min_replicas, role_plan.max_replicas + 1, role_plan.group_size),
            role_plan.max_replicas + 1,
        ]
        count = numbers[f.pick // len(names) % len(numbers)]
        w.later(Arrive(Commanded(f"c{int(f.value)}", "scale", role, "somebody", count)))


def moved(before: JobState, after: JobState) -> Iterator[str]:
    """A role does not grow again before its waiting time since the last change is over, unless it is ordered to."""
    for role, sizing in after.sizes.items():
        old = before.sizes[role]
        since = None if old.resized is None or sizing.resized is None else sizing.resized - old.resized
        # The wait doubles with each growth that was lost again.
        least = before.job.spec.fault_tolerance.elastic.grow_after_seconds * 2**old.vain
        # A fleet, of which nobody else restarts, waits only after a growth that nodes refused.
        if before.job.roles[role].fleet:
            early = (old.grow_at or 0.0) - (sizing.resized or 0.0)
            if sizing.size > old.size and early > 0:
                yield f"elastic: {role} grows to {sizing.size} {early:.1f} s too soon"
        elif sizing.size > old.size and since is not None and since < least and not _ordered(old):
            yield f"elastic: {role} grows to {sizing.size} {since:.1f} s after it had become {old.size}"


def _ordered(sizing: Sizing) -> bool:
    """Whether a role was ordered to have another size since it got its present one: an order waits for no interval."""
    return sizing.scaled is not None and sizing.resized is not None and sizing.scaled >= sizing.resized


def check_elastic(before: JobState, after: JobState) -> Iterator[str]:
    """Where a role restarts in process, ranks that stay keep their processes, and ranks that go have left before.

    A rank that did not leave in time may lose its process. In a fleet ranks that stay are not restarted at all. A
    restart for another cause may come in the same step: where it takes ranks along that leave, nobody is waited for.
    """
    restarted = _restarted_for_another_cause(before, after)
    for role, sizing in after.sizes.items():
        stays = before.job.roles[role].fleet or resizing.level_of(after.job, role) is Level.IN_PROCESS
        if sizing.size == before.sizes[role].size or not stays:
            continue
        facts, later = before.job.roles[role], frozenset(after.job.roles[role].ranks)
        for rank in [rank for rank in facts.ranks if rank in later]:
            host = facts.host_of(rank)
            unit, old, new = facts.unit_of(host), before.hosts[host], after.hosts[host]
            # The process of a host that was ready works on, unless its unit moves.
            keeps_process = old.phase is HostPhase.READY and before.units[unit] == after.units[unit]
            # A rank that does not stop in time loses its process with this step, and so do the others of its host.
            phases = {before.ranks[role, neighbor].phase for neighbor in facts.ranks_of(host.index)}
            if (
                keeps_process
                and (role, rank) not in restarted
                and is_unfinished(before.ranks[role, rank])
                and RankPhase.STOPPING not in phases
                and (new.phase, new.incarnation) != (old.phase, old.incarnation)
            ):
                yield f"elastic: {role}/{rank} of {facts.plan.replicas} loses its process, with {sizing.size} ranks"
        for rank in [rank for rank in facts.ranks if rank not in later]:
            if before.ranks[role, rank].phase is RankPhase.READY:
                yield f"elastic: {role}/{rank} works when its role gets {sizing.size} ranks, and is to leave first"


def _restarted_for_another_cause(before: JobState, after: JobState) -> frozenset[RankKey]:
    """Return the ranks that a restart for another cause than their role's size began to restart in this step."""
    begun = [
        incident
        for number, incident in after.incidents.items()
        if number not in before.incidents and incident.reason != resizing.RESIZED
    ]
    # Roles that wait for another one to complete end with the job, and are no members of its restart.
    if any(incident.level is Level.JOB for incident in begun):
        return frozenset(after.ranks)
    return frozenset(key for incident in begun for key in incident.members)


def bounded(state: JobState) -> Iterator[str]:
    """A role's size is within its bounds, and plan, units and ranks agree on it."""
    for role, sizing in state.sizes.items():
        facts = state.job.roles[role]
        plan = facts.plan
        if sizing.size != plan.replicas or sizing.size % plan.group_size:
            yield f"elastic: {role} has {sizing.size} ranks, its plan {plan.replicas}"
        if not plan.min_replicas <= sizing.size <= plan.max_replicas:
            yield f"elastic: {role} has {sizing.size} ranks, and may have {plan.min_replicas} to {plan.max_replicas}"
        seats = state.seats.get(role)
        if seats is not None and len(seats) != facts.plan.groups:
            yield f"elastic: {role} has {facts.plan.groups} groups and {len(seats)} seats"
    # One pass without code of Python's: a large job is swept hundreds of times.
    known = Counter(map(itemgetter(0), state.ranks))
    for name, row in state.roles.items():
        rank_count = known[name] - row.absent_count
        # Ranks that left already count until the last of their groups has.
        leaving_ranks = state.sizes[name].leaving if name in state.sizes else ()
        rank_count += sum(state.ranks[name, rank].phase is RankPhase.ABSENT for rank in leaving_ranks)
        if rank_count != state.job.roles[name].plan.replicas:
            yield f"elastic: {name} has {rank_count} ranks, not {state.job.roles[name].plan.replicas}"


def at_rest(state: JobState, nodes: tuple[NodeView, ...], now: float) -> Iterator[str]:
    """While a job runs, each role has the size it should have, is about to get it, or has no room for it."""
    d = StateTransaction(state, now)
    d.nodes = nodes
    for role, sizing in state.sizes.items() if state.phase is Phase.RUNNING else ():
        # Otherwise the resize is decided, or waits for copies to be saved.
        if (
            sizing.want != sizing.size
            and sizing.move_at is None
            and sizing.save_by is None
            and not is_role_completed(d, role)
        ):
            able = sizing.want if sizing.want < sizing.size else resizing.largest_size(d, role, sizing.want).sizes[role]
            if able != sizing.size:
                yield f"elastic: {role} stays at {sizing.size} ranks, it could have {able} of {sizing.want}"
