"""Objects on the API server: RayClusters, RayJobs, and our DLJobs in the same manner."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from dljob.control.fields import part, text
from dljob.kube.api import ApiError, Json, Kube
from dljob.kube.kuberay_client.sync import wait
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

FINISHED = ("SUCCEEDED", "FAILED", "STOPPED")
"""`status.jobStatus` of a RayJob that is over."""


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

    async def _client(self) -> Kube:
        if self._kube is None:
            self._kube = await Kube.connect(**self._way, manager="kuberay-client")
        return self._kube

    def _try(self, what: str, work: Callable[[Kube], Coroutine[Any, Any, T]], failed: T) -> T:
        """The result of some calls; what was promised for a failure, and the reason in the log, when one fails."""

        async def attempt() -> T:
            return await work(await self._client())

        try:
            return wait(attempt())
        except ApiError as error:
            log.error("cannot %s: %s", what, error.message)
            return failed

    def _list(self, k8s_namespace: str, label_selector: str) -> Json | None:
        async def all_of_them(kube: Kube) -> Json | None:
            items = await kube.list(self.resource, k8s_namespace, labels=label_selector)
            return {"apiVersion": self.resource.api_version, "kind": f"{self.resource.kind}List", "items": items}

        return self._try(f"list {self.resource.plural} of {k8s_namespace}", all_of_them, None)

    def _get(self, name: str, k8s_namespace: str) -> Json | None:
        async def one(kube: Kube) -> Json | None:
            return await kube.get(self.resource, name, k8s_namespace)

        return self._try(f"get {self.resource.kind} {name}", one, None)

    def _create(self, body: Json | None, k8s_namespace: str) -> Json | None:
        if not body:
            log.error("cannot create a %s: there is no body", self.resource.kind)
            return None
        whole = {"apiVersion": self.resource.api_version, "kind": self.resource.kind, **body}

        async def make(kube: Kube) -> Json | None:
            return await kube.create(self.resource, whole, k8s_namespace)

        return self._try(f"create {self.resource.kind} {text(body, 'metadata', 'name')}", make, None)

    def _delete(self, name: str, k8s_namespace: str) -> bool:
        async def remove(kube: Kube) -> bool:
            await kube.delete(self.resource, name, k8s_namespace)
            return True

        return self._try(f"delete {self.resource.kind} {name}", remove, failed=False)

    def _patch(self, name: str, patch: Json, k8s_namespace: str) -> bool:
        async def change(kube: Kube) -> bool:
            await kube.patch(self.resource, name, k8s_namespace, patch)
            return True

        return self._try(f"patch {self.resource.kind} {name}", change, failed=False)

    def _await(
        self, name: str, k8s_namespace: str, timeout: float, pause: float, check: Callable[[Json], bool]
    ) -> Json | None:
        """The status as soon as it is so; None when it is not within `timeout` seconds, or there is no such object."""
        end = time.monotonic() + timeout
        while True:
            found = self._get(name, k8s_namespace)
            if found is None:
                return None
            status = dict(part(found, "status"))
            if check(status):
                return status
            if time.monotonic() + pause > end:
                log.info("%s %s: not within %g s", self.resource.kind, name, timeout)
                return None
            time.sleep(pause)


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
        return self._await(name, k8s_namespace, timeout, delay_between_attempts, bool)

    def wait_until_ray_cluster_running(
        self, name: str, k8s_namespace: str = "default", timeout: int = 60, delay_between_attempts: int = 5
    ) -> bool:
        """Whether it is `ready` in time."""

        def ready(status: Json) -> bool:
            return status.get("state") == "ready"

        return self._await(name, k8s_namespace, timeout, delay_between_attempts, ready) is not None

    def create_ray_cluster(self, body: Json, k8s_namespace: str = "default") -> Json | None:
        """The RayCluster as it was created; None when it was not."""
        return self._create(body, k8s_namespace)

    def delete_ray_cluster(self, name: str, k8s_namespace: str = "default") -> bool:
        """Whether it was deleted."""
        return self._delete(name, k8s_namespace)

    def patch_ray_cluster(self, name: str, ray_patch: Json, k8s_namespace: str = "default") -> bool:
        """Whether a merge patch was taken."""
        return self._patch(name, ray_patch, k8s_namespace)


class RayjobApi(_Api):
    """RayJobs."""

    resource = RAYJOBS

    def submit_job(self, k8s_namespace: str = "default", job: Json | None = None) -> Json | None:
        """The RayJob as it was created; None when it was not."""
        return self._create(job, k8s_namespace)

    def get_job(self, name: str, k8s_namespace: str = "default") -> Json | None:
        """A RayJob; None when it cannot be had."""
        return self._get(name, k8s_namespace)

    def list_jobs(self, k8s_namespace: str = "default", label_selector: str = "") -> Json | None:
        """The RayJobList of a namespace; None when it cannot be had."""
        return self._list(k8s_namespace, label_selector)

    def get_job_status(
        self, name: str, k8s_namespace: str = "default", timeout: int = 60, delay_between_attempts: int = 5
    ) -> Json | None:
        """Its status as soon as KubeRay has written one; None when not in time."""
        return self._await(name, k8s_namespace, timeout, delay_between_attempts, bool)

    def wait_until_job_finished(
        self, name: str, k8s_namespace: str = "default", timeout: int = 60, delay_between_attempts: int = 5
    ) -> bool:
        """Whether it is over in time, however it ended."""

        def over(status: Json) -> bool:
            return status.get("jobStatus") in FINISHED or status.get("jobDeploymentStatus") in ("Complete", "Failed")

        return self._await(name, k8s_namespace, timeout, delay_between_attempts, over) is not None

    def wait_until_job_running(
        self, name: str, k8s_namespace: str = "default", timeout: int = 60, delay_between_attempts: int = 5
    ) -> bool:
        """Whether it runs, or is over, in time."""

        def runs(status: Json) -> bool:
            return status.get("jobStatus") in ("RUNNING", *FINISHED)

        return self._await(name, k8s_namespace, timeout, delay_between_attempts, runs) is not None

    def suspend_job(self, name: str, k8s_namespace: str = "default") -> bool:
        """Whether it was told to give its cluster back."""
        return self._patch(name, {"spec": {"suspend": True}}, k8s_namespace)

    def resubmit_job(self, name: str, k8s_namespace: str = "default") -> bool:
        """Whether a suspended one was told to go on."""
        return self._patch(name, {"spec": {"suspend": False}}, k8s_namespace)

    def delete_job(self, name: str, k8s_namespace: str = "default") -> bool:
        """Whether it was deleted."""
        return self._delete(name, k8s_namespace)


class DLJobApi(_Api):
    """DLJobs; upstream has no such thing."""

    resource = DLJOBS

    def submit_job(self, k8s_namespace: str = "default", job: Json | None = None) -> Json | None:
        """The DLJob as it was created; None when it was not."""
        return self._create(job, k8s_namespace)

    def get_job(self, name: str, k8s_namespace: str = "default") -> Json | None:
        """A DLJob; None when it cannot be had."""
        return self._get(name, k8s_namespace)

    def list_jobs(self, k8s_namespace: str = "default", label_selector: str = "") -> Json | None:
        """The DLJobList of a namespace; None when it cannot be had."""
        return self._list(k8s_namespace, label_selector)

    def wait_until_job_finished(
        self, name: str, k8s_namespace: str = "default", timeout: int = 60, delay_between_attempts: int = 5
    ) -> bool:
        """Whether it is over in time, however it ended."""

        def over(status: Json) -> bool:
            return status.get("phase") in ("Succeeded", "Failed")

        return self._await(name, k8s_namespace, timeout, delay_between_attempts, over) is not None

    def delete_job(self, name: str, k8s_namespace: str = "default") -> bool:
        """Whether it was deleted."""
        return self._delete(name, k8s_namespace)
