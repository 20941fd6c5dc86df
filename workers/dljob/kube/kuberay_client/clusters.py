"""RayClusters for the operator and the command: asynchronous, with typed errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from dljob.kube.api import Kube, NotThereError
from dljob.kube.errors import from_answer
from dljob.kube.objects import Objects
from dljob.kube.resources import RAYCLUSTERS
from dljob.reconcile.state.fields import part, text

NEEDED = ("authOptions", "secretName", "upgradeStrategy")
"""Fields of RayCluster that KubeRay before 1.6 lacks; other fields in use are older."""


class RayClusters(Objects):
    """RayClusters of one API server, with the method names of KubeRay's own client (clients/python-client, v1.7.0)."""

    create_ray_cluster = Objects.create
    get_ray_cluster = Objects.get
    list_ray_clusters = Objects.list
    patch_ray_cluster = Objects.patch
    delete_ray_cluster = Objects.delete

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
