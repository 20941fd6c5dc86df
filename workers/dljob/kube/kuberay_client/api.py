"""RayClusters, RayJobs, and our DLJobs in the same manner, for callers that block and look at None and False."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from dljob.control.fields import text
from dljob.kube.api import ApiError, Json, Kube
from dljob.kube.kuberay_client.clusters import over, ready, runs
from dljob.kube.kuberay_client.sync import wait
from dljob.kube.objects import Objects
from dljob.kube.resources import DLJOBS, RAYCLUSTERS, RAYJOBS, Resource

log = logging.getLogger(__name__)
T = TypeVar("T")

GROUP = RAYCLUSTERS.group
CLUSTER_VERSION = RAYCLUSTERS.version
CLUSTER_PLURAL = RAYCLUSTERS.plural
CLUSTER_KIND = RAYCLUSTERS.kind
JOB_VERSION = RAYJOBS.version
JOB_PLURAL = RAYJOBS.plural
JOB_KIND = RAYJOBS.kind


class _Api:
    """What the kinds have in common. `kube` is for tests; else the usual way to the cluster is taken at first use."""

    resource: Resource

    def __init__(self, *, kube: Kube | None = None, context: str | None = None, kubeconfig: str | None = None) -> None:
        self._kube = kube
        self._way = {"context": context, "kubeconfig": kubeconfig}

    def close(self) -> None:
        """Drop the connection."""
        if self._kube is not None:
            wait(self._kube.close())
            self._kube = None

    def _try(self, verb: str, name: str, work: Callable[[Objects], Coroutine[Any, Any, T]]) -> T | None:
        """The result of some calls; None, and the reason in the log, when one fails."""

        async def attempt() -> T:
            if self._kube is None:
                self._kube = await Kube.connect(**self._way, manager="kuberay-client")
            return await work(Objects(self._kube, self.resource))

        try:
            return wait(attempt())
        except ApiError as error:
            log.error("cannot %s %s %s: %s", verb, self.resource.kind, name, error.message)
            return None

    def _list(self, k8s_namespace: str, label_selector: str) -> Json | None:
        async def all_of_them(objects: Objects) -> Json:
            items = await objects.list(k8s_namespace, label_selector)
            return {"apiVersion": self.resource.api_version, "kind": f"{self.resource.kind}List", "items": items}

        return self._try("list", f"in {k8s_namespace}", all_of_them)

    def _get(self, name: str, k8s_namespace: str) -> Json | None:
        return self._try("get", name, lambda objects: objects.get(name, k8s_namespace))

    def _create(self, body: Json | None, k8s_namespace: str) -> Json | None:
        if not body:
            log.error("cannot create a %s: there is no body", self.resource.kind)
            return None
        name = text(body, "metadata", "name")
        return self._try("create", name, lambda objects: objects.create(body, k8s_namespace))

    def _delete(self, name: str, k8s_namespace: str) -> bool:
        return self._try("delete", name, lambda objects: objects.delete(name, k8s_namespace)) is not None

    def _patch(self, name: str, patch: Json, k8s_namespace: str) -> bool:
        return self._try("patch", name, lambda objects: objects.patch(name, patch, k8s_namespace)) is not None

    def _await(
        self, so: Callable[[Json], bool], name: str, k8s_namespace: str, timeout: float, pause: float
    ) -> Json | None:
        """The status as soon as it is so; None when it is not in time, or there is no such object."""
        return self._try("wait for", name, lambda objects: objects.status_when(so, name, k8s_namespace, timeout, pause))


class RayClusterApi(_Api):
    """RayClusters."""

    resource = RAYCLUSTERS

    def list_ray_clusters(self, k8s_namespace: str = "default", label_selector: str = "") -> Json | None:
        """The RayClusterList of a namespace; None when it cannot be had."""
        return self._list(k8s_namespace, label_selector)

    def get_ray_cluster(self, name: str, k8s_namespace: str = "default") -> Json | None:
        """A RayCluster; None when it cannot be had."""
        return self._get(name, k8s_namespace)

    def get_ray_cluster_status(
        self, name: str, k8s_namespace: str = "default", timeout: int = 60, delay_between_attempts: int = 5
    ) -> Json | None:
        """Its status as soon as KubeRay has written one; None when not in time."""
        return self._await(bool, name, k8s_namespace, timeout, delay_between_attempts)

    def wait_until_ray_cluster_running(
        self, name: str, k8s_namespace: str = "default", timeout: int = 60, delay_between_attempts: int = 5
    ) -> bool:
        """Whether it is `ready` in time."""
        return self._await(ready, name, k8s_namespace, timeout, delay_between_attempts) is not None

    def create_ray_cluster(self, body: Json, k8s_namespace: str = "default") -> Json | None:
        """The RayCluster as it was created; None when it was not."""
        return self._create(body, k8s_namespace)

    def delete_ray_cluster(self, name: str, k8s_namespace: str = "default") -> bool:
        """Whether it was deleted."""
        return self._delete(name, k8s_namespace)

    def patch_ray_cluster(self, name: str, ray_patch: Json, k8s_namespace: str = "default") -> bool:
        """Whether a merge patch was taken."""
        return self._patch(name, ray_patch, k8s_namespace)


class _JobsApi(_Api):
    """What RayJobs and DLJobs have in common."""

    _over: Callable[[Json], bool]

    def submit_job(self, k8s_namespace: str = "default", job: Json | None = None) -> Json | None:
        """The job as it was created; None when it was not."""
        return self._create(job, k8s_namespace)

    def get_job(self, name: str, k8s_namespace: str = "default") -> Json | None:
        """A job; None when it cannot be had."""
        return self._get(name, k8s_namespace)

    def list_jobs(self, k8s_namespace: str = "default", label_selector: str = "") -> Json | None:
        """The list of a namespace's jobs; None when it cannot be had."""
        return self._list(k8s_namespace, label_selector)

    def wait_until_job_finished(
        self, name: str, k8s_namespace: str = "default", timeout: int = 60, delay_between_attempts: int = 5
    ) -> bool:
        """Whether it is over in time, however it ended."""
        return self._await(self._over, name, k8s_namespace, timeout, delay_between_attempts) is not None

    def delete_job(self, name: str, k8s_namespace: str = "default") -> bool:
        """Whether it was deleted."""
        return self._delete(name, k8s_namespace)


class RayjobApi(_JobsApi):
    """RayJobs."""

    resource = RAYJOBS
    _over = staticmethod(over)

    def get_job_status(
        self, name: str, k8s_namespace: str = "default", timeout: int = 60, delay_between_attempts: int = 5
    ) -> Json | None:
        """Its status as soon as KubeRay has written one; None when not in time."""
        return self._await(bool, name, k8s_namespace, timeout, delay_between_attempts)

    def wait_until_job_running(
        self, name: str, k8s_namespace: str = "default", timeout: int = 60, delay_between_attempts: int = 5
    ) -> bool:
        """Whether it runs, or is over, in time."""
        return self._await(runs, name, k8s_namespace, timeout, delay_between_attempts) is not None

    def suspend_job(self, name: str, k8s_namespace: str = "default") -> bool:
        """Whether it was told to give its cluster back."""
        return self._patch(name, {"spec": {"suspend": True}}, k8s_namespace)

    def resubmit_job(self, name: str, k8s_namespace: str = "default") -> bool:
        """Whether a suspended one was told to go on."""
        return self._patch(name, {"spec": {"suspend": False}}, k8s_namespace)


def _ended(status: Json) -> bool:
    return status.get("phase") in ("Succeeded", "Failed")


class DLJobApi(_JobsApi):
    """DLJobs; upstream has no such thing."""

    resource = DLJOBS
    _over = staticmethod(_ended)
