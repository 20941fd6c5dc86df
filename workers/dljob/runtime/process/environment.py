"""The environment of a rank: the plan's variables, its visible devices, the code's folder."""

from __future__ import annotations

import os
import pwd
import re
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from string import Template

from dljob import ray_private
from dljob.master.state.actions import RankStart
from dljob.plan.devices import BY_RAY, DEVICES, leaves_variable, visible_devices
from dljob.plan.env import rank_env
from dljob.plan.model import GRAIN
from dljob.plan.role import RolePlan
from dljob.raycluster import pods
from dljob.runtime.process.messages import HostSpec, StartOrder

_MACRO = re.compile(r"\$+\{local_rank\}")


def rank_environment(spec: HostSpec, order: StartOrder, start: RankStart, *, error_file: str = "") -> dict[str, str]:
    """Return the variables to set before a rank's user code runs."""
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
        error_file=error_file,
        inherited=os.environ,
    )
    env = {**of_user({**os.environ, **env}), **env}
    # The role's variables count as well as the machine's: both may tell Ray to leave devices alone.
    keeping = switches(spec.role, {**os.environ, **env})
    for resource, ids in start.devices:
        env |= shown(resource, ids, keeping)
    return env | hidden(spec.role, dict(start.devices), {**os.environ, **env})


def of_user(environ: Mapping[str, str]) -> dict[str, str]:
    """Return HOME, USER and LOGNAME for a rank in a pod whose user lacks them; empty where they work.

    Clusters run images under uids that no image knows, and with a read-only root file system.
    """
    if not os.access(pods.ROOT, os.W_OK):
        return {}
    variables: dict[str, str] = {}
    home = environ.get("HOME", "")
    if not os.access(home, os.W_OK):
        Path(pods.USER_HOME).mkdir(exist_ok=True)
        variables["HOME"] = pods.USER_HOME
        # What an image has in its user's own site-packages stays importable.
        if home and "PYTHONUSERBASE" not in environ:
            variables["PYTHONUSERBASE"] = f"{home}/.local"
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        # What getpass, and libraries that name their caches after the user, ask first.
        name = environ.get("USER") or environ.get("LOGNAME") or f"uid-{os.getuid()}"
        variables |= {"USER": name, "LOGNAME": name}
    return variables


_OF_HOSTS = (
    *("PYTHON", "LD_", "MALLOC_", "RAY_", "DLJOB_", "GRPC_", "PATH", "HOME", "TMPDIR", "LANG", "LC_", "TZ"),
    *(device.visible_env for device in DEVICES.values() if device.visible_env),
)
"""How the names of variables begin that Python, the loader, Ray and dljob read in a host's process."""


def of_host_without_user_code(role: RolePlan) -> tuple[tuple[str, str], ...]:
    """Return the variables of a role that the worker of its fork hosts and of its torch store has.

    No code of the user's runs there, and each set of variables needs a server that forks workers: a second to start,
    and 0.1 GiB. Fork servers and ranks get all of them (`of_fork_server`, `rank_environment`).
    """
    return tuple((name, value) for name, value in role.env if name.startswith(_OF_HOSTS))


def of_fork_server(role: RolePlan) -> dict[str, str]:
    """Return the variables that the fork server of a role has beside its host's.

    Libraries get as many threads as a rank has CPUs: Ray's default counts those of the whole host.
    """
    return {"OMP_NUM_THREADS": str(max(1, dict(role.per_rank).get("CPU", 0) // GRAIN)), **dict(role.env)}


def arguments(role: RolePlan, start: RankStart) -> tuple[str, ...]:
    """Return a script's arguments, in which `${local_rank}` of an Elastic role is replaced by the rank's own.

    `$${local_rank}` escapes it. No other `$` has a meaning, since a role may run a shell. With `virtual_local_rank` the
    value is not LOCAL_RANK, which is 0 then; torch 2.15 does the same.
    """
    if not role.elastic:
        return role.args
    macros = {"local_rank": start.local_rank}
    return tuple(_MACRO.sub(lambda match: Template(match[0]).safe_substitute(macros), arg) for arg in role.args)


def switches(role: RolePlan, env: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables that may keep a rank's devices from being restricted; none for virtual local ranks.

    There LOCAL_RANK is 0 in every rank: unrestricted, all would use one device. Source: torch 2.15,
    `LocalElasticAgent._set_local_rank_env`, which sets the variable of virtual ranks whatever is set already.
    """
    return {} if role.virtual_local_rank else env


HIDES = "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"
"""Ray's switch; 0 in a role's `env` lets a rank see devices of kinds of which it takes none."""


def hidden(role: RolePlan, taken_devices: Mapping[str, tuple[str, ...]], env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that hide devices of each kind of which a rank takes none: they belong to others.

    Ray used to do so by itself, and still does where its switch says so (ray 2.60, `ray/_private/utils.py`). A variable
    in the role's `env` wins, and nothing is hidden from a framework with a quota, which assigns devices itself.
    """
    role_env = dict(role.env)
    if role.quota is not None or role_env.get(HIDES, "1").lower() in ("0", "false"):
        return {}
    # Variables in the role's `env` stay as the user wrote them.
    variables = {variable_of(kind) for kind in known_kinds() if not taken_devices.get(kind)} - {"", *role_env}
    left_variables = {variable for variable in variables if leaves_variable(variable, env)}
    return {
        name: value
        for variable in sorted(variables - left_variables)
        for name, value in visible_devices(variable, ()).items()
    }


@cache
def known_kinds() -> tuple[str, ...]:
    """Return the resources whose devices can be hidden here: those with ids in Ray, else those of our own table."""
    try:
        return ray_private.device_kinds()
    except ImportError:
        return tuple(BY_RAY)


def shown(resource: str, ids: tuple[str, ...], env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that restrict a process to these devices; empty where the role's `env` forbids it to Ray."""
    variable = variable_of(resource)
    return {} if leaves_variable(variable, env) else visible_devices(variable, ids)


@cache
def variable_of(resource: str) -> str:
    """Return the variable that restricts devices of a kind on this machine.

    Ray is asked because it knows more kinds than the spec, and the vendor of this machine's GPUs.
    Source: ray 2.60, `ray/_private/accelerators/__init__.py`; without Ray, our own table.
    """
    try:
        return ray_private.device_variable(resource)
    except ImportError:
        return BY_RAY[resource].visible_env if resource in BY_RAY else ""


def keep_devices(kind: str, before: RankStart | None, start: RankStart) -> RankStart:
    """Give a restarted rank the devices that its process saw first: the device's runtime has read them by then."""
    seen_devices, now = dict(before.devices if before else ()).get(kind, ()), dict(start.devices).get(kind, ())
    # Devices that the process has not seen cannot be shown to it any more: then the plan's choice stands.
    if before is None or not seen_devices or not now or now[start.device_index] not in seen_devices:
        return start
    return replace(start, devices=before.devices, device_index=seen_devices.index(now[start.device_index]))


def device_index(kind: str, start: RankStart, role: RolePlan) -> int:
    """Return the index of a rank's own device among the visible ones, which are all of the machine if none is hidden.

    The role's `env` or the machine itself (an image that sets Ray's switch for all) may forbid to hide devices.
    """
    variable, ids = variable_of(kind), dict(start.devices).get(kind, ())
    env = {**os.environ, **dict(role.env)}
    if not ids or not leaves_variable(variable, switches(role, env)):
        return start.device_index
    # Nothing is restricted: the index is that in the machine's own list of visible devices, or the device's id itself.
    device_id, visible_ids = ids[start.device_index], env.get(variable, "").split(",")
    return (
        visible_ids.index(device_id)
        if device_id in visible_ids
        else int(device_id)
        if device_id.isdecimal()
        else start.device_index
    )


SITE = os.fspath(Path(__file__).with_name("site"))
"""Holds the hook by which a Python moves the folder after it in PYTHONPATH to the end of its import path."""


def script_import_path(code_dir: str) -> list[str]:
    """Return the import path of a role's scripts, to which each adds its own folder in front.

    It is that of a new interpreter, without the folders that Ray adds to its workers (they have its own psutil). The
    code's folder, and those of the job's driver, are last unless PYTHONPATH names them: as with
    `python scripts/train.py`, no `queue.py` at the root of a repository takes the place of the standard library's.
    """
    ray = find_spec("ray")
    rays_folder = Path(ray.origin).parent if ray is not None and ray.origin else None
    path = [folder for folder in sys.path if folder and not (rays_folder and Path(folder).is_relative_to(rays_folder))]
    if not code_dir:
        return path
    named_folders = _folders_of(os.environ.get("PYTHONPATH", ""), code_dir)
    library = sysconfig.get_path("stdlib")
    before_library = path[: path.index(library)] if library in path else []
    added_folders = [folder for folder in (code_dir, *before_library) if not folder.endswith(".zip")]
    rest = [folder for folder in path if folder not in added_folders]
    return list(dict.fromkeys([*named_folders, *rest, *added_folders]))


def python_path(variable: str, code_dir: str) -> str:
    """Return PYTHONPATH for what a rank starts: the user's own, and the code's folder behind the installed modules."""
    if not code_dir or code_dir in _folders_of(variable, code_dir):
        return variable
    return os.pathsep.join([SITE, code_dir, *filter(None, [variable])])


def _folders_of(variable: str, code_dir: str) -> list[str]:
    """Return the folders that PYTHONPATH names; an empty entry is the working directory, an empty variable is none."""
    return [os.path.normpath(Path(code_dir, entry)) for entry in variable.split(os.pathsep)] if variable else []


def located(spec: HostSpec) -> HostSpec:
    """Fill in the folder of user code: if the job names none, the one in which Ray started this process."""
    current_folder = str(Path.cwd())
    # The root folder holds no user code: the job then goes without a folder of its own.
    if spec.job.code_dir or current_folder == "/":
        return spec
    return replace(spec, job=replace(spec.job, code_dir=current_folder))


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
