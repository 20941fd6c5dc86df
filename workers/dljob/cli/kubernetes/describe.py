"""`dljob describe` on a cluster."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dljob.api.kubernetes import jobs, timeline, whole_logs
from dljob.api.kubernetes.jobs import part, status_of
from dljob.cli import description, output
from dljob.cli.kubernetes import show
from dljob.cli.kubernetes.events import entry
from dljob.cli.kubernetes.place import about
from dljob.cli.where import JobTarget
from dljob.raycluster.domain_pods import CLUSTER
from dljob.raycluster.pods import TOKEN_KEY
from dljob.reconcile.state import names

if TYPE_CHECKING:
    from dljob.kube.api import Kube

Json = dict[str, Any]
DASHBOARD = 8265
"""Port of Ray's dashboard on the head."""


def describe(job: str, where: JobTarget) -> None:
    """Show one job on one page."""

    async def asked(kube: Kube, found: Json) -> None:
        whole = timeline.EventFeed()
        notes = await whole.news(kube, found)
        silent = whole.silent if not jobs.ended(found) else ""
        for text in lines(found, await _pods(kube, found), notes, where=where, now=time.time(), silent=silent):
            output.data(text)

    about(where, job, asked)


async def _pods(kube: Kube, job: Json) -> list[Json] | str:
    """Return the pods of the job's RayCluster, or the reason when this user may not list them."""
    from dljob.kube.api import PODS, ApiError

    cluster = part(status_of(job), "rayCluster").get("name")
    if not cluster:
        return []
    try:
        return await kube.list(PODS, job["metadata"]["namespace"], labels=f"{CLUSTER}={cluster}")
    except ApiError as error:
        # Pods need a right of their own; the rest of the page does without it.
        if error.status != 403:
            raise
        return f"this user may not list pods: {error.message}"


def lines(
    job: Mapping[str, Any],
    pods: Sequence[Mapping[str, Any]] | str,
    notes: Sequence[Mapping[str, Any]],
    *,
    where: JobTarget,
    now: float,
    silent: str,
) -> list[str]:
    """Return the lines of the page. Pure."""
    meta, spec = job["metadata"], job["spec"]
    flags = where.flags(meta["namespace"])
    begin = timeline.unix(meta.get("creationTimestamp")) or 0.0
    events = [entry(note, begin).strip() for note in notes] or ["none; Kubernetes keeps them for an hour"]
    command = f"dljob events {meta['name']} {flags}"
    kept = whole_logs.told(job)
    return [
        *show.detail(job, now),
        *description.section("Job", _facts(job)),
        *description.section("Roles", description.roles(spec)),
        *description.section("Nodes", [pods] if isinstance(pods, str) else _nodes(pods)),
        *description.section("Events", description.last_events(events, command)),
        *([f"  without PrimeMaster's own notes: {silent}"] if silent else []),
        *description.section("Logs", [f"dljob logs {meta['name']} --follow {flags}", *([kept] if kept else [])]),
        *description.section("Dashboard of Ray", _dashboard(job, where)),
    ]


def _facts(job: Mapping[str, Any]) -> list[str]:
    meta, status = job["metadata"], status_of(job)
    known = (
        ("uid", meta["uid"]),
        ("created", meta.get("creationTimestamp")),
        ("started", status.get("startTime")),
        ("ended", status.get("completionTime")),
        ("generation", meta.get("generation")),
    )
    return [f"{name}: {value}" for name, value in known if value]


def _nodes(pods: Sequence[Mapping[str, Any]]) -> list[str]:
    rows: list[description.Row] = [
        (
            str(part(pod, "spec").get("nodeName") or "-"),
            str(pod["metadata"]["name"]),
            str(part(part(pod, "metadata"), "labels").get("ray.io/node-type") or "-"),
            str(part(pod, "status").get("phase") or "-"),
        )
        for pod in pods
    ]
    return description.table([("NODE", "POD", "IS", "PHASE"), *sorted(rows)])


def _dashboard(job: Mapping[str, Any], where: JobTarget) -> list[str]:
    """Return commands that reach the dashboard of a running head, and print the RayCluster's token for it."""
    cluster = part(status_of(job), "rayCluster")
    head, name = cluster.get("headPod"), cluster.get("name")
    if not head or jobs.ended(job):
        return []
    kubectl = ["kubectl", *(["--context", where.context] if where.context else []), "-n", job["metadata"]["namespace"]]
    forward = shlex.join([*kubectl, "port-forward", f"pod/{head}", str(DASHBOARD)])
    made = [f"{forward}    # then http://localhost:{DASHBOARD}"]
    # Only the operator's own clusters have a token Secret with this name.
    if not part(job["spec"], "rayClusterRef"):
        path = f"jsonpath={{.data.{TOKEN_KEY}}}"
        secret = shlex.join([*kubectl, "get", "secret", names.token_secret(str(name)), "-o", path])
        made.append(f"{secret} | base64 -d    # the token that it asks for")
    return made
