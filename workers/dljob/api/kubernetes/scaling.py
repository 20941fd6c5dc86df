"""Scaling of an Elastic role: `spec.roles[].replicas`, which the operator passes to PrimeMaster as a command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dljob.api.kubernetes.jobs import ended, phase_of, place_of
from dljob.api.values import suggestion
from dljob.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from dljob.kube.api import Kube

Json = dict[str, Any]


async def scale(kube: Kube, job: Json, role: str, ranks: int) -> Json:
    """Set the number of ranks of a role in the spec, and return the DLJob as stored.

    Raises:
        NotFoundError: the job has ended, or has no such role.
        UsageError: the role cannot have this number; the message gives its bounds.
        UnreachableError: the cluster refused, or the job or its roles were replaced meanwhile.
    """
    from dljob.kube.api import DLJOBS

    if ended(job):
        raise NotFoundError(f"job {place_of(job)} has ended: {phase_of(job)}")
    at, meta = _place(job, role), job["metadata"]
    _check(job["spec"]["roles"][at], role, ranks)
    # Roles are a list, which a merge patch would replace whole. The tests make sure that job and index are the same.
    patch = [
        {"op": "test", "path": "/metadata/uid", "value": meta["uid"]},
        {"op": "test", "path": f"/spec/roles/{at}/name", "value": role},
        # `add` replaces too, and works where the field was left at its default.
        {"op": "add", "path": f"/spec/roles/{at}/replicas", "value": ranks},
    ]
    return await kube.patch(DLJOBS, meta["name"], meta["namespace"], patch, kind="json")


def _place(job: Json, role: str) -> int:
    names = [role_body["name"] for role_body in job["spec"]["roles"]]
    if role not in names:
        raise NotFoundError(f"job {place_of(job)} has no role {role!r}", hint=suggestion(role, names))
    return names.index(role)


def _check(role_body: Json, role: str, ranks: int) -> None:
    have, group = role_body.get("replicas", 1), role_body.get("replicasPerGroup", 1)
    least, most = role_body.get("minReplicas", have), role_body.get("maxReplicas", have)
    # Checked here, for a message with the bounds.
    if least == most:
        raise UsageError(
            f"{role} has a fixed number of ranks, {have}",
            hint="an Elastic role with minReplicas or maxReplicas may have others, from the job's start on",
        )
    if not least <= ranks <= most or ranks % group:
        groups = f" in whole groups of {group}" if group > 1 else ""
        raise UsageError(f"{role} has {least} to {most} ranks{groups}, not {ranks}")
