"""RayClusters as the operator and the command see them, asynchronously and with typed errors; how statuses are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from dljob.control.fields import part, text
from dljob.kube.api import Json, Kube, NotThereError
from dljob.kube.errors import from_answer
from dljob.kube.objects import Objects
from dljob.kube.resources import RAYCLUSTERS

NEEDED = ("authOptions", "secretName", "upgradeStrategy")
"""Fields of RayCluster that KubeRay before 1.6 lacks; the kind's other fields that are used are older."""
FINISHED = ("SUCCEEDED", "FAILED", "STOPPED")
"""`status.jobStatus` of a RayJob that is over."""


class RayClusters(Objects):
    """RayClusters."""

    def __init__(self, kube: Kube) -> None:
        super().__init__(kube, RAYCLUSTERS)

    async def trouble(self) -> Literal["", "missing", "old"]:
        """What is wrong with the kind as it is served; raises ApiError when the API server does not say.

        Discovery and the OpenAPI document may be read by every account (the ClusterRole system:discovery), CRDs not.
        The document is 4 MB, so it is searched as it is: a field's name stands in it as a key or not at all.
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
    """The Secret with the token that a RayCluster asks for; empty when it asks for none."""
    auth = part(cluster, "spec", "authOptions")
    return (text(auth, "secretName") or text(cluster, "metadata", "name")) if auth.get("mode") == "token" else ""


def ready(status: Json) -> bool:
    """Whether all pods of a RayCluster are up."""
    return status.get("state") == "ready"


def runs(status: Json) -> bool:
    """Whether a RayJob runs, or is over."""
    return status.get("jobStatus") in ("RUNNING", *FINISHED)


def over(status: Json) -> bool:
    """Whether a RayJob is over, however it ended."""
    return status.get("jobStatus") in FINISHED or status.get("jobDeploymentStatus") in ("Complete", "Failed")
