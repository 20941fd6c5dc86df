"""Roles resolved: fields that depend on other fields of the spec are decided here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from dljob.errors import PlacementError
from dljob.plan.devices import DEVICES
from dljob.plan.model import GRAIN, Amount, Resources, add_up
from dljob.plan.role import AutoscalePlan, HostKind, RolePlan
from dljob.plan.role_options import RoleOptions
from dljob.plan.serving import DrainPlan, ProbePlan, WeightsPlan
from dljob.plan.tensorflow import ports_of, restarts_with
from dljob.spec.model import (
    Autoscale,
    DLJobSpec,
    Drain,
    Entrypoint,
    NodeGroup,
    Probe,
    Role,
    Weights,
    WeightsLoad,
    WeightsVerify,
)
from dljob.spec.quantity import parse_cpu, parse_custom, parse_devices, parse_memory
from dljob.spec.rules.annotations import preferred_key_of, selector_of, spreads, topology_key_of
from dljob.spec.rules.elastic import bounded, bounds

DEFAULT_RANK_CPU = "1"
"""CPUs of a rank that does not ask for any number."""

_COMM_BY_DEVICE = {"GPU": "nccl", "NPU": "hccl"}
_NUMA = {None: "", "Node": "node", "Socket": "socket", "Exclusive": "exclusive", "CoreComplex": "core-complex"}
"""Names of `torch.numa.binding.AffinityMode`."""

_OPTIONS = tuple(field.name for field in fields(RoleOptions))


def resolve_role(spec: DLJobSpec, role: Role) -> RolePlan:
    """Return a role as it will be run.

    Raises:
        PlacementError: Its kind of device is not determined.
    """
    accelerator = _accelerator(spec, role)
    elastic = role.type == "Elastic"
    comm = _comm_backend(role, accelerator) if elastic else None
    quota = role.reserve == "Quota"
    low, high = bounds(role) if bounded(role) else (0, 0)
    return RolePlan(
        name=role.name,
        elastic=elastic,
        host=HostKind.FORK if role.entrypoint.class_ is None else HostKind.THREAD,
        entrypoint=_entrypoint(role.entrypoint),
        args=role.args,
        # A dict keeps the first place and the last value: the role's own wins.
        env=tuple({v.name: v.value for v in (*spec.env, *role.env)}.items()),
        config={**spec.config, **role.config},
        replicas=role.replicas,
        group_size=role.replicas_per_group,
        driver=role.driver,
        depends_on=tuple((d.role, d.condition) for d in role.depends_on),
        # A framework reserves its quota itself: amounts that dljob reserved would be missing for it.
        per_rank=() if quota else _per_rank(role, accelerator),
        accelerator=None if quota else accelerator,
        restart_level=role.restart_policy.level or _restart_level(role),
        max_restarts=role.restart_policy.max_restarts,
        restart_with=restarts_with(spec, role),
        comm_backend=comm,
        comm_timeout_s=role.comm.timeout_seconds,
        init_process_group=role.comm.init_process_group and comm is not None,
        selector=selector_of(role),
        pre_check=_pre_check(role, comm),
        min_replicas=low,
        max_replicas=high,
        shared_sight=_sees_all_devices(role, accelerator),
        sub_master=(role.comm.sub_master or "") if elastic else "",
        quota=_quota(role, accelerator) if quota else None,
        topology_key=topology_key_of(role),
        preferred_key=preferred_key_of(role),
        spread=spreads(role),
        numa_binding=_NUMA[role.accelerator.numa_binding] if role.accelerator and not quota else "",
        virtual_local_rank=elastic and role.comm.virtual_local_rank,
        ports=ports_of(role),
        readiness=_probe(role.readiness_probe),
        startup=_probe(role.startup_probe),
        liveness=_probe(role.liveness_probe),
        drain=_drain(role.drain),
        tf=role.tf.task if role.tf else "",
        memory_unlimited=role.accelerator is not None and role.accelerator.memory_limit == "None",
        autoscale=_autoscale(role.autoscale),
        weights=_weights(role.weights),
        **{name: value for name in _OPTIONS if (value := getattr(role, name)) is not None},
    )


def _probe(probe: Probe | None) -> ProbePlan | None:
    if probe is None:
        return None
    http, tcp, grpc = probe.http_get, probe.tcp_socket, probe.grpc
    target = http or tcp or grpc
    return ProbePlan(
        kind="http" if http else "tcp" if tcp else "grpc" if grpc else "exec",
        port=target.port if target else "",
        path=http.path if http else grpc.service if grpc else "",
        tls=http is not None and http.scheme == "HTTPS",
        headers=tuple((header.name, header.value) for header in http.http_headers) if http else (),
        command=probe.exec_.command if probe.exec_ else (),
        delay_s=probe.initial_delay_seconds,
        period_s=probe.period_seconds,
        timeout_s=probe.timeout_seconds,
        successes=probe.success_threshold,
        failures=probe.failure_threshold,
    )


def _autoscale(rule: Autoscale | None) -> AutoscalePlan | None:
    return None if rule is None else AutoscalePlan(rule.by, rule.name or "", rule.target, float(rule.cooldown_seconds))


def _drain(drain: Drain | None) -> DrainPlan | None:
    if drain is None:
        return None
    post = drain.http_post
    request = ProbePlan("post", port=post.port, path=post.path, timeout_s=drain.timeout_seconds) if post else None
    return DrainPlan(drain.timeout_seconds, drain.signal or "", request)


def _weights(weights: Weights | None) -> WeightsPlan | None:
    if weights is None:
        return None
    load, verify = weights.load, weights.verify
    return WeightsPlan(
        weights.channels, weights.max_lag, weights.min_ready, _load(load), verify and _verify(verify, load)
    )


def _load(load: WeightsLoad) -> ProbePlan:
    post = load.http_post
    if post is not None:
        return ProbePlan("post", port=post.port, path=post.path, timeout_s=load.timeout_seconds)
    if load.exec_ is not None:
        return ProbePlan("exec", command=load.exec_.command, timeout_s=load.timeout_seconds)
    return ProbePlan("method", path=load.method or "", timeout_s=load.timeout_seconds)


def _verify(verify: WeightsVerify, load: WeightsLoad) -> ProbePlan:
    get = verify.http_get
    if get is not None:
        headers = tuple((header.name, header.value) for header in get.http_headers)
        tls = get.scheme == "HTTPS"
        return ProbePlan("http", port=get.port, path=get.path, tls=tls, headers=headers, timeout_s=load.timeout_seconds)
    if verify.exec_ is not None:
        return ProbePlan("exec", command=verify.exec_.command, timeout_s=load.timeout_seconds)
    return ProbePlan("method", path=verify.method or "", timeout_s=load.timeout_seconds)


def _entrypoint(entrypoint: Entrypoint) -> tuple[str, ...]:
    if entrypoint.class_ is not None:
        return ("class", entrypoint.class_)
    if entrypoint.module is not None:
        return ("module", entrypoint.module)
    return ("command", *(entrypoint.command or ()))


def _restart_level(role: Role) -> str:
    if role.type != "Elastic":
        return "Process"
    # All ranks of a torch world restart together; with one group, that group is the world.
    return "RoleGroup" if bounds(role)[1] == role.replicas_per_group else "Role"


def _comm_backend(role: Role, accelerator: tuple[str, Amount] | None) -> str | None:
    # A SubMaster brings its own way to meet: there is no process group of ours.
    if role.comm.backend == "None" or role.comm.sub_master:
        return None
    if role.comm.backend != "Auto":
        return role.comm.backend
    return _COMM_BY_DEVICE.get(accelerator[0], "gloo") if accelerator else "gloo"


def _sees_all_devices(role: Role, accelerator: tuple[str, Amount] | None) -> bool:
    """Return whether ranks see each other's devices, as torch's scripts expect: they choose one by LOCAL_RANK.

    Other kinds do not allow that: with Neuron a process takes all cores that it sees, and TPU chips lay out the host by
    the number that is seen.
    """
    if role.accelerator is None or accelerator is None or role.comm.virtual_local_rank:
        return False
    shown = role.accelerator.visibility
    return shown == "Shared" or (shown is None and role.type == "Elastic" and accelerator[0] in _COMM_BY_DEVICE)


def _pre_check(role: Role, comm: str | None) -> bool:
    """Return whether nodes are checked: where collectives run between devices, unless the role says otherwise."""
    pre_check = role.comm.pre_check
    return comm is not None and (comm in _COMM_BY_DEVICE.values() if pre_check is None else pre_check)


def _per_rank(role: Role, accelerator: tuple[str, Amount] | None) -> Resources:
    resources, auto = role.resources, role.resources.auto
    # Until they are chosen, the least amounts stand for those that are not given.
    cpu = resources.cpu or (auto.cpu.min if auto and auto.cpu else DEFAULT_RANK_CPU)
    memory = resources.memory or (auto.memory.min if auto and auto.memory else None)
    return add_up(
        (("CPU", parse_cpu(cpu)),),
        (("memory", parse_memory(memory)),) if memory else (),
        tuple((name, parse_custom(text)) for name, text in resources.custom.items()),
        (accelerator,) if accelerator else (),
    )


def _quota(role: Role, accelerator: tuple[str, Amount] | None) -> Resources:
    """Return a framework's resources for one rank.

    Without a number of CPUs it gets one for each device, for processes beside it.
    """
    # dljob's default of one CPU per rank is too little where a rank's quota has several devices.
    devices = max(1, accelerator[1] // GRAIN) if accelerator else 1
    is_set = role.resources.cpu is not None or (role.resources.auto is not None and role.resources.auto.cpu is not None)
    cpu = {} if is_set else {"CPU": devices * GRAIN}
    return add_up(tuple({**dict(_per_rank(role, accelerator)), **cpu}.items()))


def _accelerator(spec: DLJobSpec, role: Role) -> tuple[str, Amount] | None:
    accelerator = role.accelerator
    if accelerator is None:
        return None
    homes = [g for g in spec.node_groups if g.accelerator and role.node_group in (None, g.name)]
    # Without a type it is that of the only node groups with devices; GPU where that is ambiguous.
    kind = accelerator.type or _only(sorted({g.accelerator.type for g in homes if g.accelerator})) or "GPU"
    ray = DEVICES[kind].ray or _only(sorted(_custom_resources(homes)))
    if not ray:
        raise PlacementError(
            f"role {role.name}: accelerator type Custom names no device; "
            f"the node groups it may live on declare {len(_custom_resources(homes))} different rayResources",
            hint="give the role a nodeGroup whose accelerator is Custom with a rayResource",
            loc=("spec", "roles", spec.roles.index(role), "accelerator"),
        )
    return (ray, parse_devices(accelerator.count))


def _custom_resources(groups: Sequence[NodeGroup]) -> set[str]:
    return {g.accelerator.ray_resource for g in groups if g.accelerator and g.accelerator.ray_resource}


def _only(names: Sequence[str]) -> str:
    """Return the one name there is; empty for none or several."""
    return names[0] if len(names) == 1 else ""
