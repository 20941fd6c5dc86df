"""Putting a rank's environment in place: the plan's variables, the devices it may see, the code's folder."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from string import Template

from dljob.master.state.actions import RankStart
from dljob.plan.devices import BY_RAY, left_alone, visible_devices
from dljob.plan.env import rank_env
from dljob.plan.role import RolePlan
from dljob.runtime import ray_private
from dljob.runtime.process.messages import HostSpec, StartOrder

_MACRO = re.compile(r"\$+\{local_rank\}")


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
        group_world_size=start.nodes,
        world_size=order.world_size,
        generation=order.generation,
        store=order.store,
        restart_reason=start.restart_reason,
        inherited=os.environ,
    )
    keeping = switches(spec.role, {**os.environ, **env})
    for resource, ids in start.devices:
        env |= shown(resource, ids, keeping)
    return env | hidden(spec.role, dict(start.devices), {**os.environ, **env})


def arguments(role: RolePlan, start: RankStart) -> tuple[str, ...]:
    """A script's arguments. `${local_rank}` in those of an Elastic role is the rank's own.

    `$${local_rank}` is that text; no other `$` means anything, for a role may run a shell. With `virtual_local_rank`
    it is not LOCAL_RANK, which is 0: so it is in torch 2.15.
    """
    if not role.elastic:
        return role.args
    own = {"local_rank": start.local_rank}
    return tuple(_MACRO.sub(lambda found: Template(found[0]).safe_substitute(own), arg) for arg in role.args)


def switches(role: RolePlan, env: Mapping[str, str]) -> Mapping[str, str]:
    """An environment as far as it may keep a rank's devices shown; LOCAL_RANK 0 in every rank would then be one device.

    Source: torch 2.15, `LocalElasticAgent._set_local_rank_env`: virtual ranks get a variable of their own, whatever is
    set already.
    """
    return {} if role.virtual_local_rank else env


HIDES = "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"
"""Ray's switch, 0 in a role's `env`: a rank sees devices of kinds that it takes none of."""


def hidden(role: RolePlan, taken: Mapping[str, tuple[str, ...]], env: Mapping[str, str]) -> dict[str, str]:
    """What hides the devices of each kind that a rank takes none of, for they are somebody else's.

    So Ray once did by itself, and does where its switch says so (ray 2.60, `ray/_private/utils.py`). What the
    role's `env` says of a variable holds, and a framework with a quota hands out devices itself.
    """
    said = dict(role.env)
    if role.quota is not None or said.get(HIDES, "1").lower() in ("0", "false"):
        return {}
    variables = {variable_of(kind) for kind in known_kinds() if not taken.get(kind)} - {"", *said}
    alone = {variable for variable in variables if left_alone(variable, env)}
    return {
        name: value for variable in sorted(variables - alone) for name, value in visible_devices(variable, ()).items()
    }


@cache
def known_kinds() -> tuple[str, ...]:
    """Resources whose devices can be hidden here: those that Ray has ids for, else those of our own table."""
    try:
        return ray_private.device_kinds()
    except ImportError:
        return tuple(BY_RAY)


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
        return ray_private.device_variable(resource)
    except ImportError:
        return BY_RAY[resource].visible_env if resource in BY_RAY else ""


def kept(kind: str, before: RankStart | None, start: RankStart) -> RankStart:
    """A rank that starts again in its process sees what the process saw first: the device's runtime looked then."""
    seen, now = dict(before.devices if before else ()).get(kind, ()), dict(start.devices).get(kind, ())
    if before is None or not seen or not now or now[start.device_index] not in seen:
        return start
    return replace(start, devices=before.devices, device_index=seen.index(now[start.device_index]))


def device_index(kind: str, start: RankStart, role: RolePlan) -> int:
    """Which of the devices that its process sees is a rank's own: of all of the machine where nobody hides any.

    Who leaves them alone may be the role, or this machine: an image that sets Ray's switch for all.
    """
    variable, ids = variable_of(kind), dict(start.devices).get(kind, ())
    env = {**os.environ, **dict(role.env)}
    if not ids or not left_alone(variable, switches(role, env)):
        return start.device_index
    own, seen = ids[start.device_index], env.get(variable, "").split(",")
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
