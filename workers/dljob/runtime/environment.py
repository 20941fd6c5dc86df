"""Putting a rank's environment in place: the plan's variables, the devices it may see, the code's folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from dljob.master.actions import RankStart
from dljob.plan.devices import BY_RAY, left_alone, visible_devices
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
    for resource, ids in start.devices:
        env |= shown(resource, ids, {**os.environ, **env})
    return env


def shown(resource: str, ids: tuple[str, ...], env: Mapping[str, str]) -> dict[str, str]:
    """What shows a process of this machine these devices only; empty where the role's `env` keeps Ray from it too."""
    variable = variable_of(resource)
    return {} if left_alone(variable, env) else visible_devices(variable, ids)


@cache
def variable_of(resource: str) -> str:
    """The variable that hides devices here: Ray knows more kinds than the spec, and whose GPUs this machine has.

    Source: ray 2.60, `ray/_private/accelerators/__init__.py`; where that is not there, our own table says it.
    """
    try:
        from ray._private import accelerators
    except ImportError:
        return BY_RAY[resource].visible_env if resource in BY_RAY else ""
    manager = accelerators.get_accelerator_manager_for_resource(resource)
    return (manager and manager.get_visible_accelerator_ids_env_var()) or ""


def kept(kind: str, before: RankStart | None, start: RankStart) -> RankStart:
    """A rank that starts again in its process sees what the process saw first: the device's runtime looked then."""
    seen, now = dict(before.devices if before else ()).get(kind, ()), dict(start.devices).get(kind, ())
    if before is None or not seen or not now or now[start.device_index] not in seen:
        return start
    return replace(start, devices=before.devices, device_index=seen.index(now[start.device_index]))


def device_index(kind: str, start: RankStart, env: Mapping[str, str]) -> int:
    """Which of the devices that its process sees is a rank's own: of all of the machine where nobody hides any."""
    variable, ids = variable_of(kind), dict(start.devices).get(kind, ())
    if not ids or not left_alone(variable, env):
        return start.device_index
    own, seen = ids[start.device_index], os.environ.get(variable, "").split(",")
    return seen.index(own) if own in seen else int(own) if own.isdecimal() else start.device_index


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
