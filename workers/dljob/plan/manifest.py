"""The RayCluster (ray.io/v1) that would carry the job, as KubeRay 1.7 reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dljob.plan.devices import BY_RAY
from dljob.plan.model import Amount, NodeGroup
from dljob.spec.model import DLJobManifest
from dljob.spec.quantity import GRAIN, show, show_memory

DEFAULT_RAY_VERSION = "2.60.0"
"""When the spec names none; the operator puts its own here."""
DEFAULT_IMAGE = "rayproject/ray:{version}-py311"
"""When the spec names none; the operator puts its own here."""

Object = dict[str, Any]


def build_manifest(manifest: DLJobManifest, groups: Mapping[str, NodeGroup]) -> Object:
    """The RayCluster as Kubernetes takes it. The operator adds owner, attempt and token."""
    spec = manifest.spec
    version = spec.ray_version or DEFAULT_RAY_VERSION
    image = spec.image or DEFAULT_IMAGE.format(version=version)
    metadata: Object = {
        "name": manifest.metadata.name,
        "labels": {
            **manifest.metadata.labels,
            "app.kubernetes.io/managed-by": "dljob",
            "dljob.io/name": manifest.metadata.name,
        },
    }
    if manifest.metadata.namespace:
        metadata["namespace"] = manifest.metadata.namespace
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": metadata,
        "spec": {
            "rayVersion": version,
            "authOptions": {"mode": "token"},
            "upgradeStrategy": {"type": "None"},
            "headGroupSpec": _head(image, spec.head.cpu, spec.head.memory),
            "workerGroupSpecs": [_workers(group, image) for _, group in sorted(groups.items())],
        },
    }


def _head(image: str, cpu: str, memory: str) -> Object:
    """Ranks never live on the head, so Ray is told of no CPUs there."""
    resources = {"cpu": cpu, "memory": memory}
    return {
        "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},  # noqa: S104 - the pod's own network
        "template": {"spec": {"containers": [_container("ray-head", image, resources)]}},
    }


def _workers(group: NodeGroup, image: str) -> Object:
    """A worker group. minReplicas equals replicas, or an autoscaled gang would shrink to the head."""
    amounts = dict(group.resources)
    container = _container("ray-worker", image, _kubernetes_resources(group))
    pod: Object = {"containers": [container]}
    if group.shared_memory:
        size = show_memory(group.shared_memory)
        container["volumeMounts"] = [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108 - the mount is the point
        pod["volumes"] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}]
    workers: Object = {
        "groupName": group.name,
        "replicas": group.replicas,
        "minReplicas": group.replicas,
        "maxReplicas": group.replicas,
        "numOfHosts": 1,
        "rayStartParams": {},
        "labels": dict(group.labels),
        "template": {"metadata": {"labels": dict(group.labels)}, "spec": pod},
    }
    told = {name: show(amount) for name, amount in amounts.items() if _must_be_told(name)}
    if told:
        # KubeRay refuses rayStartParams beside `resources`, which overrides what it would find by itself.
        workers["resources"] = told
    return workers


def _must_be_told(name: str) -> bool:
    """Whether Ray learns of a resource only when the worker group says so."""
    return name not in ("CPU", "memory") and not (name in BY_RAY and BY_RAY[name].auto)


def _kubernetes_resources(group: NodeGroup) -> dict[str, str]:
    """What the container asks of Kubernetes; a device resource only when Kubernetes knows one by that name."""
    found: dict[str, str] = {}
    for name, amount in group.resources:
        if name == "CPU":
            found["cpu"] = _cpu(amount)
        elif name == "memory":
            found["memory"] = show_memory(amount)
        elif group.device and name == group.device[0]:
            found[group.device[1]] = show(amount)
        elif name in BY_RAY:
            found[BY_RAY[name].kubernetes] = show(amount)
    return found


def _cpu(amount: Amount) -> str:
    return show(amount) if amount % GRAIN == 0 else f"{-(-amount * 1000 // GRAIN)}m"


def _container(name: str, image: str, resources: dict[str, str]) -> Object:
    return {"name": name, "image": image, "resources": {"requests": dict(resources), "limits": dict(resources)}}
