"""Putting a rank's environment in place: the plan's variables, the devices it may see, the code's folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from dljob.master.actions import RankStart
from dljob.plan.devices import visible_devices
from dljob.plan.env import rank_env
from dljob.runtime.messages import HostSpec, StartOrder


def rank_environment(spec: HostSpec, order: StartOrder, start: RankStart) -> dict[str, str]:
    """What to set before a rank's user code runs."""
    job = spec.job
    env = rank_env(
        spec.role,
        start.rank,
        job=job.name,
        uid=job.uid,
        job_dir=job.dir,
        incarnation=start.incarnation,
        local_rank=start.local_rank,
        local_world_size=start.local_world_size,
        group_rank=start.node_rank,
        world_size=order.world_size,
        generation=order.generation,
        store=order.store,
        restart_reason=start.restart_reason,
        inherited=os.environ,
    )
    for resource, ids in order.devices:
        env |= visible_devices(resource, ids)
    return env


def located(spec: HostSpec) -> HostSpec:
    """With the folder of user code: where there is none in particular, the one that Ray started this process in."""
    here = str(Path.cwd())
    if spec.job.code_dir or here == "/":
        return spec
    return replace(spec, job=replace(spec.job, code_dir=here))


def enter_code_dir(code_dir: str) -> None:
    """Make the code's folder the working directory and the first place to import from."""
    if not code_dir:
        return
    os.chdir(code_dir)
    if code_dir not in sys.path:
        sys.path.insert(0, code_dir)


def apply(env: Mapping[str, str]) -> None:
    """Set variables of this process."""
    os.environ.update(env)
