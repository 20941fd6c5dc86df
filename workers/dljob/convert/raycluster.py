"""The spec of a RayCluster: its head becomes the machine of the driver, its worker groups become node groups."""

from __future__ import annotations

from dljob.convert.kubeflow import managed
from dljob.convert.meta import scalar
from dljob.convert.pods import DRIVER, ConvertedPod, Manner, machine
from dljob.convert.source import Draft, SourceManifest, UnfitError
from dljob.spec.rules.templates import RAY_START_PARAMS
from dljob.spec.scalars import dns_name
from dljob.spec.text.tree import Loc
from dljob.spec.versions import RAY

_AUTOSCALER = "Ray's autoscaler stays off: all machines that it could add are there from the start"
_HARMLESS = {
    "autoscalerOptions": _AUTOSCALER,
    "authOptions": "the operator makes a token for each job",
    "upgradeStrategy": "the operator replaces pods one by one",
    "historyServerOptions": "dljob keeps logs and events itself",
}
_HEAD_SERVICE = "the head's service is only for the job: `dljob open` and `kubectl port-forward` reach it"
_PRIVATE = {"serviceType": "ClusterIP", "enableIngress": False}
"""Fields of the head's service -> the value with which it is reached within the cluster only."""
MANNER = Manner(("ray-head", "ray-worker", "ray-node", "machine-learning"), ray=True)


def cluster(draft: Draft, loc: Loc) -> ConvertedPod:
    """Convert the spec of a RayCluster, and return the pod of the driver."""
    source = draft.source
    if not isinstance(source.value((*loc, "headGroupSpec")), dict):
        raise UnfitError(loc, "has no headGroupSpec", "name a RayCluster in clusterSelector, or describe one")
    scaled = source.value((*loc, "enableInTreeAutoscaling")) is True
    pod = _head(draft, (*loc, "headGroupSpec"))
    source.stands(loc, ("spec", "nodeGroups"))
    for key, at in source.keys(loc):
        if key == "workerGroupSpecs":
            for place in source.items(at):
                _workers(draft, place, scaled=scaled)
        elif key == "enableInTreeAutoscaling":
            source.harmless(at, _AUTOSCALER if scaled else "off")
        elif key == "suspend":
            scalar(draft, at, ("spec", "suspend"))
        elif key == "managedBy":
            managed(draft, at)
        else:
            _cluster_field(draft, key, at)
    return pod


def _cluster_field(draft: Draft, key: str, at: Loc) -> None:
    source = draft.source
    match key:
        case "rayVersion":
            text = source.text(at)
            if text and not text.startswith(f"{RAY}."):
                source.drop(at, f"this dljob runs on Ray {RAY}: take an image with it")
            elif text:
                draft.move(at, ("spec", "rayVersion"), text)
        case "gcsFaultToleranceOptions":
            _gcs(draft, at)
        case "networkPolicy":
            draft.put(("spec", "networkPolicy", "enabled"), value=True)
            _network_policy(source, at)
        case "tlsOptions":
            if source.value((*at, "enabled")) is True:
                source.drop(at, "Ray's connections are not encrypted here")
            else:
                source.harmless(at, "off")
        case "headServiceAnnotations":
            source.drop(at, _HEAD_SERVICE)
        case _ if key in _HARMLESS:
            source.harmless(at, _HARMLESS[key])
        case _:
            pass


def _network_policy(source: SourceManifest, at: Loc) -> None:
    for name, place in source.keys(at):
        if name == "mode" and source.value(place) == "DenyAllIngress":
            source.carry(place, ("spec", "networkPolicy", "enabled"))
        else:
            source.drop(place, "dljob's policy is about who reaches the pods: write a NetworkPolicy beside it")


def _head(draft: Draft, loc: Loc) -> ConvertedPod:
    source = draft.source
    group: Loc = ("spec", "nodeGroups", 0)
    draft.put((*group, "name"), DRIVER)
    source.stands(loc, group)
    pod = machine(draft, (*loc, "template"), group, MANNER)
    for key, at in source.keys(loc):
        if key in _PRIVATE and source.value(at) == _PRIVATE[key]:
            source.harmless(at, _HEAD_SERVICE)
        elif key in ("serviceType", "headService", "enableIngress", "ingressOptions"):
            source.drop(at, _HEAD_SERVICE)
        else:
            _group_field(draft, key, at, group, pod)
    return pod


def _workers(draft: Draft, loc: Loc, *, scaled: bool) -> None:
    """Convert a worker group."""
    source = draft.source
    at_group: Loc = ("spec", "nodeGroups", len(draft.items(("spec", "nodeGroups"))))
    used_names = {group["name"] for group in draft.items(("spec", "nodeGroups"))}
    name = _group_name(source.text((*loc, "groupName")) or "workers", used_names)
    draft.put((*at_group, "name"), name)
    if source.value((*loc, "groupName")) is not None:
        source.carry((*loc, "groupName"), (*at_group, "name"))
    source.stands(loc, at_group)
    _replicas(draft, loc, at_group, scaled=scaled)
    pod = machine(draft, (*loc, "template"), at_group, MANNER)
    for key, at in source.keys(loc):
        if key == "suspend" and source.value(at) is True:
            source.drop(at, "all machines are there from the start: delete the group, or suspend the job")
        elif key == "suspend":
            source.harmless(at, "off")
        elif key in ("idleTimeoutSeconds", "priority"):
            source.harmless(at, _AUTOSCALER)
        elif key == "scaleStrategy":
            source.harmless(at, "the operator chooses pods to replace")
        else:
            _group_field(draft, key, at, at_group, pod)


def _group_name(text: str, used_names: set[str]) -> str:
    name = dns_name(text, 20, "group")
    if name in ("head", "headgroup"):
        name = f"{name}-group"
    number, first = 2, name
    while name in used_names:
        name, number = f"{first[:17]}-{number}", number + 1
    return name


def _replicas(draft: Draft, loc: Loc, group: Loc, *, scaled: bool) -> None:
    """Carry the number of machines: with the autoscaler as many as it could add, else as many as KubeRay makes."""
    source = draft.source
    counts = {key: source.number((*loc, key)) for key in ("replicas", "minReplicas", "maxReplicas")}
    hosts = source.number((*loc, "numOfHosts")) or 1
    most = counts["maxReplicas"]
    first = max(counts["replicas"] or 0, counts["minReplicas"] or 0)
    count = most if scaled and most and most < 2**20 else min(first, most) if most else first
    chosen = "maxReplicas" if scaled and count == most else "replicas"
    if not count:
        count = 1
        if counts["replicas"] == 0:
            source.drop((*loc, "replicas"), "a node group has at least one machine: delete it if none is meant")
    draft.put((*group, "replicas"), count * hosts)
    if count > max(first, 1):
        name = draft.get((*group, "name"))
        draft.remarks.append(
            f"{name} has {count * hosts} machines from the start, and not {first * hosts}: {_AUTOSCALER}"
        )
    for key in ("replicas", "minReplicas", "maxReplicas"):
        at = (*loc, key)
        if at in source.fates or counts[key] is None:
            continue
        if key == chosen or counts[chosen] is None:
            source.carry(at, (*group, "replicas"), _AUTOSCALER if scaled else "times its hosts")
        else:
            source.harmless(at, _AUTOSCALER if scaled else "without the autoscaler the number does not change")
    if source.value((*loc, "numOfHosts")) is not None:
        source.carry((*loc, "numOfHosts"), (*group, "replicas"), "a machine for each host")


def _group_field(draft: Draft, key: str, at: Loc, group: Loc, pod: ConvertedPod) -> None:
    """Convert a field that head and worker groups have."""
    source = draft.source
    if key == "labels":
        for name, place in source.keys(at):
            if (text := source.text(place)) is not None:
                draft.move(place, (*group, "labels", name), text)
    elif key == "resources":
        for name, place in source.keys(at):
            _ray_amount(draft, name.lower(), place, group, pod)
    elif key == "rayStartParams":
        params = dict(source.keys(at))
        if not params:
            source.harmless(at, "empty")
        for name, place in params.items():
            _param(draft, name, place, group, pod)


def _param(draft: Draft, name: str, at: Loc, group: Loc, pod: ConvertedPod) -> None:
    """Convert a parameter of `ray start`."""
    source = draft.source
    if name in ("num-cpus", "num-gpus"):
        _ray_amount(draft, name.removeprefix("num-").removesuffix("s"), at, group, pod)
    elif name == "memory":
        source.harmless(at, "the plan sets what Ray counts")
    elif name == "resources":
        source.drop(at, "machines have no resources of Ray's beyond CPU, memory and devices")
    elif name == "labels":
        source.drop(at, "write them as nodeGroups[].labels")
    elif name in RAY_START_PARAMS or name in ("node-ip-address", "redis-password", "storage", "include-dashboard"):
        source.harmless(at, "dljob and KubeRay set what `ray start` needs")
    elif (text := _text(source.value(at))) is not None:
        groups = draft.items(("spec", "rayClusterTemplate", "spec", "workerGroupSpecs"))
        name_of = draft.get((*group, "name"))
        index = next((i for i, group_spec in enumerate(groups) if group_spec["groupName"] == name_of), len(groups))
        place: Loc = ("spec", "rayClusterTemplate", "spec", "workerGroupSpecs", index)
        draft.put((*place, "groupName"), name_of)
        draft.move(at, (*place, "rayStartParams", name), text)


def _text(value: object) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int | float) else None


def _ray_amount(draft: Draft, name: str, at: Loc, group: Loc, pod: ConvertedPod) -> None:
    """Carry an amount that Ray is told instead of the pod's limit."""
    source = draft.source
    text = source.text(at)
    if text is None:
        return
    if text.strip() in ("0", "0.0") and (name == "gpu" or draft.get((*group, "name")) == DRIVER):
        source.harmless(at, "the head of dljob runs no tasks; the driver's machine is a machine like others")
    elif name == "cpu" and (pod.cpu is None or pod.cpu == text):
        pod.cpu = text
        draft.move(at, (*group, "cpu"), text)
    elif name == "gpu" and pod.devices and str(pod.devices[1]) == text:
        source.carry(at, (*group, "accelerator", "count"))
    elif name in ("cpu", "gpu", "memory"):
        source.drop(at, "Ray counts what the pods have: change the limit of the pod")
    else:
        source.drop(at, "machines have no resources of Ray's beyond CPU, memory and devices")


def _gcs(draft: Draft, at: Loc) -> None:
    """Carry the store of Ray's head where dljob has the same one."""
    source, to = draft.source, ("spec", "gcsFaultTolerance")
    redis = source.text((*at, "redisAddress"))
    claim = source.text((*at, "storage", "claimName"))
    if claim:
        draft.put((*to, "backend"), "RocksDB")
        draft.move((*at, "storage", "claimName"), (*to, "claimName"), claim)
    elif redis:
        draft.put((*to, "backend"), "Redis")
        draft.move((*at, "redisAddress"), (*to, "redisAddress"), redis.removeprefix("redis://"))
        secret = (*at, "redisPassword", "valueFrom", "secretKeyRef")
        for key in ("name", "key"):
            if text := source.text((*secret, key)):
                draft.move((*secret, key), (*to, "redisPasswordSecret", key), text)
    else:
        source.drop(at, "it needs an existing Redis, or a claim for RocksDB")
        return
    source.carry((*at, "backend"), (*to, "backend"))
    source.harmless((*at, "externalStorageNamespace"), "dljob names one for each RayCluster")
