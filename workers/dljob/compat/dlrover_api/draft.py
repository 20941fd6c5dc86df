"""Translation of DLRover's job into one of dljob's: a pure function, whose notes say what has no effect."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from dljob.api.collocate import CollocationRequest, resolve
from dljob.api.job import DLJob as Draft
from dljob.api.machines import machines
from dljob.api.values import config_of, exact, share
from dljob.api.workload import Workload
from dljob.compat.dlrover_api.models import (
    ACCELERATOR_TYPE,
    DLConfig,
    ElasticWorkloadDesc,
    JobConfig,
    WorkloadDesc,
    WorkloadEntrypointType,
)
from dljob.compat.dlrover_api.payload import encoded, payload_of, role_name
from dljob.compat.dlrover_api.wrong_job import wrong_job
from dljob.errors import UsageError
from dljob.spec.model import DLJobManifest
from dljob.spec.scalars import dns_name
from dljob.spec.variables import DLROVER

RANK = "dljob.compat.dlrover_api.rank.DLRoverRank"
MODULE = "dljob.compat"
LONGEST_NAME = 47
LEVELS = {0: "Never", 1: "Job", 2: "Role"}
"""Restart level by `failover_exec_strategy`, where it is given."""
IDLE = {
    "master_cpu": "the master is a small actor",
    "master_mem": "the master is a small actor",
    "master_create_timeout": "the master is there when submit returns",
    "master_state_backend_type": "the journal is in the job's folder, and in Ray's GCS",
    "master_state_backend_config": "the journal is in the job's folder, and in Ray's GCS",
    "node_max_restart": "nodes are judged by their own faults; see docs/howto/bad-nodes.md",
    "master_max_restart": "the master is started again as often as it dies",
    "failover_trigger_strategy": "a failure is treated at once",
    "master_isolation_schedule_resource": "the master takes no place that ranks need",
}
"""Options of a submission without effect, and why."""


def check(job: DLConfig) -> None:
    """Raise the errors of `manifest_of` if a job in its present state cannot be one of dljob's."""
    manifest_of(JobConfig(job_name="check", dl_config=job))


@wrong_job()
def manifest_of(config: JobConfig) -> DLJobManifest:
    """Return the manifest of a job.

    Raises:
        WrongJobError: it has something that dljob cannot do.
        WrongSpecError: its spec is wrong.
    """
    return draft_of(config).manifest()


def notes(config: JobConfig) -> Iterator[tuple[str, str]]:
    """Yield the given settings without effect, each with the reason."""
    for name in sorted(config.model_fields_set & IDLE.keys()):
        yield name, IDLE[name]
    for role, workload in config.dl_config.workloads.items():
        if workload.resource.disk:
            yield f"disk of role {role}", "Ray schedules no disk"
        if "per_node_max_failure" in workload.model_fields_set:
            yield f"per_node_max_failure of role {role}", "nodes are judged by their own faults"


def draft_of(config: JobConfig) -> Draft:
    """Return the draft of a job.

    Raises:
        UsageError: it has something that dljob cannot do.
    """
    job = config.dl_config
    roles: dict[str, Workload] = {}
    for given_name, workload in job.workloads.items():
        name = role_name(given_name)
        if name in roles:
            raise UsageError(f"roles {given_name!r} and another are both {name!r} in dljob", hint="rename one of them")
        if workload.total:
            roles[name] = _role(name, workload, config)
    if not roles:
        raise UsageError("no role of the job has a worker", hint="give one of them a total of 1 or more")
    spec: dict[str, Any] = {"config": _config(job)}
    env = {**job.global_envs, DLROVER: encoded(payload_of(job, config.job_name))}
    spec["env"] = [{"name": name, "value": value} for name, value in env.items()]
    if "job_max_restart" in config.model_fields_set:
        spec["faultTolerance"] = {"maxRestarts": config.job_max_restart}
    devices = job.accelerator_type is not ACCELERATOR_TYPE.CPU
    if collocations := resolve(list(_collocations(job, roles)), roles, frozenset(), has_devices=devices):
        spec["collocations"] = collocations
    machines(_machines(job, roles), roles, spec)
    return Draft(workloads=roles, spec=spec, metadata={"name": dns_name(config.job_name, LONGEST_NAME)})


def _config(job: DLConfig) -> dict[str, object]:
    return config_of(job.user_config, ".config()") if job.user_config else {}


def _machines(job: DLConfig, roles: Mapping[str, Workload]) -> dict[str, Any]:
    """Return the machines; one node of DLRover's default size is whatever machine there is."""
    kind = job.accelerator_type.value
    machine_settings: dict[str, Any] = {"type": kind}
    if job.node_number > 1:
        machine_settings["nodes"] = job.node_number
        if any(role.accelerator for role in roles.values()):
            machine_settings["devices"] = job.device_per_node
    return machine_settings


def _role(name: str, workload: WorkloadDesc, config: JobConfig) -> Workload:
    cpu_only = config.dl_config.accelerator_type is ACCELERATOR_TYPE.CPU
    cpus, devices = workload.resource.cpu, workload.resource.accelerator
    if cpu_only:
        cpus, devices = max(cpus, devices), 0.0
    role = Workload(
        name=name, replicas=workload.total, replicas_per_group=workload.per_group, driver=workload.is_driver
    )
    role.entrypoint, role.args = _entrypoint(workload)
    role.env, role.config = dict(workload.envs), config_of(workload.config, f"config of role {name!r}")
    role.cpu = exact(cpus, f"cpu of role {name!r}") if cpus else None
    role.memory = f"{workload.resource.memory}Mi" if workload.resource.memory else None
    role.accelerator = share(devices, f"accelerator of role {name!r}")
    custom = dict(workload.resource.user_defined)
    if config.worker_isolation_schedule_resource:
        custom[config.worker_isolation_schedule_resource] = 1
    role.custom = {key: exact(value, f"{key} of role {name!r}") for key, value in custom.items()}
    if workload.rank_based_gpu_selection:
        role.rank_based_gpu_selection = True
    role.restart_policy = _restarts(workload, config)
    if isinstance(workload, ElasticWorkloadDesc):
        role.type, role.comm = "Elastic", _comm(workload)
    return role


def _entrypoint(workload: WorkloadDesc) -> tuple[dict[str, Any], list[str]]:
    if workload.entry_point_type is WorkloadEntrypointType.MODULE_FUNC:
        return {"class": RANK}, []
    return {"module": MODULE}, ["--dlrover", *shlex.split(workload.entry_point)]


def _restarts(workload: WorkloadDesc, config: JobConfig) -> dict[str, Any]:
    policy: dict[str, Any] = {}
    if "max_restart" in workload.model_fields_set:
        policy["maxRestarts"] = workload.max_restart
    if "failover_exec_strategy" in config.model_fields_set:
        policy["level"] = LEVELS[config.failover_exec_strategy]
    return policy


def _comm(workload: ElasticWorkloadDesc) -> dict[str, Any]:
    comm: dict[str, Any] = {}
    if workload.comm_backend != "auto":
        comm["backend"] = workload.comm_backend
    if workload.comm_timeout_s:
        comm["timeoutSeconds"] = workload.comm_timeout_s
    if not workload.comm_auto_setup_process_group:
        comm["initProcessGroup"] = False
    if not workload.comm_pre_check:
        comm["preCheck"] = False
    return comm


def _collocations(job: DLConfig, roles: Mapping[str, Workload]) -> Iterator[CollocationRequest]:
    """Yield a collocation for each group of roles: of devices where each of them asks for a part of one."""
    groups: dict[str, list[str]] = {}
    for given_name, workload in job.workloads.items():
        if workload.group and role_name(given_name) in roles:
            groups.setdefault(workload.group, []).append(role_name(given_name))
    for names in groups.values():
        counts = [Decimal(str(roles[name].accelerator or 0)) for name in names]
        if len(names) < 2:
            continue
        if not all(0 < count < 1 for count in counts):
            yield CollocationRequest(tuple(names), (), "Host", None)
            continue
        if sum(counts) > 1:  # as of six roles with a rounded sixth, 0.17, each: they get exact parts
            for name in names:
                roles[name].accelerator = None
        yield CollocationRequest(tuple(names), (), "Device", None)
