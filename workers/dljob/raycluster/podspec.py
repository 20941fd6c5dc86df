"""The pods of a job's RayCluster: required fields, and defaults that a template may change."""

from __future__ import annotations

from dljob.plan.devices import BY_RAY
from dljob.plan.model import CPU_LABEL, Amount, MachineGroup
from dljob.plan.tools import roles_with_tools
from dljob.raycluster import pods
from dljob.raycluster.overlay import Object
from dljob.spec.model import DLJobSpec
from dljob.spec.quantity import GRAIN, parse_cpu, parse_memory, show, show_memory

HEALTH = {"httpGet": {"path": "/api/healthz", "port": 52365}}
"""Page that answers for the raylet and, on the head, the GCS. Source: KubeRay 1.6.2, controllers/ray/utils/constant.go.
"""
ALIVE = {**HEALTH, "initialDelaySeconds": 10, "periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 12}
"""Restart after two minutes of silence (KubeRay: ten). Less would kill a host that is merely busy."""
STARTS = {**HEALTH, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 660}
"""Time that Ray has to start: as much as KubeRay's own liveness probe leaves it (30 s + 120 x 5 s), and a little more.

Slow disks and large images take minutes. The other probes begin after it, so it looks each second.
"""


TERMINATION_S = 30
"""Kubernetes' default of a pod's grace period, in seconds."""
PARTING_S = 30
"""Seconds beyond the checkpoints' grace period, in which ranks leave and Ray ends."""
ENDING_S = 10
"""Seconds of the grace period that Ray gets after the preStop hook."""
DRAIN = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
"""Seconds that Ray, on SIGTERM, waits for actors on its node; 30 by default. Source: ray 2.60, ray_constants.py."""
NO_MONITOR = {"name": "RAY_memory_monitor_refresh_ms", "value": "0"}
"""Turns Ray's memory monitor off in the raylet that has it; each raylet reads its own environment."""


def head_pod(spec: DLJobSpec, *, init_image: str, spec_map: str) -> Object:
    """Return the pod spec of the head, where PrimeMaster and the gateway live, and never a rank.

    Args:
        spec: The spec, with image and Ray's version filled in.
        init_image: The image that brings dljob and user code into the pod; empty if the user's image has dljob.
        spec_map: ConfigMap with the spec; empty for none.
    """
    # PrimeMaster lives in the head's pod, beside Ray.
    cpu = _cpu(parse_cpu(spec.head.cpu) + parse_cpu(spec.master.cpu))
    memory = show_memory(parse_memory(spec.head.memory) + parse_memory(spec.master.memory))
    # No CPU limit: throttling the head while it starts would delay every job.
    container = _container(pods.HEAD_CONTAINER, spec, {"cpu": cpu, "memory": memory}, {"memory": memory}, period=1)
    # Ray kills first what it can restart: on the head that is PrimeMaster, which frees little.
    container["env"].append(dict(NO_MONITOR))
    container["ports"] = [
        {"name": name, "containerPort": port}
        for name, port in (*pods.RAY_PORTS, (pods.GATEWAY_PORT_NAME, pods.GATEWAY_PORT))
    ]
    pod = _pod(spec, container, init_image)
    if spec_map:
        _mount(pod, container, {"name": "dljob-spec", "configMap": {"name": spec_map}}, pods.SPEC_DIR, read_only=True)
    journal = spec.master.journal
    if journal.claim_name and journal.path:
        _mount(pod, container, _claim("dljob-journal", journal.claim_name), journal.path)
    return pod


def worker_pod(spec: DLJobSpec, group: MachineGroup, *, init_image: str) -> Object:
    """Return the pod spec of one machine of a node group; arguments as in `head_pod`."""
    # Ray counts by the limits. Requests are equal, unless a template lowers them to share a small cluster.
    amounts = _kubernetes_resources(group)
    container = _container(pods.WORKER_CONTAINER, spec, amounts, amounts, period=5)
    container["image"] = group.image or spec.image
    if group.device and group.device[0] == "NPU":
        # Ascend's device files belong to a user of their own, which root without capabilities cannot read.
        container["securityContext"]["capabilities"]["add"] = ["DAC_OVERRIDE"]
    pod = _pod(spec, container, init_image)
    for init in pod.get("initContainers", ()):
        init["command"] += [pods.AWAIT_HEAD, str(dict(pods.RAY_PORTS)["gcs-server"])]
    # Container runtimes give 64 MiB otherwise.
    if group.shared_memory:
        volume = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": show_memory(group.shared_memory)}}
        _mount(pod, container, volume, "/dev/shm")  # noqa: S108 - the mount is the point
    return pod


def counted_cpus(group: MachineGroup) -> dict[str, str]:
    """Return Ray's label for machines with a fraction of a CPU; empty for whole CPUs.

    KubeRay 1.6.2 starts Ray with the container's CPUs rounded up (common/pod.go, `cpu.Value()`), and Ray takes only
    whole numbers: PrimeMaster counts by this label.
    """
    cpus = dict(group.resources).get("CPU", 0)
    return {CPU_LABEL: _cpu(cpus)} if cpus % GRAIN else {}


def declared_resources(group: MachineGroup) -> dict[str, str]:
    """Return the resources that the worker group must declare, since KubeRay 1.6.2 does not report them to Ray."""
    return {name: show(amount) for name, amount in group.resources if not _found_by_kuberay(name, group)}


def _found_by_kuberay(name: str, group: MachineGroup) -> bool:
    """Return whether KubeRay derives Ray's resource from the container's limits.

    Source: KubeRay 1.6.2, IsGPUResourceKey and customAcceleratorToRayResourceMap.
    """
    if name in ("CPU", "memory"):
        return True
    if name not in BY_RAY or not BY_RAY[name].auto:
        return False
    resource = group.device[1] if group.device and group.device[0] == name else BY_RAY[name].kubernetes
    if name == "GPU":
        # KubeRay counts every resource that ends in `gpu`, and slices of a GPU (MIG).
        return resource.endswith("gpu") or resource.startswith("nvidia.com/mig-")
    return resource == BY_RAY[name].kubernetes


def _kubernetes_resources(group: MachineGroup) -> dict[str, str]:
    """Return the container's resources; devices only under names that Kubernetes knows."""
    resources: dict[str, str] = {}
    for name, amount in group.resources:
        if name == "CPU":
            resources["cpu"] = _cpu(amount)
        elif name == "memory":
            resources["memory"] = show_memory(amount)
        elif group.device and name == group.device[0]:
            resources[group.device[1]] = show(amount)
        elif name in BY_RAY:
            resources[BY_RAY[name].kubernetes] = show(amount)
    return resources


def _cpu(amount: Amount) -> str:
    # Kubernetes counts CPUs in thousandths: round up, so that no rank gets less.
    return show(amount) if amount % GRAIN == 0 else f"{-(-amount * 1000 // GRAIN)}m"


def _pod(spec: DLJobSpec, container: Object, init_image: str) -> Object:
    """Return the common part of head and workers. Training needs no rights in Kubernetes, so there is no token."""
    pod: Object = {
        "automountServiceAccountToken": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    if spec.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": secret.name} for secret in spec.image_pull_secrets]
    _mount(pod, container, {"name": "dljob", "emptyDir": {}}, pods.ROOT)
    if spec.checkpoint and spec.checkpoint.path:
        container["env"].append({"name": "DLJOB_CHECKPOINT", "value": spec.checkpoint.path})
        if spec.checkpoint.claim_name:
            _mount(pod, container, _claim("dljob-checkpoint", spec.checkpoint.claim_name), spec.checkpoint.path)
    code = spec.code.config_map
    # User code from a ConfigMap needs the init container as well.
    if init_image or code:
        init = {**_init_container(init_image or spec.image or ""), **_pull(spec)}
        if roles_with_tools(spec):
            init["command"].append(pods.WITH_TOOLS)
        pod["initContainers"] = [init]
        if code:
            _mount(pod, init, {"name": "dljob-code", "configMap": {"name": code}}, pods.CODE_SOURCE, read_only=True)
    return pod


def _init_container(image: str) -> Object:
    """Return the container that brings dljob and user code into the pod."""
    return {
        "name": pods.INIT_CONTAINER,
        "image": image,
        "command": ["python", "-m", "dljob.runtime.unpack"],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": _restricted(),
        "volumeMounts": [{"name": "dljob", "mountPath": pods.ROOT}],
    }


def _container(name: str, spec: DLJobSpec, requests: dict[str, str], limits: dict[str, str], *, period: int) -> Object:
    """Return the Ray container; its readiness probe runs every `period` seconds."""
    container: Object = {
        "name": name,
        "image": spec.image,
        **_pull(spec),
        "env": [
            {"name": "DLJOB_HOME", "value": pods.HOME},
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "PYTHONPATH", "value": pods.LIB},
        ],
        "resources": {"requests": dict(requests), "limits": dict(limits)},
        "securityContext": _restricted(),
    }
    if spec.env_from:
        container["envFrom"] = [
            source.model_dump(mode="json", by_alias=True, exclude_defaults=True) for source in spec.env_from
        ]
    # The defaults of KubeRay wait ten seconds before the first readiness probe, which delays every start.
    container["readinessProbe"] = {
        **HEALTH, "initialDelaySeconds": 1, "periodSeconds": period, "timeoutSeconds": 5, "failureThreshold": 10
    }  # fmt: skip
    container["startupProbe"] = dict(STARTS)
    container["livenessProbe"] = dict(ALIVE)
    return container


def _pull(spec: DLJobSpec) -> Object:
    return {"imagePullPolicy": spec.image_pull_policy} if spec.image_pull_policy else {}


def _claim(name: str, claim: str) -> Object:
    return {"name": name, "persistentVolumeClaim": {"claimName": claim}}


def _restricted() -> Object:
    """Return PodSecurity's `restricted` context without runAsNonRoot: users' images often run as root."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _mount(pod: Object, container: Object, volume: Object, path: str, *, read_only: bool = False) -> None:
    pod.setdefault("volumes", []).append(volume)
    mount: Object = {"name": volume["name"], "mountPath": path}
    if read_only:
        mount["readOnly"] = True
    container.setdefault("volumeMounts", []).append(mount)


def with_temporary_folder(pod: Object) -> Object:
    """Return a pod whose containers can write /tmp, also with a read-only root file system: Ray's session is there."""
    result, changed = dict(pod), False
    for kind in ("initContainers", "containers"):
        if kind in pod:
            result[kind] = [_with_mount(container) if _lacks_tmp(container) else container for container in pod[kind]]
            changed = changed or result[kind] != pod[kind]
    return {**result, "volumes": [*pod.get("volumes", ()), {"name": _TMP["name"], "emptyDir": {}}]} if changed else pod


_TMP = {"name": "dljob-tmp", "mountPath": "/tmp"}  # noqa: S108 - the mount is the point


def _lacks_tmp(container: Object) -> bool:
    read_only = container.get("securityContext", {}).get("readOnlyRootFilesystem") is True
    mounts = [mount["mountPath"].rstrip("/") for mount in container.get("volumeMounts", ())]
    return read_only and _TMP["mountPath"] not in mounts


def _with_mount(container: Object) -> Object:
    return {**container, "volumeMounts": [*container.get("volumeMounts", ()), dict(_TMP)]}


def with_parting(pod: Object, spec: DLJobSpec, drain: int = 0) -> Object:
    """Return a pod whose Ray container saves what is in memory before SIGTERM, and then ends at once.

    Ranks have left by then, or have nowhere to go, so Ray has nothing to wait for. A template with a `lifecycle` of its
    own replaces all of this, and Ray keeps its half minute.

    Args:
        pod: The pod.
        spec: The job's spec.
        drain: The longest drain (s) of servers that may run in it.
    """
    ray, *others = pod["containers"]
    if "lifecycle" in ray:
        return pod
    checkpoint = spec.checkpoint
    grace_s = TERMINATION_S if checkpoint is None else checkpoint.grace_period_seconds + PARTING_S
    # Twice: the hook lets ranks leave in one half of its time, and saves in the other.
    seconds = int(pod.get("terminationGracePeriodSeconds", grace_s + 2 * drain))
    # `python -m` puts the working directory first on the path: in / no file of the user is imported by mistake.
    # A short grace period is halved: one half for the hook, one for Ray.
    command = f"cd / && python -m dljob.runtime.leave {max(seconds - ENDING_S, seconds // 2)} || :"
    env: list[Object] = ray["env"]
    # A value of the template's own stays.
    if not any(entry["name"] == DRAIN for entry in env):
        env = [*env, {"name": DRAIN, "value": "0"}]
    hook = {"preStop": {"exec": {"command": ["/bin/sh", "-c", command]}}}
    return {
        **pod,
        "terminationGracePeriodSeconds": seconds,
        "containers": [{**ray, "env": env, "lifecycle": hook}, *others],
    }


def with_library(pod: Object) -> Object:
    """Return a pod whose Ray container has dljob last on PYTHONPATH, even if a template sets that variable."""
    ray, *others = pod["containers"]
    paths = [entry for entry in ray["env"] if entry["name"] == "PYTHONPATH"]
    # No template set another value, and dljob is alone there.
    if paths[0]["value"] == pods.LIB:
        return pod
    env = [{**e, "value": f"{e['value']}:{pods.LIB}"} if e["name"] == "PYTHONPATH" else e for e in ray["env"]]
    return {**pod, "containers": [{**ray, "env": env}, *others]}
