"""The RayCluster (ray.io/v1) that carries a job, as KubeRay 1.6.2 reads it: the plan's machines in the job's dress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dljob.plan.model import JobPlan, NodeGroup
from dljob.plan.podspec import Object, head_pod, told_resources, worker_pod
from dljob.spec.model import DLJobManifest

DEFAULT_RAY_VERSION = "2.60.0"
"""When neither the spec nor an operator names one."""
DEFAULT_IMAGE = "rayproject/ray:{rayVersion}-py311"
"""When neither the spec nor an operator names one."""


@dataclass(frozen=True, slots=True)
class Dress:
    """What a RayCluster gets from the operator, beside the spec's own; what is empty is left out."""

    name: str
    namespace: str = ""
    owner: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """An ownerReference."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of the RayCluster and of each pod."""
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of the RayCluster."""
    token_secret: str = ""
    """The Secret with Ray's token, key `auth_token`; empty: KubeRay makes one."""
    spec_map: str = ""
    """The ConfigMap with the spec, mounted on the head."""
    init_image: str = ""
    """What brings dljob into user images; empty: they have it."""


def effective(manifest: DLJobManifest, image: str, ray_version: str) -> DLJobManifest:
    """The manifest with the image and Ray's version that it leaves out; `{rayVersion}` in `image` is replaced."""
    spec = manifest.spec
    version = spec.ray_version or ray_version
    filled = {"ray_version": version, "image": spec.image or image.replace("{rayVersion}", version)}
    return manifest.model_copy(update={"spec": spec.model_copy(update=filled)})


def dressed(plan: JobPlan, manifest: DLJobManifest, dress: Dress) -> Object:
    """The whole RayCluster to POST; `manifest` is effective, `plan` is its plan."""
    return ray_cluster(manifest, plan.node_groups, dress)


def undressed(manifest: DLJobManifest, groups: Mapping[str, NodeGroup]) -> Object:
    """The RayCluster as far as the spec alone says it, with the usual image and version where it names none."""
    metadata = manifest.metadata
    labels = {"app.kubernetes.io/managed-by": "dljob", "dljob.io/name": metadata.name}
    dress = Dress(metadata.name, metadata.namespace or "", labels=labels)
    return ray_cluster(effective(manifest, DEFAULT_IMAGE, DEFAULT_RAY_VERSION), groups, dress)


def ray_cluster(manifest: DLJobManifest, groups: Mapping[str, NodeGroup], dress: Dress) -> Object:
    """The RayCluster of these machines."""
    spec = manifest.spec
    auth = {"mode": "token", **({"secretName": dress.token_secret} if dress.token_secret else {})}
    head = head_pod(spec, init_image=dress.init_image, spec_map=dress.spec_map)
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": _metadata(manifest, dress),
        "spec": {
            "rayVersion": spec.ray_version,
            "authOptions": auth,
            "upgradeStrategy": {"type": "None"},
            "headGroupSpec": {
                # Ranks never live on the head, so Ray is told of no CPUs there.
                "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},  # noqa: S104 - the pod's own network
                "template": {**_labelled(dress.labels), "spec": head},
            },
            "workerGroupSpecs": [_workers(manifest, group, dress) for _, group in sorted(groups.items())],
        },
    }


def _metadata(manifest: DLJobManifest, dress: Dress) -> Object:
    optional: Object = {
        "namespace": dress.namespace,
        "ownerReferences": [dict(dress.owner)] if dress.owner else [],
        "annotations": dict(dress.annotations),
    }
    found = {key: value for key, value in optional.items() if value}
    return {"name": dress.name, **found, "labels": {**manifest.metadata.labels, **dress.labels}}


def _labelled(labels: Mapping[str, str]) -> Object:
    return {"metadata": {"labels": dict(labels)}} if labels else {}


def _workers(manifest: DLJobManifest, group: NodeGroup, dress: Dress) -> Object:
    """A worker group. minReplicas equals replicas, or an autoscaled gang would shrink to the head."""
    workers: Object = {
        "groupName": group.name,
        "replicas": group.replicas,
        "minReplicas": group.replicas,
        "maxReplicas": group.replicas,
        "numOfHosts": 1,
        "rayStartParams": {},
        "labels": dict(group.labels),
        "template": {
            **_labelled({**dress.labels, **dict(group.labels)}),
            "spec": worker_pod(manifest.spec, group, init_image=dress.init_image),
        },
    }
    told = told_resources(group)
    if told:
        # KubeRay refuses rayStartParams beside `resources`, which overrides what it would find by itself.
        workers["resources"] = told
    return workers
