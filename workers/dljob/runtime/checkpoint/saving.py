"""The host's side of checkpoints: the location of each rank's checkpoints, and the start of the saver of this node."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError

from dljob.errors import CheckpointError
from dljob.logs import archive
from dljob.master.state.actions import RankStart
from dljob.plan.role import RolePlan
from dljob.runtime.checkpoint.model import CheckpointLocation
from dljob.runtime.process.messages import HostSpec, JobInfo, StartOrder, saver_name

SAVER_CLASS = "dljob.runtime.checkpoint.saver_agent.SaverAgent"
MADE_S = 60.0
AGAIN_S = 0.1


def place(spec: HostSpec, order: StartOrder, start: RankStart) -> Mapping[str, Any]:
    """Return where a rank saves, once the saver of this node serves.

    Raises:
        CheckpointError: It does not come up.
    """
    return asdict(place_of(spec, order, start, saver_address(spec.job)))


def place_of(spec: HostSpec, order: StartOrder, start: RankStart, address: str) -> CheckpointLocation:
    """Return a rank's location. An Elastic role saves as one world per generation.

    An Actor rank alone, per incarnation.
    """
    job, role = spec.job, spec.role
    is_actor = not role.elastic
    return CheckpointLocation(
        address=address,
        folder=str(folder_of(job, role, start.rank)),
        name=f"{role.name}/{start.rank}",
        rank=0 if is_actor else start.rank,
        world=1 if is_actor else order.world_size,
        attempt=job.attempt,
        number=start.incarnation if is_actor else order.generation,
        incarnation=start.incarnation,
        of=role.name if role.elastic else f"{role.name}/{start.rank}",
        save_on_exit=job.save_on_exit,
        peer_copy=job.peer_copy,
        grace_s=job.save_grace_s,
    )


def folder_of(job: JobInfo, role: RolePlan, rank: int) -> Path:
    """Return the folder of a rank's world: below spec.checkpoint's path, one folder per job.

    Else in the job's own folder.
    """
    root = archive.checkpoints(job.name, job.uid, Path(job.dir))
    return root / role.name if role.elastic else root / role.name / str(rank)


def saver_address(job: JobInfo) -> str:
    """Return the socket of this node's saver, which is started when there is none."""
    return start_saver(job, ray.get_runtime_context().get_node_id())


def start_saver(job: JobInfo, node: str) -> str:
    """Return the socket of a node's saver, which is started when there is none.

    Raises:
        CheckpointError: It does not come up within MADE_S seconds.
    """
    module, _, name = SAVER_CLASS.rpartition(".")
    cls: Any = getattr(import_module(module), name)
    remote: Any = ray.remote
    # Imported by name: the agent's own modules import this one.
    agent_class = remote(num_cpus=0, concurrency_groups=dict(cls.concurrency_groups))(cls)
    options = {
        "name": saver_name(job, node),
        "namespace": job.namespace,
        # Detached and `get_if_exists`: all hosts of a node share one agent, and it outlives the host that made it.
        "lifetime": "detached",
        "get_if_exists": True,
        "max_restarts": 0,
        "label_selector": {"ray.io/node-id": node},
    }
    end = time.monotonic() + MADE_S
    while True:
        try:
            return ray.get(agent_class.options(**options).remote(job).address.remote(), timeout=MADE_S)
        except RayActorError as error:  # the name may still belong to an agent that just died
            if time.monotonic() > end:
                raise CheckpointError(f"the saver of node {node[:8]} does not start: {error}") from error
            time.sleep(AGAIN_S)
