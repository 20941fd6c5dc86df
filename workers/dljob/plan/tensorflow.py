"""A cluster of TensorFlow's parameter servers: its ports, its coupled restarts, and TF_CONFIG."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from zlib import crc32

from dljob.plan.role import RolePlan
from dljob.telemetry.wording import counted

if TYPE_CHECKING:
    # Not at run time: ranks read the number of servers, and pydantic takes longer to import than all else here.
    from dljob.spec.model import DLJobSpec, Role

TF_CONFIG = "TF_CONFIG"
PORT = "tf"
"""Name of the port on which a task's server listens."""
MEMBERS = ("chief", "ps", "worker")
"""The tasks that have a server. An evaluator only reads checkpoints."""

Cluster = Mapping[str, Sequence[str]]
"""Task -> host:port of each of its ranks."""


def ports_of(role: Role) -> tuple[tuple[str, int], ...]:
    """Return (name, number or 0) of a role's ports, with that of its TensorFlow server."""
    declared = tuple((port.name, port.port) for port in role.ports)
    needed = role.tf is not None and role.tf.task in MEMBERS and PORT not in dict(declared)
    return (*declared, (PORT, 0)) if needed else declared


def restarts_with(spec: DLJobSpec, role: Role) -> tuple[str, ...]:
    """Return the roles that restart with a role: the chief with a parameter server, whose variables are gone."""
    if role.tf is None or role.tf.task != "ps":
        return role.restart_policy.with_
    chiefs = (member.name for member in spec.roles if member.tf and member.tf.task == "chief")
    return tuple(dict.fromkeys((*role.restart_policy.with_, *chiefs)))


def tf_config(role: RolePlan, rank: int, cluster: Cluster) -> str:
    """Return the value of TF_CONFIG, as `tf.distribute.cluster_resolver.TFConfigClusterResolver` reads it."""
    tasks = {task: list(cluster[task]) for task in MEMBERS if task in cluster}
    return json.dumps({"cluster": tasks, "task": {"type": role.tf, "index": rank}})


def checksum(cluster: Cluster) -> str:
    """Return a short name of a cluster's addresses."""
    return f"{crc32(json.dumps(cluster, sort_keys=True).encode()):08x}"


def servers_of(config: str) -> int:
    """Return the number of parameter servers in a chief's TF_CONFIG; 0 for any other task, and for no TF_CONFIG."""
    try:
        tf_config = json.loads(config or "{}")
        return len(tf_config["cluster"]["ps"]) if tf_config["task"]["type"] == "chief" else 0
    except (ValueError, TypeError, KeyError):
        return 0  # A rank without tf may have a TF_CONFIG of its own, whose reader judges it.


def resharded(step: int, saved: int, present: int) -> str:
    """Return what becomes of a checkpoint of another number of parameter servers; empty if it is the same number.

    Either number is 0 where it is not known.
    """
    if not saved or not present or saved == present:
        return ""
    return (
        f"the checkpoint of step {step} was written with {counted(saved, 'parameter server')}, and this attempt has "
        f"{present}: tf.train.Checkpoint puts its variables on {present}, by name. It cannot do so for variables that "
        f"the script makes for each parameter server: assert_consumed() refuses the checkpoint then, and "
        f"replicas: {saved} of the role of the ps reads it"
    )
