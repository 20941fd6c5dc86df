"""Rendering of a job's RayCluster (ray.io/v1) for KubeRay 1.6.2, from the plan's machines and the spec's templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dljob.errors import Problem, SpecError
from dljob.plan.model import JobPlan, MachineGroup
from dljob.raycluster.domain_pods import with_domains
from dljob.raycluster.images import with_image_checks
from dljob.raycluster.overlay import Object, overlay
from dljob.raycluster.podspec import (
    counted_cpus,
    declared_resources,
    head_pod,
    with_library,
    with_parting,
    with_temporary_folder,
    worker_pod,
)
from dljob.raycluster.survival import ANNOTATION, keep
from dljob.raycluster.taints import TOLERATION_SECONDS, with_patience
from dljob.spec.cluster import ObjectRef
from dljob.spec.model import DLJobManifest, DLJobSpec

DEFAULT_RAY_VERSION = "2.60.0"
"""Used when neither the spec nor an operator names a version."""
DEFAULT_IMAGE = "rayproject/ray:{rayVersion}-py311"
"""Used when neither the spec nor an operator names an image."""
QUEUES = (
    *("kueue.x-k8s.io/", "volcano.sh/", "yunikorn.apache.org/", "kai.scheduler/"),
    *("ray.io/gang-scheduling-enabled", "ray.io/priority-class-name"),
)
"""Prefixes of labels for Kueue, and for the gang schedulers that KubeRay serves."""


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """The operator's part of a RayCluster, beside the spec; empty values are left out."""

    name: str
    namespace: str = ""
    owner: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """An ownerReference."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """Labels of the RayCluster and of each pod."""
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])
    """Annotations of the RayCluster."""
    token_secret: str = ""
    """Secret with Ray's token under `auth_token`; empty if KubeRay makes one."""
    spec_map: str = ""
    """ConfigMap with the spec, mounted on the head."""
    init_image: str = ""
    """Image that brings dljob into user images; empty if they have it."""
    toleration_seconds: int = TOLERATION_SECONDS
    """Seconds that pods stay on a Kubernetes node whose kubelet is silent."""
    version: str = ""
    """Version of the operator's dljob, which the images of node groups must have; empty: any."""


MOST_PULL_SECRETS = 16
"""As many as `spec.imagePullSecrets` may have."""


def effective(manifest: DLJobManifest, image: str, ray_version: str, pull_secrets: Sequence[str] = ()) -> DLJobManifest:
    """Return the manifest with image and Ray's version filled in; `{rayVersion}` in `image` is replaced.

    The operator's `pull_secrets` follow the job's own: Kubernetes tries one after another.
    """
    spec = manifest.spec
    job_secrets = {secret.name: secret for secret in spec.image_pull_secrets}
    secrets = job_secrets | {name: ObjectRef(name=name) for name in pull_secrets if name not in job_secrets}
    version = spec.ray_version or ray_version
    filled = {
        "ray_version": version,
        "image": spec.image or image.replace("{rayVersion}", version),
        "image_pull_secrets": tuple(secrets.values())[:MOST_PULL_SECRETS],
    }
    return manifest.model_copy(update={"spec": spec.model_copy(update=filled)})


def render_raycluster(plan: JobPlan, manifest: DLJobManifest, options: RenderOptions) -> Object:
    """Return the whole RayCluster to create; `manifest` is effective, `plan` is its plan."""
    return ray_cluster(manifest, plan.node_groups, options)


def preview_raycluster(plan: JobPlan, manifest: DLJobManifest) -> Object:
    """Return the RayCluster as far as the spec determines it, with defaults for image and version.

    Empty for a job that runs on an existing RayCluster.
    """
    return preview_of(plan.node_groups, manifest)


def preview_of(groups: Mapping[str, MachineGroup], manifest: DLJobManifest, *, init_image: str = "") -> Object:
    """Return the preview with these machines; `init_image` as in RenderOptions."""
    if manifest.spec.ray_cluster_ref:
        return {}
    metadata = manifest.metadata
    labels = {"app.kubernetes.io/managed-by": "dljob", "dljob.io/name": metadata.name}
    options = RenderOptions(metadata.name, metadata.namespace or "", labels=labels, init_image=init_image)
    return ray_cluster(effective(manifest, DEFAULT_IMAGE, DEFAULT_RAY_VERSION), groups, options)


def ray_cluster(manifest: DLJobManifest, groups: Mapping[str, MachineGroup], options: RenderOptions) -> Object:
    """Return the RayCluster of these machines, with the spec's templates merged into it.

    Raises:
        SpecError: A template has a value that cannot be merged.
    """
    try:
        return _rendered(manifest, groups, options)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        # The rules on templates refuse such values. Should one get past them, its job is invalid: an error here would
        # end every pass of the operator, also the one that is to stop the job.
        wrong = f"its templates cannot be merged into a RayCluster: {type(error).__name__}: {error}"
        hint = "check the kinds of values in the templates, and report this job: `dljob validate` should name the field"
        raise SpecError((Problem("spec", wrong, hint=hint),)) from error


def _rendered(manifest: DLJobManifest, groups: Mapping[str, MachineGroup], options: RenderOptions) -> Object:
    spec = manifest.spec
    # Where no Secret is named, KubeRay makes one.
    auth = {"mode": "token", **({"secretName": options.token_secret} if options.token_secret else {})}
    rendered: Object = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": _metadata(manifest, options),
        "spec": {
            "rayVersion": spec.ray_version,
            "authOptions": auth,
            # The operator changes sizes and affinities of a running job's RayCluster: running pods must stay.
            "upgradeStrategy": {"type": "None"},
            "headGroupSpec": _head(spec, options),
            "workerGroupSpecs": [_workers(spec, group, options) for _, group in sorted(groups.items())],
        },
    }
    keep(rendered, spec.gcs_fault_tolerance)
    cluster = overlay(rendered, spec.ray_cluster_template)
    # After the templates, since each of these adds to what a template says: hook, PYTHONPATH, tolerations, affinity.
    for group in (cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]):
        pod = with_temporary_folder(with_library(group["template"]["spec"]))
        pod = with_parting(pod, spec, _longest_drain(spec, group))
        pod = with_patience(pod, spec.fault_tolerance.node, options.toleration_seconds)
        machine_group = groups.get(group.get("groupName", ""))
        group["template"]["spec"] = with_domains(pod, machine_group, options.name) if machine_group else pod
    with_image_checks(cluster["spec"], spec.ray_version or "", options.version)
    return cluster


def _longest_drain(spec: DLJobSpec, group: Object) -> int:
    """Return the seconds of the longest drain of servers that may run in a group's pods; none runs on the head."""
    name = group.get("groupName")
    return max(
        (role.drain.timeout_seconds for role in spec.roles if name and role.drain and role.node_group in (None, name)),
        default=0,
    )


def _metadata(manifest: DLJobManifest, options: RenderOptions) -> Object:
    optional: Object = {
        "namespace": options.namespace,
        "ownerReferences": [dict(options.owner)] if options.owner else [],
        "annotations": {**options.annotations, **_survival(manifest.spec)},
    }
    filled = {key: value for key, value in optional.items() if value}
    return {"name": options.name, **filled, "labels": {**queue_labels(manifest), **options.labels}}


def _survival(spec: DLJobSpec) -> dict[str, str]:
    tolerance = spec.gcs_fault_tolerance
    return {ANNOTATION: tolerance.backend} if tolerance else {}


def queue_labels(manifest: DLJobManifest) -> dict[str, str]:
    """Return labels for a queue or gang scheduler: the job's own with their prefixes, and spec.scheduling over them.

    Other labels stay on the DLJob: with labels of Helm or Argo, those tools would claim the RayCluster.
    """
    scheduling = manifest.spec.scheduling
    job_labels = {name: value for name, value in manifest.metadata.labels.items() if name.startswith(QUEUES)}
    named = {
        "kueue.x-k8s.io/queue-name": scheduling.queue_name,
        "kueue.x-k8s.io/priority-class": scheduling.priority_class_name,
    }
    return {**job_labels, **scheduling.labels, **{name: value for name, value in named.items() if value}}


def _head(spec: DLJobSpec, options: RenderOptions) -> Object:
    """Return the head group. Ray counts no CPUs there, since ranks never live on the head."""
    pod = head_pod(spec, init_image=options.init_image, spec_map=options.spec_map)
    return {
        "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},  # noqa: S104 - the pod's own network
        "template": overlay({**_labelled(options.labels), "spec": pod}, spec.head.template),
    }


def _workers(spec: DLJobSpec, group: MachineGroup, options: RenderOptions) -> Object:
    """Return a worker group. Without bounds minReplicas equals replicas, or a gang could shrink to the head."""
    low, high = group.bounds or (group.replicas, group.replicas)
    pod = worker_pod(spec, group, init_image=options.init_image)
    # A derived group has no template in the spec; rayClusterTemplate may still change it.
    template = {declared.name: declared.template for declared in spec.node_groups}.get(group.name, {})
    workers: Object = {
        "groupName": group.name,
        "replicas": group.replicas,
        "minReplicas": low,
        "maxReplicas": high,
        "numOfHosts": 1,
        "rayStartParams": {},
        "labels": {**dict(group.labels), **counted_cpus(group)},
        "template": overlay({**_labelled({**options.labels, **dict(group.labels)}), "spec": pod}, template),
    }
    resources = declared_resources(group)
    if resources:
        # KubeRay refuses rayStartParams beside `resources`, which overrides what it would find by itself.
        workers["resources"] = resources
    return workers


def _labelled(labels: Mapping[str, str]) -> Object:
    return {"metadata": {"labels": dict(labels)}} if labels else {}
