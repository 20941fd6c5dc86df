"""Builder of RayClusters, and ready-made ones in four sizes."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from dljob.kube.api import Json
from dljob.kube.kuberay_client.utils import ClusterUtils, Devices, Done
from dljob.raycluster.render import DEFAULT_IMAGE, DEFAULT_RAY_VERSION

IMAGE = DEFAULT_IMAGE.replace("{rayVersion}", DEFAULT_RAY_VERSION)


class ClusterBuilder:
    """Builds one RayCluster step by step; after a failed step `succeeded` is False and `get_cluster` returns None."""

    def __init__(self) -> None:
        self.cluster: Json = {}
        self.succeeded = True
        self.cluster_utils = ClusterUtils()

    def build_meta(
        self,
        name: str,
        k8s_namespace: str = "default",
        labels: dict[str, str] | None = None,
        ray_version: str = DEFAULT_RAY_VERSION,
    ) -> ClusterBuilder:
        """Set name, namespace, labels and Ray's version."""
        return self._take(self.cluster_utils.populate_meta(self.cluster, name, k8s_namespace, labels, ray_version))

    def build_head(  # noqa: PLR0917 - upstream's signature
        self,
        ray_image: str = IMAGE,
        service_type: str = "ClusterIP",
        cpu_requests: str = "2",
        memory_requests: str = "3G",
        cpu_limits: str = "2",
        memory_limits: str = "3G",
        ray_start_params: dict[str, str] | None = None,
        devices: Devices | None = None,
    ) -> ClusterBuilder:
        """Set the head's image, service, requests and limits (quantities: "2", "3G"), start parameters and devices."""
        resources = (cpu_requests, memory_requests, cpu_limits, memory_limits)
        params = ray_start_params or {"dashboard-host": "0.0.0.0"}  # noqa: S104 - of the pod
        return self._take(
            self.cluster_utils.populate_ray_head(self.cluster, ray_image, service_type, *resources, params, devices)
        )

    def build_worker(  # noqa: PLR0917
        self,
        group_name: str,
        ray_image: str = IMAGE,
        ray_command: Sequence[str] | None = None,
        init_image: str | None = None,
        cpu_requests: str = "1",
        memory_requests: str = "1G",
        cpu_limits: str = "2",
        memory_limits: str = "2G",
        replicas: int = 1,
        min_replicas: int = -1,
        max_replicas: int = -1,
        ray_start_params: dict[str, str] | None = None,
        devices: Devices | None = None,
    ) -> ClusterBuilder:
        """Add a group of workers, with arguments as in `build_head`; bounds below 0 mean `replicas`."""
        resources = (cpu_requests, memory_requests, cpu_limits, memory_limits)
        counts = (replicas, min_replicas, max_replicas)
        images = (ray_image, ray_command, init_image)
        return self._take(
            self.cluster_utils.populate_worker_group(
                self.cluster, group_name, *images, *resources, *counts, ray_start_params or {}, devices
            )
        )

    def get_cluster(self) -> Json | None:
        """Return the built cluster; None when a step failed."""
        return copy.deepcopy(self.cluster) if self.succeeded else None

    def _take(self, done: Done) -> ClusterBuilder:
        self.cluster, fine = done
        self.succeeded = self.succeeded and fine
        return self


class Director:
    """RayClusters in four sizes: a head alone, and one, three or ten workers."""

    def build_basic_cluster(
        self, name: str, k8s_namespace: str = "default", labels: dict[str, str] | None = None
    ) -> Json | None:
        """Build a cluster that has a head and no workers; None when a step failed, such as an invalid name."""
        return ClusterBuilder().build_meta(name, k8s_namespace, labels).build_head().get_cluster()

    def build_small_cluster(
        self, name: str, k8s_namespace: str = "default", labels: dict[str, str] | None = None
    ) -> Json | None:
        """Build a cluster with one worker of 1 to 2 CPUs."""
        return self._with_workers(name, k8s_namespace, labels, count=1, low="1", high="2")

    def build_medium_cluster(
        self, name: str, k8s_namespace: str = "default", labels: dict[str, str] | None = None
    ) -> Json | None:
        """Build a cluster with three workers of 2 to 3 CPUs."""
        return self._with_workers(name, k8s_namespace, labels, count=3, low="2", high="3")

    def build_large_cluster(
        self, name: str, k8s_namespace: str = "default", labels: dict[str, str] | None = None
    ) -> Json | None:
        """Build a cluster with ten workers of 3 to 4 CPUs."""
        return self._with_workers(name, k8s_namespace, labels, count=10, low="3", high="4")

    def _with_workers(
        self, name: str, k8s_namespace: str, labels: dict[str, str] | None, *, count: int, low: str, high: str
    ) -> Json | None:
        made = ClusterBuilder().build_meta(name, k8s_namespace, labels).build_head()
        workers = made.build_worker(
            f"{name[:44]}-workers",  # 44 and 8 more stay below KubeRay's limit of 53
            cpu_requests=low,
            memory_requests=f"{low}G",
            cpu_limits=high,
            memory_limits=f"{high}G",
            replicas=count,
            max_replicas=2 * count,
        )
        return workers.get_cluster()
