"""The spec of a RayCluster: its head becomes the machine of the driver, its worker groups become node groups."""

from __future__ import annotations

from dljob.convert.kubeflow import carry_managed_by
from dljob.convert.meta import carry_number_or_switch
from dljob.convert.pods import DRIVER_GROUP, ConvertedPod, PodConventions, convert_pod_template
from dljob.convert.source import Draft, UnfitError
from dljob.spec.rules.templates import RAY_START_PARAMS
from dljob.spec.scalars import dns_name
from dljob.spec.text.tree import Loc
from dljob.spec.versions import RAY as RAY_VERSION

_NO_AUTOSCALER = "Ray's autoscaler stays off: all machines that it could add are there from the start"
_HARMLESS_FIELDS = {
    "autoscalerOptions": _NO_AUTOSCALER,
    "authOptions": "the operator makes a token for each job",
    "upgradeStrategy": "the operator replaces pods one by one",
    "historyServerOptions": "dljob keeps logs and events itself",
}
_HEAD_SERVICE_REASON = "the head's service is only for the job: `dljob open` and `kubectl port-forward` reach it"
_CLUSTER_INTERNAL_VALUES = {"serviceType": "ClusterIP", "enableIngress": False}
"""Fields of the head's service -> the value with which it is reached within the cluster only."""
_NO_RAY_RESOURCES = "machines have no resources of Ray's beyond CPU, memory and devices"
_RAY_CONVENTIONS = PodConventions(("ray-head", "ray-worker", "ray-node", "machine-learning"), runs_ray=True)


def convert_cluster_spec(draft: Draft, spec: Loc) -> ConvertedPod:
    """Convert the spec of a RayCluster, and return the pod of the head group, on whose machine the driver runs."""
    source = draft.source
    if source.value((*spec, "headGroupSpec")) is None:
        raise UnfitError(spec, "has no headGroupSpec", "name a RayCluster in clusterSelector, or describe one")
    autoscales = source.value((*spec, "enableInTreeAutoscaling")) is True
    driver_pod = _convert_head_group(draft, (*spec, "headGroupSpec"))
    source.note_counterpart(spec, ("spec", "nodeGroups"))
    for key, at in source.fields(spec):
        if key == "workerGroupSpecs":
            for worker_group in source.item_locs(at):
                _convert_worker_group(draft, worker_group, autoscales=autoscales)
        elif key == "enableInTreeAutoscaling":
            source.mark_harmless(at, _NO_AUTOSCALER if autoscales else "off")
        elif key == "suspend":
            carry_number_or_switch(draft, at, ("spec", "suspend"))
        elif key == "managedBy":
            carry_managed_by(draft, at)
        else:
            _convert_cluster_field(draft, key, at)
    return driver_pod


def _convert_cluster_field(draft: Draft, key: str, at: Loc) -> None:
    """Convert a field of a RayCluster's spec beside its groups of pods."""
    source = draft.source
    match key:
        case "rayVersion":
            ray_version = source.text(at)
            if ray_version and not ray_version.startswith(f"{RAY_VERSION}."):
                source.mark_dropped(at, f"this dljob runs on Ray {RAY_VERSION}: take an image with it")
            elif ray_version:
                draft.move(at, ("spec", "rayVersion"), ray_version)
        case "gcsFaultToleranceOptions":
            _convert_gcs_fault_tolerance(draft, at)
        case "networkPolicy":
            _convert_network_policy(draft, at)
        case "tlsOptions":
            if source.value((*at, "enabled")) is True:
                source.mark_dropped(at, "Ray's connections are not encrypted here")
            else:
                source.mark_harmless(at, "off")
        case "headServiceAnnotations":
            source.mark_dropped(at, _HEAD_SERVICE_REASON)
        case _ if key in _HARMLESS_FIELDS:
            source.mark_harmless(at, _HARMLESS_FIELDS[key])
        case _:
            pass  # has no fate, and is reported as unknown


def _convert_network_policy(draft: Draft, network_policy: Loc) -> None:
    source, enabled = draft.source, ("spec", "networkPolicy", "enabled")
    draft.put(enabled, value=True)
    for name, at in source.fields(network_policy):
        if name == "mode" and source.value(at) == "DenyAllIngress":
            source.mark_carried(at, enabled)
        else:
            source.mark_dropped(at, "dljob's policy is about who reaches the pods: write a NetworkPolicy beside it")


def _convert_head_group(draft: Draft, head_group: Loc) -> ConvertedPod:
    """Convert the head group into the first node group, for the driver, and return its pod."""
    source = draft.source
    group: Loc = ("spec", "nodeGroups", 0)
    draft.put((*group, "name"), DRIVER_GROUP)
    source.note_counterpart(head_group, group)
    pod = convert_pod_template(draft, (*head_group, "template"), group, _RAY_CONVENTIONS)
    for key, at in source.fields(head_group):
        if key in _CLUSTER_INTERNAL_VALUES and source.value(at) == _CLUSTER_INTERNAL_VALUES[key]:
            source.mark_harmless(at, _HEAD_SERVICE_REASON)
        elif key in ("serviceType", "headService", "enableIngress", "ingressOptions"):
            source.mark_dropped(at, _HEAD_SERVICE_REASON)
        else:
            _convert_group_field(draft, key, at, pod)
    return pod


def _convert_worker_group(draft: Draft, worker_group: Loc, *, autoscales: bool) -> None:
    """Convert a worker group into a node group."""
    source = draft.source
    node_groups = draft.list_at(("spec", "nodeGroups"))
    group: Loc = ("spec", "nodeGroups", len(node_groups))
    used_names = {node_group["name"] for node_group in node_groups}
    name = _unused_group_name(source.text((*worker_group, "groupName")) or "workers", used_names)
    draft.put((*group, "name"), name)
    if source.value((*worker_group, "groupName")) is not None:
        source.mark_carried((*worker_group, "groupName"), (*group, "name"))
    source.note_counterpart(worker_group, group)
    _carry_replicas(draft, worker_group, group, autoscales=autoscales)
    pod = convert_pod_template(draft, (*worker_group, "template"), group, _RAY_CONVENTIONS)
    for key, at in source.fields(worker_group):
        if key == "suspend" and source.value(at) is True:
            source.mark_dropped(at, "all machines are there from the start: delete the group, or suspend the job")
        elif key == "suspend":
            source.mark_harmless(at, "off")
        elif key in ("idleTimeoutSeconds", "priority"):
            source.mark_harmless(at, _NO_AUTOSCALER)
        elif key == "scaleStrategy":
            source.mark_harmless(at, "the operator chooses pods to replace")
        else:
            _convert_group_field(draft, key, at, pod)


def _unused_group_name(text: str, used_names: set[str]) -> str:
    """Return a valid name of a node group like the text, with a number where the name is used."""
    base_name = dns_name(text, 20, "group")
    if base_name in ("head", "headgroup"):
        base_name = f"{base_name}-group"
    name, number = base_name, 2
    while name in used_names:
        name, number = f"{base_name[:17]}-{number}", number + 1
    return name


def _carry_replicas(draft: Draft, worker_group: Loc, group: Loc, *, autoscales: bool) -> None:
    """Carry the number of machines: with the autoscaler as many as it could add, else as many as KubeRay makes."""
    source = draft.source
    counts = {key: source.number((*worker_group, key)) for key in ("replicas", "minReplicas", "maxReplicas")}
    hosts = source.number((*worker_group, "numOfHosts")) or 1
    max_replicas = counts["maxReplicas"]
    count_at_start = max(counts["replicas"] or 0, counts["minReplicas"] or 0)
    if autoscales and max_replicas and max_replicas < 2**20:
        count = max_replicas
    else:
        count = min(count_at_start, max_replicas) if max_replicas else count_at_start
    carried_key = "maxReplicas" if autoscales and count == max_replicas else "replicas"
    if not count:
        count = 1
        if counts["replicas"] == 0:
            words = "a node group has at least one machine: delete it if none is meant"
            source.mark_dropped((*worker_group, "replicas"), words)
    draft.put((*group, "replicas"), count * hosts)
    if count > max(count_at_start, 1):
        words = f"has {count * hosts} machines from the start, and not {count_at_start * hosts}: {_NO_AUTOSCALER}"
        draft.remarks.append(f"{draft.get((*group, 'name'))} {words}")
        fewer_key = "replicas" if counts["replicas"] is not None else "minReplicas"
        source.mark_dropped((*worker_group, fewer_key), f"the group {words}; write fewer replicas where fewer do")
    for key, number in counts.items():
        at = (*worker_group, key)
        if at in source.fates or number is None:
            continue
        if key == carried_key or counts[carried_key] is None:
            source.mark_carried(at, (*group, "replicas"), _NO_AUTOSCALER if autoscales else "times its hosts")
        else:
            fixed = "without the autoscaler the number does not change"
            source.mark_harmless(at, _NO_AUTOSCALER if autoscales else fixed)
    if source.value((*worker_group, "numOfHosts")) is not None:
        source.mark_carried((*worker_group, "numOfHosts"), (*group, "replicas"), "a machine for each host")


def _convert_group_field(draft: Draft, key: str, at: Loc, pod: ConvertedPod) -> None:
    """Convert a field that head and worker groups have; others get no fate, and are reported as unknown."""
    source = draft.source
    if key == "labels":
        for name, label_loc in source.fields(at):
            if (text := source.text(label_loc)) is not None:
                draft.move(label_loc, (*pod.group_loc, "labels", name), text)
    elif key == "resources":
        for name, amount_loc in source.fields(at):
            _convert_ray_amount(draft, name.lower(), amount_loc, pod)
    elif key == "rayStartParams":
        params = dict(source.fields(at))
        if not params:
            source.mark_harmless(at, "empty")
        for name, param_loc in params.items():
            _convert_ray_start_param(draft, name, param_loc, pod)


def _convert_ray_start_param(draft: Draft, name: str, at: Loc, pod: ConvertedPod) -> None:
    """Convert a parameter of `ray start`; one that dljob does not set goes into the template of the RayCluster."""
    source = draft.source
    if name in ("num-cpus", "num-gpus"):
        _convert_ray_amount(draft, name.removeprefix("num-").removesuffix("s"), at, pod)
    elif name == "memory":
        source.mark_harmless(at, "the plan sets what Ray counts")
    elif name == "resources":
        source.mark_dropped(at, _NO_RAY_RESOURCES)
    elif name == "labels":
        source.mark_dropped(at, "write them as nodeGroups[].labels")
    elif name in RAY_START_PARAMS or name in ("node-ip-address", "redis-password", "storage", "include-dashboard"):
        source.mark_harmless(at, "dljob and KubeRay set what `ray start` needs")
    elif (text := _scalar_text(source.value(at))) is not None:
        worker_groups: Loc = ("spec", "rayClusterTemplate", "spec", "workerGroupSpecs")
        group_name = draft.get((*pod.group_loc, "name"))
        group_names = [worker_group["groupName"] for worker_group in draft.list_at(worker_groups)]
        index = group_names.index(group_name) if group_name in group_names else len(group_names)
        draft.put((*worker_groups, index, "groupName"), group_name)
        draft.move(at, (*worker_groups, index, "rayStartParams", name), text)


def _scalar_text(value: object) -> str | None:
    """Return a text, number or switch as a text; None for other values."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int | float) else None


def _convert_ray_amount(draft: Draft, resource: str, at: Loc, pod: ConvertedPod) -> None:
    """Carry an amount that Ray counts in place of the pod's limit, where it is that limit; else drop it."""
    source, group = draft.source, pod.group_loc
    text = source.text(at)
    if text is None:
        return
    is_driver_group = draft.get((*group, "name")) == DRIVER_GROUP
    if text.strip() in ("0", "0.0") and (resource == "gpu" or is_driver_group):
        source.mark_harmless(at, "the head of dljob runs no tasks; the driver's machine is a machine like others")
    elif resource == "cpu" and (pod.cpu is None or pod.cpu == text):
        pod.cpu = text
        draft.move(at, (*group, "cpu"), text)
    elif resource == "gpu" and pod.devices and str(pod.devices.count) == text:
        source.mark_carried(at, (*group, "accelerator", "count"))
    elif resource in ("cpu", "gpu", "memory"):
        source.mark_dropped(at, "Ray counts what the pods have: change the limit of the pod")
    else:
        source.mark_dropped(at, _NO_RAY_RESOURCES)


def _convert_gcs_fault_tolerance(draft: Draft, at: Loc) -> None:
    """Carry the store of Ray's head where dljob has the same one: RocksDB on a claim, or Redis."""
    source, to = draft.source, ("spec", "gcsFaultTolerance")
    redis_address = source.text((*at, "redisAddress"))
    claim_name = source.text((*at, "storage", "claimName"))
    if claim_name:
        draft.put((*to, "backend"), "RocksDB")
        draft.move((*at, "storage", "claimName"), (*to, "claimName"), claim_name)
    elif redis_address:
        draft.put((*to, "backend"), "Redis")
        draft.move((*at, "redisAddress"), (*to, "redisAddress"), redis_address.removeprefix("redis://"))
        secret_key_ref = (*at, "redisPassword", "valueFrom", "secretKeyRef")
        for key in ("name", "key"):
            if text := source.text((*secret_key_ref, key)):
                draft.move((*secret_key_ref, key), (*to, "redisPasswordSecret", key), text)
    else:
        source.mark_dropped(at, "it needs an existing Redis, or a claim for RocksDB")
        return
    source.mark_carried((*at, "backend"), (*to, "backend"))
    source.mark_harmless((*at, "externalStorageNamespace"), "dljob names one for each RayCluster")
