"""A host's side of checkpoints: what a rank is called by its saver, and finding or making the saver of this node."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError

from dljob.errors import CheckpointError
from dljob.master.actions import RankStart
from dljob.plan.role import RolePlan
from dljob.runtime import kept_logs
from dljob.runtime.checkpoint.model import Place
from dljob.runtime.messages import HostSpec, JobInfo, StartOrder, saver_name

MADE_S = 60.0
AGAIN_S = 0.1


def place(spec: HostSpec, order: StartOrder, start: RankStart) -> Mapping[str, Any]:
    """Where a rank saves, once the saver of this node is up. Raises CheckpointError when it does not come."""
    return asdict(place_of(spec, order, start, saver_address(spec.job)))


def place_of(spec: HostSpec, order: StartOrder, start: RankStart, address: str) -> Place:
    """An Elastic role saves as one world, and its generation is the life; an Actor rank by itself, each incarnation."""
    job, role = spec.job, spec.role
    alone = not role.elastic
    return Place(
        address=address,
        folder=str(folder_of(job, role, start.rank)),
        name=f"{role.name}/{start.rank}",
        rank=0 if alone else start.rank,
        world=1 if alone else order.world_size,
        attempt=job.attempt,
        number=start.incarnation if alone else order.generation,
        incarnation=start.incarnation,
        of=role.name if role.elastic else f"{role.name}/{start.rank}",
        save_on_exit=job.save_on_exit,
        peer_copy=job.peer_copy,
        grace_s=job.save_grace_s,
    )


def folder_of(job: JobInfo, role: RolePlan, rank: int) -> Path:
    """Under spec.checkpoint's path, one folder per job; else in the job's own folder."""
    path = os.environ.get(kept_logs.CHECKPOINT)
    root = kept_logs.root(path, job.name, job.uid) if path else Path(job.dir) / "checkpoints"
    return root / role.name if role.elastic else root / role.name / str(rank)


def saver_address(job: JobInfo) -> str:
    """The socket of this node's saver, which is made when there is none."""
    return start_saver(job, ray.get_runtime_context().get_node_id())


def start_saver(job: JobInfo, node: str) -> str:
    """The socket of a node's saver, which is made when there is none. Raises CheckpointError when it does not come."""
    from dljob.runtime.saver_agent import SaverAgent

    remote: Any = ray.remote
    made = remote(num_cpus=0, concurrency_groups=dict(SaverAgent.concurrency_groups))(SaverAgent)
    options = {
        "name": saver_name(job, node),
        "namespace": job.namespace,
        "lifetime": "detached",
        "get_if_exists": True,
        "max_restarts": 0,
        "label_selector": {"ray.io/node-id": node},
    }
    end = time.monotonic() + MADE_S
    while True:
        try:
            return ray.get(made.options(**options).remote(job).address.remote(), timeout=MADE_S)
        except RayActorError as error:  # the name may still be that of one that just died
            if time.monotonic() > end:
                raise CheckpointError(f"the saver of node {node[:8]} does not start: {error}") from error
            time.sleep(AGAIN_S)
