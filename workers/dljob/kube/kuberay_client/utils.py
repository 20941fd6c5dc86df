"""RayCluster bodies as plain data: built, edited and checked. Mutators return (cluster, whether it was changed)."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Sequence
from typing import TypeAlias, cast

from dljob.kube.api import Json
from dljob.kube.resources import RAYCLUSTERS

log = logging.getLogger(__package__)

Done: TypeAlias = tuple[Json, bool]
Devices: TypeAlias = dict[str, int | str]
"""Extended resources of a pod: `{"nvidia.com/gpu": 8}`."""
HEAD_PORTS = (("gcs-server", 6379), ("dashboard", 8265), ("client", 10001))
_NAME = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
_LABEL = re.compile(r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")
_NAME_LIMIT = 53
"""Longest name of a RayCluster in KubeRay."""


class ClusterUtils:
    """Builds and edits RayCluster bodies, without any call to a cluster."""

    # All mutators work on a copy: after a failed step the caller's cluster is as it was.
    def populate_meta(
        self, cluster: Json, name: str, k8s_namespace: str, labels: dict[str, str] | None, ray_version: str
    ) -> Done:
        """Set name, namespace, labels and Ray's version."""
        if not self.is_valid_name(name) or not all(self.is_valid_label(v) for v in (labels or {}).values()):
            return cluster, False
        made = copy.deepcopy(cluster)
        made |= {"apiVersion": RAYCLUSTERS.api_version, "kind": RAYCLUSTERS.kind}
        made["metadata"] = {"name": name, "namespace": k8s_namespace, "labels": dict(labels or {})}
        made.setdefault("spec", {})["rayVersion"] = ray_version
        return made, True

    def populate_ray_head(  # noqa: PLR0917 - upstream's signature
        self,
        cluster: Json,
        ray_image: str,
        service_type: str,
        cpu_requests: str,
        memory_requests: str,
        cpu_limits: str,
        memory_limits: str,
        ray_start_params: dict[str, str],
        devices: Devices | None = None,
    ) -> Done:
        """Set the head group; requests and limits are quantities ("2", "3G")."""
        made = copy.deepcopy(cluster)
        container = _container(
            "ray-head", ray_image, (cpu_requests, memory_requests), (cpu_limits, memory_limits), devices
        )
        container["ports"] = [{"containerPort": port, "name": name} for name, port in HEAD_PORTS]
        made.setdefault("spec", {})["headGroupSpec"] = {
            "serviceType": service_type,
            "rayStartParams": dict(ray_start_params),
            "template": {"spec": {"containers": [container]}},
        }
        return made, True

    def populate_worker_group(  # noqa: PLR0917 - upstream's signature
        self,
        cluster: Json,
        group_name: str,
        ray_image: str,
        ray_command: Sequence[str] | None,
        init_image: str | None,
        cpu_requests: str,
        memory_requests: str,
        cpu_limits: str,
        memory_limits: str,
        replicas: int,
        min_replicas: int,
        max_replicas: int,
        ray_start_params: dict[str, str],
        devices: Devices | None = None,
    ) -> Done:
        """Add a worker group; `min_replicas` and `max_replicas` below 0 mean `replicas`."""
        # Upstream's convention; KubeRay itself knows no negative bounds.
        low, high = (replicas if bound < 0 else bound for bound in (min_replicas, max_replicas))
        if not self.is_valid_name(group_name) or not 0 <= low <= replicas <= high:
            log.error("worker group %s: needs 0 <= %d <= %d <= %d", group_name, low, replicas, high)
            return cluster, False
        if any(group["groupName"] == group_name for group in _groups(cluster)):
            log.error("worker group %s exists already", group_name)
            return cluster, False
        made = copy.deepcopy(cluster)
        requests, limits = (cpu_requests, memory_requests), (cpu_limits, memory_limits)
        container = _container("ray-worker", ray_image, requests, limits, devices)
        if ray_command:
            container["command"] = list(ray_command)
        pod: Json = {"containers": [container]}
        if init_image:
            pod["initContainers"] = [{"name": "init", "image": init_image}]
        group: Json = {"groupName": group_name, "replicas": replicas, "minReplicas": low, "maxReplicas": high}
        group |= {"rayStartParams": dict(ray_start_params), "template": {"spec": pod}}
        made.setdefault("spec", {}).setdefault("workerGroupSpecs", []).append(group)
        return made, True

    def update_worker_group_replicas(
        self, cluster: Json, group_name: str, max_replicas: int, min_replicas: int, replicas: int
    ) -> Done:
        """Set the bounds and the number of replicas of a worker group."""
        made = copy.deepcopy(cluster)
        group = _group(made, group_name)
        if group is None or not 0 <= min_replicas <= replicas <= max_replicas:
            return cluster, False
        group |= {"replicas": replicas, "minReplicas": min_replicas, "maxReplicas": max_replicas}
        return made, True

    def update_worker_group_resources(  # noqa: PLR0917 - upstream's signature
        self,
        cluster: Json,
        group_name: str,
        cpu_requests: str,
        memory_requests: str,
        cpu_limits: str,
        memory_limits: str,
        container_name: str = "unspecified",
        devices: Devices | None = None,
    ) -> Done:
        """Set the resources of containers of a worker group: the first one, a named one, or `all_containers`."""
        made = copy.deepcopy(cluster)
        group = _group(made, group_name)
        if group is None:
            return cluster, False
        containers: list[Json] = group["template"]["spec"]["containers"]
        # These two words are upstream's; any other text is a container's name.
        if container_name == "unspecified":
            containers = containers[:1]
        elif container_name != "all_containers":
            containers = [one for one in containers if one["name"] == container_name]
        for container in containers:
            requests, limits = (cpu_requests, memory_requests), (cpu_limits, memory_limits)
            container["resources"] = _resources(requests, limits, devices)
        return (made, True) if containers else (cluster, False)

    def duplicate_worker_group(self, cluster: Json, group_name: str, new_group_name: str) -> Done:
        """Copy a worker group under another name."""
        made = copy.deepcopy(cluster)
        group = _group(made, group_name)
        taken = _group(made, new_group_name) is not None
        if group is None or taken or not self.is_valid_name(new_group_name):
            return cluster, False
        # A deep copy: a later edit of one group must not change the other.
        made["spec"]["workerGroupSpecs"].append({**copy.deepcopy(group), "groupName": new_group_name})
        return made, True

    def delete_worker_group(self, cluster: Json, group_name: str) -> Done:
        """Remove a worker group."""
        left = [group for group in _groups(cluster) if group["groupName"] != group_name]
        if len(left) == len(_groups(cluster)):
            log.error("there is no worker group %s", group_name)
            return cluster, False
        made = copy.deepcopy(cluster)
        made["spec"]["workerGroupSpecs"] = left
        return made, True

    def is_valid_name(self, name: str) -> bool:
        """Whether a name is valid for a cluster or group: DNS-1035, at most 53 characters."""
        fine = len(name) <= _NAME_LIMIT and bool(_NAME.match(name))
        if not fine:
            log.error("%r is no name: small letters, digits and -, from a letter on, at most %d", name, _NAME_LIMIT)
        return fine

    def is_valid_label(self, name: str) -> bool:
        """Whether a value is valid for a label."""
        fine = bool(_LABEL.match(name))
        if not fine:
            log.error("%r is no label: letters, digits, -, _ and ., at most 63", name)
        return fine


def _groups(cluster: Json) -> list[Json]:
    return cast("list[Json]", cluster.get("spec", {}).get("workerGroupSpecs", []))


def _group(cluster: Json, name: str) -> Json | None:
    found = next((group for group in _groups(cluster) if group["groupName"] == name), None)
    if found is None:
        log.info("there is no worker group %s", name)
    return found


def _resources(requests: tuple[str, str], limits: tuple[str, str], devices: Devices | None) -> Json:
    own = {name: str(count) for name, count in (devices or {}).items()}
    # Extended resources must be equal in both: Kubernetes does not overcommit devices.
    both = {"requests": requests, "limits": limits}
    return {kind: {"cpu": cpu, "memory": memory, **own} for kind, (cpu, memory) in both.items()}


def _container(
    name: str, image: str, requests: tuple[str, str], limits: tuple[str, str], devices: Devices | None
) -> Json:
    return {"name": name, "image": image, "resources": _resources(requests, limits, devices)}
