"""Whether the RayCluster kind is served, and has what we put into it: seen from outside, with no right to read CRDs."""

from __future__ import annotations

from typing import Literal

from dljob.kube.api import RAYCLUSTERS, Kube, NotThereError
from dljob.kube.errors import from_answer

NEEDED = ("authOptions", "secretName", "upgradeStrategy")
"""Fields of RayCluster that KubeRay before 1.6 lacks; the kind's other fields that are used are older."""


async def look(kube: Kube) -> Literal["", "missing", "old"]:
    """What is wrong with the served kind; raises ApiError when the API server does not say.

    Discovery and the OpenAPI document may be read by every account (the ClusterRole system:discovery). The document is
    4 MB, so it is searched as it is: a field's name stands in it as a key or not at all.
    """
    try:
        served = await kube.call("GET", f"/apis/{RAYCLUSTERS.group}/{RAYCLUSTERS.version}")
    except NotThereError:
        return "missing"
    if RAYCLUSTERS.plural not in {resource["name"] for resource in served["resources"]}:
        return "missing"
    path = f"/openapi/v3/apis/{RAYCLUSTERS.group}/{RAYCLUSTERS.version}"
    reply = await kube.transport.request("GET", path)
    if reply.status >= 400:
        raise from_answer(reply.status, reply.body, f"GET {path}")
    return "" if all(f'"{name}"'.encode() in reply.body for name in NEEDED) else "old"
