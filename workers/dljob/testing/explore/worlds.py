"""The small worlds to explore, each with its number of faults."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dljob.testing.explore.explore import PROMPT, SWIFT, Small, explore
from dljob.testing.world import faults
from dljob.testing.world.model import Carry, FaultMove, PollNodes, SetUp, Up

CLASS, MODULE = {"class": "pkg.Class"}, {"module": "train"}
MOST = 10_000_000
"""The number of states after which an exploration gives up."""
WINDOW_S = 2_592_000
"""The window of the budgets, a month: longer than any run here."""
KILL, ERROR, DEAF, DOUBLE = FaultMove("kill"), FaultMove("error"), FaultMove("deaf"), FaultMove("double")
HANG, LOST_PEER = FaultMove("hang"), FaultMove("error", 0, faults.LOST_PEER)
STALLS = (FaultMove("stall", 0, 1.0), FaultMove("stall"))
"""A rank stands still and goes on by itself; or until it is found to hang, and restarted."""
CRASHES = tuple(FaultMove("crash", pick, outlived) for pick, outlived in ((0, 0), (1, 0), (2, 0), (3, 0), (3, 1)))
"""PrimeMaster dies at once; before the next event is journaled; after it, before any action; after one action, which is
lost, or takes effect.
"""
FEW = (CRASHES[4],)
SCALES = (FaultMove("scale", 0, 1.0), FaultMove("scale", 0, 2.0))
"""An order for the fewest ranks of a role, and another one for one group more."""
LOADS = (FaultMove("load", 0), FaultMove("load", 2))
"""A load that needs the fewest ranks of a role, and one that needs the most."""
BAD = (FaultMove("bad", 0, 0), FaultMove("bad", 0, 1))
NODES = (FaultMove("freeze", 0, 4.0), FaultMove("cut", 0, 20.0), FaultMove("node lost"))
LOSS, JOIN = (FaultMove("node lost"), FaultMove("kill")), FaultMove("join")
GOING = (FaultMove("evict", 0, 4.0), FaultMove("evict"), FaultMove("drain", 0, 4.0))
"""A node's pod is evicted, or only reported as evicted; a node is drained."""
UNREADY, SICK, STUBBORN = FaultMove("unready", 0, 1.0), FaultMove("unhealthy"), FaultMove("stubborn")
STOP = FaultMove("command", 0, 3, "restart s")
PUBLISH, SPOIL = FaultMove("publish"), FaultMove("bad load")
RESTART, AGAIN = FaultMove("command", 0, 1, "restart role"), FaultMove("command", 0, 2, "restart job")


@dataclass(frozen=True, slots=True)
class Bounded:
    """A world, and the number of faults with which `make test` explores it."""

    small: Small
    faults: int


def role(name: str, replicas: int = 1, **fields: object) -> dict[str, Any]:
    """Return a role whose ranks take one CPU each."""
    return {"name": name, "replicas": replicas, "entrypoint": CLASS, "resources": {"cpu": "1"}, **fields}


def job(*roles: Mapping[str, Any], nodes: int = 1, **policy: object) -> dict[str, Any]:
    """Return a job on `nodes` nodes."""
    group = {"name": "n", "replicas": nodes, "cpu": "8"}
    policy = {"windowSeconds": WINDOW_S, **policy}
    return {"metadata": {"name": "small"}, "spec": {"roles": roles, "nodeGroups": [group], "faultTolerance": policy}}


def _group(name: str, size: int, **fields: object) -> dict[str, Any]:
    return role(name, size, replicasPerGroup=size, entrypoint=MODULE, **fields)


# A budget of one restart: two faults use it up.
_ONE = role("a", restartPolicy={"maxRestarts": 1})
_WAITS = role("b", dependsOn=[{"role": "a"}])
_ENGINE = role("a", 2, driver=False, restartPolicy={"with": ["b"]})
# 5 of the 8 CPUs of a node, so each rank needs a node of its own.
_CHECKED = role("t", 2, type="Elastic", entrypoint=MODULE, resources={"cpu": "5"}, comm={"preCheck": True})
_WORLD = role("t", 2, type="Elastic", entrypoint=MODULE)
_ELASTIC = role("t", 2, type="Elastic", entrypoint=MODULE, resources={"cpu": "5"}, minReplicas=1)
_RESIZES = role("t", 2, type="Elastic", minReplicas=1, restartPolicy={"level": "InProcess", "maxRestarts": 2})
_PROBE = {"tcpSocket": {"port": "http"}}
_SERVER = role(
    "s",
    entrypoint=MODULE,
    driver=False,
    ports=[{"name": "http"}],
    readinessProbe=_PROBE,
    livenessProbe=_PROBE,
    drain={"signal": "SIGUSR1", "timeoutSeconds": 60},
)
_CALLER = role("d", dependsOn=[{"role": "s"}])
_SERVES_LATER = {**_SERVER, "driver": True, "dependsOn": [{"role": "a", "condition": "Complete"}]}
_LOAD = {"by": "calls", "target": 1, "cooldownSeconds": 60}
_FLEET = role("e", 2, minReplicas=1, maxReplicas=3, driver=False, autoscale=_LOAD)
_GIVES = role("e", 2, minReplicas=1, driver=False, resources={"cpu": "5"})
_FLEETS_DRIVER = role("d", dependsOn=[{"role": "e"}])
_NEEDS = role("d", resources={"cpu": "5"}, dependsOn=[{"role": "e"}])
_SERVES = role("s", 2, driver=False, weights={"channels": ["policy"], "load": {"method": "load"}})
_STAYS = role("t", 2, type="Elastic", restartPolicy={"level": "InProcess", "maxRestarts": 2})

WORLDS: tuple[Bounded, ...] = (
    Bounded(Small("one rank", job(_ONE, maxRestarts=1), (KILL, ERROR, *CRASHES)), 2),
    Bounded(Small("two ranks", job(role("a", 2)), (KILL, ERROR, *CRASHES), PROMPT), 2),
    Bounded(Small("two drivers", job(role("a"), role("b")), (KILL, ERROR, *CRASHES), PROMPT), 1),
    Bounded(Small("a role that waits", job(role("a", driver=False), _WAITS), (KILL, *CRASHES)), 1),
    Bounded(Small("a coupled pair", job(_ENGINE, _WAITS), (KILL, ERROR, *CRASHES), PROMPT), 1),
    Bounded(Small("a role group", job(_group("a", 2)), (KILL, ERROR, *CRASHES), PROMPT), 2),
    Bounded(Small("a torch world", job(_WORLD), (KILL, ERROR, *CRASHES), PROMPT), 1),
    Bounded(Small("a lost peer", job({**_WORLD, "replicas": 3}), (LOST_PEER, *FEW), SWIFT), 1),
    Bounded(Small("checks", job(_CHECKED, nodes=3), (*BAD, KILL, NODES[2], *FEW), PROMPT), 1),
    Bounded(Small("in process", job(_STAYS), (KILL, ERROR, DEAF, *CRASHES), PROMPT), 1),
    Bounded(Small("a resize in process", job(_RESIZES), (*SCALES, KILL, DEAF, *FEW), PROMPT), 2),
    Bounded(Small("a rank that hangs", job(_group("a", 2)), (HANG, KILL, *FEW), PROMPT), 1),
    Bounded(Small("a rank that stands still", job(role("a", 2)), (*STALLS, *FEW), PROMPT), 1),
    Bounded(Small("a spare", job(role("a", 2), spares={"processesPerNode": 1}), (KILL, ERROR, *CRASHES), PROMPT), 1),
    Bounded(Small("a spare node", job(role("a"), spares={"nodes": 1}), (KILL, *NODES, *FEW), PROMPT), 1),
    Bounded(Small("two nodes", job(role("a"), nodes=2), (KILL, *NODES, CRASHES[0], *FEW), PROMPT), 1),
    Bounded(Small("a node that is to go", job(role("a"), nodes=2), (*GOING, KILL, *FEW), PROMPT), 2),
    Bounded(Small("an elastic role", job(_ELASTIC, nodes=2), (*LOSS, JOIN, *FEW), PROMPT), 1),
    Bounded(Small("a server", job(_SERVER, _CALLER), (UNREADY, SICK, KILL, *FEW), PROMPT), 2),
    Bounded(Small("a server that drains", job(_SERVER, _CALLER), (STOP, STUBBORN, UNREADY, *FEW), PROMPT), 2),
    Bounded(
        Small(
            "a server that begins anew",
            job(role("a", driver=False), _SERVES_LATER),
            (AGAIN, STUBBORN, KILL, *FEW),
            PROMPT,
        ),
        2,
    ),
    Bounded(
        Small("a fleet", job(_FLEET, role("d", dependsOn=[{"role": "e"}])), (*SCALES, *LOADS, KILL, *FEW), PROMPT), 1
    ),
    Bounded(Small("a fleet that gives room", job(_GIVES, _NEEDS, nodes=3), LOSS[:1], SWIFT), 1),
    Bounded(Small("weights of servers", job(_SERVES, role("d")), (PUBLISH, SPOIL, KILL, *FEW), SWIFT), 2),
    Bounded(Small("commands", job(role("a")), (RESTART, AGAIN, DOUBLE)), 2),
    # Arrivals are not among the items at once: here reports come late, and in any order.
    Bounded(Small("late words", job(_group("a", 2)), (ERROR, DOUBLE), (Carry, PollNodes, Up, SetUp)), 2),
    Bounded(
        Small("two roles of three", job(_group("a", 3, driver=False), _group("b", 3)), (KILL, ERROR, *FEW), SWIFT), 2
    ),
)


def explored(name: str, faults: int | None = None, most: int = MOST) -> dict[str, Any]:
    """Explore the world of a name, with `faults` faults, or as many as `make test` uses.

    Raises:
        KeyError: There is no such world.
    """
    bounded = next((candidate for candidate in WORLDS if candidate.small.name == name), None)
    if bounded is None:
        raise KeyError(name)
    began = time.process_time()
    result = explore(bounded.small, bounded.faults if faults is None else faults, most=most)
    plans = bounded.small.world().job.plan.roles.values()
    return {
        "world": name,
        "roles": len(plans),
        "ranks": sum(candidate.replicas for candidate in plans),
        "atOnce": [kind.__name__ for kind in bounded.small.at_once],
        "faultKinds": sorted({fault.kind for fault in bounded.small.faults}),
        "faults": result.faults,
        "states": result.states,
        "moves": result.moves,
        "ends": result.ends,
        "whole": result.is_whole,
        "problems": list(result.problems),
        "trace": result.trace,
        "seconds": round(time.process_time() - began, 1),
    }
