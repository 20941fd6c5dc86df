"""Jobs to simulate: small ones, drawn from a seed."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from dljob.testing.world.fault_schedule import chance

CLASS = {"class": "pkg.Class"}
MODULE = {"module": "train"}
SPARED = 0.4
"""The share of jobs with spare nodes."""
COUPLED = 0.5
"""The share of jobs, among those with roles that run at the same time, in which a role restarts with another one."""


def small(rng: Random) -> dict[str, Any]:
    """Return the manifest of a job with one to four roles and at most a dozen ranks."""
    names = ["a", "b", "c", "d"][: rng.randint(1, 4)]
    # A role depends only on roles before it, so there are no cycles.
    roles = [_role(rng, name, names[:i]) for i, name in enumerate(names)]
    # A job needs at least one driver.
    roles[-1]["driver"] = True
    spec: dict[str, Any] = {"roles": roles, "faultTolerance": _policy(rng)}
    spec["nodeGroups"] = [{"name": "n", "replicas": rng.randint(2, 4), "cpu": str(rng.choice((8, 12, 24)))}]
    return {"metadata": {"name": "small"}, "spec": spec}


def _role(rng: Random, name: str, before: list[str]) -> dict[str, Any]:
    size = rng.choice((1, 1, 2, 2))
    role: dict[str, Any] = {
        "name": name,
        "driver": rng.random() < 0.3,
        "replicas": size * rng.randint(1, 2),
        "entrypoint": dict(rng.choice((CLASS, MODULE))),
        "resources": {"cpu": "1"},
    }
    if size > 1:
        role["replicasPerGroup"] = size
    if rng.random() < 0.4:
        role["type"] = "Elastic"
    policy: dict[str, Any] = {"maxRestarts": rng.choice((1, 3, 10))}
    if rng.random() < 0.3:
        policy["level"] = rng.choice(("Process", "RoleGroup", "Role", "Job"))
    # Only where `spec.rules.rejoin` accepts it.
    if policy.get("level", "Process") == "Process" and policy["maxRestarts"] > 1 and _rejoins(role):
        policy["level"] = "InProcess"
    role["restartPolicy"] = policy
    if before and rng.random() < 0.5:
        role["dependsOn"] = [{"role": rng.choice(before), "condition": rng.choice(("Ready", "Ready", "Complete"))}]
    return role


def _rejoins(role: dict[str, Any]) -> bool:
    """Whether the role's ranks can leave their group and keep their processes."""
    return role.get("type") == "Elastic" and role["entrypoint"] == CLASS


def _policy(rng: Random) -> dict[str, Any]:
    policy: dict[str, Any] = {
        "maxRestarts": rng.choice((2, 10)),
        "backoff": {"initialSeconds": rng.choice((0, 1, 5)), "maxSeconds": 60},
        "spares": {"processesPerNode": rng.choice((0, 0, 1, 2))},
    }
    if rng.random() < 0.3:
        rule: dict[str, Any] = {"name": "three", "onExitCodes": [3]}
        rule["action"] = rng.choice(("Ignore", "RestartRole", "RestartJob", "RestartProcess"))
        if rng.random() < 0.5:
            rule["maxAttempts"] = 1
        policy["rules"] = [rule]
    return policy


def with_spares(seed: int, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the manifest, for some seeds with spare nodes.

    The choice has a random source of its own, so that all other choices of a seed stay as they were before this
    feature.
    """
    rng = chance(f"spare nodes {seed}")
    if rng.random() > SPARED:
        return manifest
    spec = manifest["spec"]
    policy = spec["faultTolerance"]
    spares = {**policy["spares"], "nodes": rng.choice((1, 1, 2))}
    return {**manifest, "spec": {**spec, "faultTolerance": {**policy, "spares": spares}}}


def with_coupling(seed: int, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the manifest, for some seeds with roles that restart together; the choice has a random source of its own.

    Jobs in which a role waits for another one to complete are left as they are: `spec.rules.coupled` refuses a pair of
    which one ends before the other begins. So does it a role of level Job.
    """
    rng, roles = chance(f"coupling {seed}"), manifest["spec"]["roles"]
    able = [role for role in roles if role["restartPolicy"].get("level") != "Job"]
    waits = any(dependency["condition"] == "Complete" for role in roles for dependency in role.get("dependsOn", ()))
    if waits or len(roles) < 2 or not able or rng.random() > COUPLED:
        return manifest
    for coupled_role in rng.sample(able, rng.randint(1, len(able))):
        others = [role["name"] for role in roles if role is not coupled_role]
        coupled_role["restartPolicy"] = {**coupled_role["restartPolicy"], "with": [rng.choice(others)]}
    return manifest
