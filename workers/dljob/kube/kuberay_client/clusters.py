"""RayClusters for the operator and the command: asynchronous, with typed errors; predicates of statuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from dljob.kube.api import Json, Kube, NotThereError
from dljob.kube.errors import from_answer
from dljob.kube.objects import Objects
from dljob.kube.resources import RAYCLUSTERS
from dljob.reconcile.state.fields import part, text

NEEDED = ("authOptions", "secretName", "upgradeStrategy")
"""Fields of RayCluster that KubeRay before 1.6 lacks; other fields in use are older."""
FINISHED = ("SUCCEEDED", "FAILED", "STOPPED")
"""Values of a RayJob's `status.jobStatus` after its end."""


class RayClusters(Objects):
    """RayClusters of one API server."""

    def __init__(self, kube: Kube) -> None:
        super().__init__(kube, RAYCLUSTERS)

    async def trouble(self) -> Literal["", "missing", "old"]:
        """Return "missing" without the RayCluster CRD, "old" if it lacks fields in use, else "". Raises ApiError.

        Every account may read discovery and the OpenAPI document (ClusterRole system:discovery), but not CRDs. The
        document has 4 MB, so it is searched as bytes instead of parsed: a field's name occurs as a key or not at all.
        """
        version = f"{self.resource.group}/{self.resource.version}"
        try:
            served = await self.kube.call("GET", f"/apis/{version}")
        except NotThereError:
            return "missing"
        if self.resource.plural not in {resource["name"] for resource in served["resources"]}:
            return "missing"
        path = f"/openapi/v3/apis/{version}"
        reply = await self.kube.transport.request("GET", path)
        if reply.status >= 400:
            raise from_answer(reply.status, reply.body, f"GET {path}")
        return "" if all(f'"{name}"'.encode() in reply.body for name in NEEDED) else "old"


def token_secret(cluster: Mapping[str, Any]) -> str:
    """Return the Secret with a RayCluster's token; empty when the cluster needs none."""
    auth = part(cluster, "spec", "authOptions")
    return (text(auth, "secretName") or text(cluster, "metadata", "name")) if auth.get("mode") == "token" else ""


def ready(status: Json) -> bool:
    """Whether all pods of a RayCluster are up."""
    return status.get("state") == "ready"


def runs(status: Json) -> bool:
    """Whether a RayJob runs or has ended."""
    return status.get("jobStatus") in ("RUNNING", *FINISHED)


def over(status: Json) -> bool:
    """Whether a RayJob has ended, with success or not."""
    # A RayJob that fails before its submission has no jobStatus, only the state of its deployment.
    return status.get("jobStatus") in FINISHED or status.get("jobDeploymentStatus") in ("Complete", "Failed")
