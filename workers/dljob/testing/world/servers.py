"""Server roles of a world: jobs that have some, the words of their probes, and their drains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

from dljob.master.state.events import RankEnded, RankReady, RankServes
from dljob.master.state.evolve import evolve
from dljob.master.state.views import Outcome, Reason
from dljob.testing.world.fault_schedule import Timed, chance
from dljob.testing.world.jobs import CLASS, MODULE
from dljob.testing.world.model import Arrive, Drained, FaultMove, Probed, Process, Running, Silence
from dljob.testing.world.state import WorldState

OFTEN = 0.25
"""The share of jobs with a server role."""
SOON_S = 300.0
ANEW = 0.3
"""The share of jobs, among those with a role `s` of servers, in which it waits for another role to complete."""
ANEW_S = 900.0
"""Seconds within which such a job is told to restart."""
RACKED = 0.3
"""The share of jobs, among those with a role `s`, whose servers fill one rack of two, a group on each machine."""
SICK = Outcome(ok=False, reason=Reason.UNHEALTHY, message="liveness probe failed 3 times, last: status 500")
_FAULTS = ("unready", "unready", "unhealthy", "stubborn", "command")


def with_servers(seed: int, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the manifest, for some seeds with a server role; the choice has a random source of its own.

    A fleet of the job becomes one where there is one, so that servers come and go, too.
    """
    rng = chance(f"servers {seed}")
    if rng.random() > OFTEN:
        return manifest
    spec = manifest["spec"]
    roles, group = list(spec["roles"]), spec["nodeGroups"][0]
    fleet = next((role for role in roles if role["name"] == "e" and role.get("type") == "Actor"), None)
    if fleet is not None and rng.random() < 0.7:
        roles[roles.index(fleet)] = {**fleet, **_serving(rng, fleet["entrypoint"])}
        return {**manifest, "spec": {**spec, "roles": roles}}
    size = rng.choice((1, 1, 2))
    entry = CLASS if rng.random() < 0.3 else MODULE
    policy: dict[str, Any] = {"maxRestarts": rng.choice((3, 10))}
    if rng.random() < 0.4:
        policy["level"] = rng.choice(("RoleGroup", "Role", "Job"))
    server = {
        "name": "s",
        "driver": False,
        "replicas": size * rng.randint(1, 2),
        "replicasPerGroup": size,
        "entrypoint": dict(entry),
        "resources": {"cpu": "1"},
        "restartPolicy": policy,
        **_serving(rng, entry),
    }
    if rng.random() < 0.6:
        # The last role begins once the servers are ready.
        roles[-1] = {**roles[-1], "dependsOn": [*roles[-1].get("dependsOn", ()), {"role": "s"}]}
    if _late(seed, roles):
        server["dependsOn"] = [{"role": roles[0]["name"], "condition": "Complete"}]
    machines = {**group, "replicas": group["replicas"] + 1}
    groups = [machines]
    if chance(f"racks of servers {seed}").random() < RACKED:
        # Most of each machine of a rack, which is a node group: the rack has no other room for a lost machine's.
        server["resources"] = {"cpu": str(max(1, int(group["cpu"]) * 6 // 10 // size))}
        server["replicas"] = size * machines["replicas"]
        server["annotations"] = {"scheduling.dljob.io/topology-key": "rack"}
        groups = [machines, {**machines, "name": "m"}]
    return {**manifest, "spec": {**spec, "roles": [*roles, server], "nodeGroups": groups}}


def _late(seed: int, roles: list[dict[str, Any]]) -> bool:
    """Whether the servers wait for the first role to complete; `spec.rules.coupled` refuses that beside some pairs."""
    coupled = any("with" in role["restartPolicy"] for role in roles)
    return len(roles) > 1 and not coupled and chance(f"late servers {seed}").random() < ANEW


def _serving(rng: Random, entry: Mapping[str, str]) -> dict[str, Any]:
    probe = {"tcpSocket": {"port": "http"}}
    fields: dict[str, Any] = {"ports": [{"name": "http"}], "readinessProbe": probe, "livenessProbe": probe}
    # A class is not drained: its `shutdown()` waits for its requests.
    if entry == MODULE and rng.random() < 0.8:
        fields["drain"] = {"signal": "SIGUSR1", "timeoutSeconds": rng.choice((5, 60, 120))}
    return fields


def troubles(seed: int, manifest: Mapping[str, Any]) -> tuple[Timed, ...]:
    """Return up to eight faults of servers, for jobs that have some."""
    names = [role["name"] for role in manifest["spec"]["roles"] if role.get("ports")]
    if not names:
        return ()
    rng = chance(f"troubles {seed}")
    faults: list[Timed] = []
    for number in range(rng.randint(0, 8)):
        kind, pick = rng.choice(_FAULTS), rng.randrange(1 << 16)
        if kind == "command":
            fault = FaultMove(kind, pick, 2000.0 + number, f"restart {names[0]}")
        else:
            fault = FaultMove(kind, pick, rng.choice((0.5, 5.0, 60.0)) if kind == "unready" else 0.0)
        faults.append(Timed(round(rng.random() * SOON_S, 3), fault))
    return (*faults, *_losses(seed, manifest), *_restarts(seed, manifest))


def _losses(seed: int, manifest: Mapping[str, Any]) -> Iterator[Timed]:
    """Yield lost machines, for servers that fill a rack."""
    rng = chance(f"racked servers' troubles {seed}")
    racked = any(role["name"] == "s" and "annotations" in role for role in manifest["spec"]["roles"])
    for _ in range(rng.randint(1, 2) if racked else 0):
        yield Timed(round(rng.random() * SOON_S, 3), FaultMove("node lost", rng.randrange(1 << 16)))


def _restarts(seed: int, manifest: Mapping[str, Any]) -> Iterator[Timed]:
    """Yield restarts of the job, for servers that wait for another role to complete."""
    rng = chance(f"late servers' troubles {seed}")
    late = any(role["name"] == "s" and "dependsOn" in role for role in manifest["spec"]["roles"])
    for number in range(rng.randint(1, 3) if late else 0):
        fault = FaultMove("command", 0, 2500.0 + number, "restart job")
        yield Timed(round(rng.random() * ANEW_S, 3), fault)


# -- what hosts of servers report


def served(w: WorldState, role: str) -> bool:
    """Whether the ranks of a role have ports."""
    return bool(w.job.roles[role].plan.ports)


def say(w: WorldState, actor: str, running: Running, *, ready: bool) -> None:
    """Let a host report whether one of its ranks gets requests."""
    w.said[running] = ready
    address = f"{w.processes[actor].node}:{8000 + running.rank}"
    ports = tuple((name, address) for name, _ in w.job.roles[running.role].plan.ports)
    word = RankServes(running.role, running.rank, running.incarnation, ports, ready, "status 200" if ready else "503")
    w.report(w.processes[actor], word)


def in_order(w: WorldState, arrival: Arrive) -> Arrive | None:
    """Return the report that arrives: the host of a server numbers its reports, and PrimeMaster takes them in order.

    None: it has been taken already.
    """
    process, event = w.processes.get(arrival.actor), arrival.event
    if process is None or not isinstance(event, RankReady | RankEnded | RankServes) or not served(w, event.role):
        return arrival
    if process.reports:
        return evolve(arrival, event=process.reports[0])
    return None if isinstance(event, RankServes) else arrival


def probed(w: WorldState, i: Probed) -> None:
    """A readiness probe that failed succeeds again."""
    process = w.processes.get(i.actor)
    if process is None or i.running not in process.ranks or i.running in w.draining:
        return
    if w.nodes[process.node].silence is Silence.FROZEN:
        w.later(i, 0.5)
    elif not w.said[i.running]:
        say(w, i.actor, i.running, ready=True)


# -- drains


def drain(w: WorldState, actor: str, running: Running) -> bool:
    """Begin the drain of a rank that is ordered to stop, if it has one; return whether it is being drained."""
    plan = w.job.roles[running.role].plan
    if plan.drain is None:
        return False
    # A repeated order begins nothing anew.
    if running not in w.draining:
        w.draining.add(running)
        # A server that answers to nothing, not even to its host, ends with its host's process.
        if running not in w.stubborn:
            w.later(Drained(actor, running))
    return True


def drained(w: WorldState, i: Drained) -> Process | None:
    """Return the process of a rank whose requests are done; None: it is gone, or cannot go on now."""
    process = w.processes.get(i.actor)
    if process is None or i.running not in process.ranks:
        return None
    if w.nodes[process.node].silence is Silence.FROZEN:
        w.later(i, 0.5)
        return None
    return process


# -- faults


def _live(w: WorldState, *, ready: bool = False) -> list[tuple[str, Running]]:
    """Return the (actor, rank) of servers that run, with `ready` only those that are."""
    live_servers = [
        (process.actor, running)
        for process in w.processes.values()
        for running in process.ranks
        if served(w, running.role) and w.reachable(process.node) and running not in w.draining
    ]
    return sorted(
        (live_server for live_server in live_servers if not ready or w.said.get(live_server[1])),
        key=lambda live_server: (live_server[1].role, live_server[1].rank),
    )


def unready(w: WorldState, f: FaultMove) -> None:
    """The readiness probe of a server fails, for `value` seconds."""
    live = _live(w, ready=True)
    if live:
        actor, running = live[f.pick % len(live)]
        say(w, actor, running, ready=False)
        w.later(Probed(actor, running), f.value)


def sick(w: WorldState, f: FaultMove) -> tuple[Process, Running] | None:
    """Return the server whose liveness probe fails, and which its host ends."""
    live = _live(w)
    if not live:
        return None
    actor, running = live[f.pick % len(live)]
    return w.processes[actor], running


def harden(w: WorldState, f: FaultMove) -> None:
    """A server ignores its drain, and every signal."""
    live = _live(w)
    if live:
        w.stubborn.add(live[f.pick % len(live)][1])


def victims(w: WorldState, kind: str) -> int:
    """Return the number of servers that a fault of this kind can hit."""
    return len(_live(w, ready=kind == "unready"))
