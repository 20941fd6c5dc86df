"""RayClusters, RayJobs, and in the same way DLJobs, for blocking callers that test for None and False."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from dljob.kube.api import ApiError, Json, Kube
from dljob.kube.kuberay_client.clusters import over, ready, runs
from dljob.kube.kuberay_client.sync import wait
from dljob.kube.objects import Objects
from dljob.kube.resources import DLJOBS, RAYCLUSTERS, RAYJOBS, Resource
from dljob.reconcile.state.fields import text

log = logging.getLogger(__package__)
T = TypeVar("T")

GROUP = RAYCLUSTERS.group
CLUSTER_VERSION = RAYCLUSTERS.version
CLUSTER_PLURAL = RAYCLUSTERS.plural
CLUSTER_KIND = RAYCLUSTERS.kind
JOB_VERSION = RAYJOBS.version
JOB_PLURAL = RAYJOBS.plural
JOB_KIND = RAYJOBS.kind


class _Api:
    """Common base of the kinds. `kube` is for tests; by default the connection is found at the first call."""

    resource: Resource

    def __init__(self, *, kube: Kube | None = None, context: str | None = None, kubeconfig: str | None = None) -> None:
        self._kube = kube
        self._way = {"context": context, "kubeconfig": kubeconfig}

    def close(self) -> None:
        """Close the connection."""
        if self._kube is not None:
            # A later call connects again; the old connection cannot be used after its close.
            wait(self._kube.close())
            self._kube = None

    def _try(self, verb: str, name: str, work: Callable[[Objects], Coroutine[Any, Any, T]]) -> T | None:
        """Return the result of some calls; on a failure log the reason and return None."""

        async def attempt() -> T:
            if self._kube is None:
                # In the loop of `sync`, to which its connections belong.
                self._kube = await Kube.connect(**self._way, manager="kuberay-client")
            return await work(Objects(self._kube, self.resource))

        try:
            return wait(attempt())
        except ApiError as error:
            # Upstream's convention: the caller gets None or False, and the reason only here.
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
        """Return the status once `so` holds for it; None when that takes too long, or there is no such object."""
        return self._try("wait for", name, lambda objects: objects.status_when(so, name, k8s_namespace, timeout, pause))


class RayClusterApi(_Api):
    """API of RayClusters."""

    resource = RAYCLUSTERS

    def list_ray_clusters(self, k8s_namespace: str = "default", label_selector: str = "") -> Json | None:
        """Return the RayClusterList of a namespace; None on failure."""
        return self._list(k8s_namespace, label_selector)

    def get_ray_cluster(self, name: str, k8s_namespace: str = "default") -> Json | None:
        """Return a RayCluster; None on failure."""
        return self._get(name, k8s_namespace)

    def get_ray_cluster_status(
        self, name: str, k8s_namespace: str = "default", timeout: int = 60, delay_between_attempts: int = 5
    ) -> Json | None:
        """Return its status once KubeRay has written one; None when that takes too long."""
        return self._await(bool, name, k8s_namespace, timeout, delay_between_attempts)

    def wait_until_ray_cluster_running(
        self, name: str, k8s_namespace: str = "default", timeout: int = 60, delay_between_attempts: int = 5
    ) -> bool:
        """Wait for a RayCluster to become `ready`; return whether it did in time."""
        return self._await(ready, name, k8s_namespace, timeout, delay_between_attempts) is not None

    def create_ray_cluster(self, body: Json, k8s_namespace: str = "default") -> Json | None:
        """Create a RayCluster and return it; None on failure."""
        return self._create(body, k8s_namespace)

    def delete_ray_cluster(self, name: str, k8s_namespace: str = "default") -> bool:
        """Delete a RayCluster; return whether that succeeded."""
        return self._delete(name, k8s_namespace)

    def patch_ray_cluster(self, name: str, ray_patch: Json, k8s_namespace: str = "default") -> bool:
        """Apply a merge patch; return whether that succeeded."""
        return self._patch(name, ray_patch, k8s_namespace)


class _JobsApi(_Api):
    """Common base of RayJobs and DLJobs."""

    _over: Callable[[Json], bool]

    def submit_job(self, k8s_namespace: str = "default", job: Json | None = None) -> Json | None:
        """Create a job and return it; None on failure."""
        return self._create(job, k8s_namespace)

    def get_job(self, name: str, k8s_namespace: str = "default") -> Json | None:
        """Return a job; None on failure."""
        return self._get(name, k8s_namespace)

    def list_jobs(self, k8s_namespace: str = "default", label_selector: str = "") -> Json | None:
        """Return the list of a namespace's jobs; None on failure."""
        return self._list(k8s_namespace, label_selector)

    def wait_until_job_finished(
        self, name: str, k8s_namespace: str = "default", timeout: int = 60, delay_between_attempts: int = 5
    ) -> bool:
        """Wait for the end of a job, with success or not; return whether it came in time."""
        return self._await(self._over, name, k8s_namespace, timeout, delay_between_attempts) is not None

    def delete_job(self, name: str, k8s_namespace: str = "default") -> bool:
        """Delete a job; return whether that succeeded."""
        return self._delete(name, k8s_namespace)


class RayjobApi(_JobsApi):
    """API of RayJobs."""

    resource = RAYJOBS
    _over = staticmethod(over)

    def get_job_status(
        self, name: str, k8s_namespace: str = "default", timeout: int = 60, delay_between_attempts: int = 5
    ) -> Json | None:
        """Return its status once KubeRay has written one; None when that takes too long."""
        return self._await(bool, name, k8s_namespace, timeout, delay_between_attempts)

    def wait_until_job_running(
        self, name: str, k8s_namespace: str = "default", timeout: int = 60, delay_between_attempts: int = 5
    ) -> bool:
        """Wait until a job runs or has ended; return whether that came in time."""
        return self._await(runs, name, k8s_namespace, timeout, delay_between_attempts) is not None

    def suspend_job(self, name: str, k8s_namespace: str = "default") -> bool:
        """Suspend a job, which releases its cluster; return whether the order was accepted."""
        return self._patch(name, {"spec": {"suspend": True}}, k8s_namespace)

    def resubmit_job(self, name: str, k8s_namespace: str = "default") -> bool:
        """Resume a suspended job; return whether the order was accepted."""
        return self._patch(name, {"spec": {"suspend": False}}, k8s_namespace)


def _ended(status: Json) -> bool:
    return status.get("phase") in ("Succeeded", "Failed")


class DLJobApi(_JobsApi):
    """API of DLJobs, which upstream does not have."""

    resource = DLJOBS
    _over = staticmethod(_ended)
