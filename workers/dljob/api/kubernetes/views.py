"""DLJobs as the command shows them: in a list, and one in detail. Pure but for the listing, which asks the cluster."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from dljob.api.kubernetes import jobs
from dljob.api.kubernetes.connect import ask
from dljob.api.kubernetes.jobs import entries, nested, phase_of, role_sizes, status_of
from dljob.api.shown_job import JobListing, JobSummary, Overview, Row
from dljob.raycluster.domain_pods import CLUSTER
from dljob.raycluster.pods import TOKEN_KEY
from dljob.reconcile.state import names
from dljob.spec.status import total_restarts
from dljob.telemetry.wording import unix

if TYPE_CHECKING:
    from dljob.kube.api import Kube

Json = dict[str, Any]
DASHBOARD = 8265
"""Port of Ray's dashboard on the head."""


def data(job: Mapping[str, Any]) -> Json:
    """Return a job for scripts: name, namespace, uid, then the status; the phase is always present."""
    meta = job["metadata"]
    # First, so that the status may replace the phase, which is absent until the operator has seen the job.
    known = {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"], "phase": phase_of(job)}
    return {**known, **status_of(job)}


def summary(job: Mapping[str, Any]) -> JobSummary:
    """Return a job as a row of a list."""
    meta, status, total = job["metadata"], status_of(job), status_of(job).get("restartsTotal")
    return JobSummary(
        name=str(meta["name"]),
        namespace=str(meta["namespace"]),
        uid=str(meta["uid"]),
        phase="Deleting" if meta.get("deletionTimestamp") else phase_of(job),
        ready=str(status.get("rolesReady") or f"0/{sum(role_sizes(job).values())}"),
        restarts=int(total) if total is not None else total_restarts(nested(status, "restarts")),
        # Without its time: a row appears at a change of the DLJob, not while a step stands still.
        progress={"step": nested(status, "progress").get("step")},
        started=str(meta.get("creationTimestamp") or "-"),
        data=data(job),
        listed=data(job),
    )


class ClusterListing(JobListing):
    """The jobs of a namespace, or of all namespaces."""

    def __init__(self, namespace: str | None, context: str | None, *, everywhere: bool) -> None:
        self._namespace, self._context, self.namespaced = namespace, context, everywhere

    @property
    def empty(self) -> str:
        """Message for no jobs."""
        return "no jobs in any namespace" if self.namespaced else f"no jobs in namespace {self._namespace}"

    async def _list_jobs(self, kube: Kube) -> list[Json]:
        self._namespace = None if self.namespaced else self._namespace or kube.namespace
        return await jobs.list_all(kube, self._namespace)

    def all(self) -> list[JobSummary]:
        """Return the jobs, also ended ones, oldest first."""
        return [summary(job) for job in ask(self._list_jobs, self._context)]

    def watch(self, show: Callable[[Sequence[JobSummary]], None]) -> None:
        """Show all jobs, then each one that changes."""

        async def follow(kube: Kube) -> None:
            from dljob.kube.api import DLJOBS

            bodies = await self._list_jobs(kube)
            show([summary(job) for job in bodies])
            # One resourceVersion is one state: the same state may arrive by the list and by the watch.
            known = {body["metadata"]["uid"]: body["metadata"]["resourceVersion"] for body in bodies}
            # The watch begins with a list of its own: rows that were already shown are skipped by their version.
            async with aclosing(kube.watch(DLJOBS, self._namespace)) as events:
                async for kind, body in events:
                    meta = body["metadata"]
                    if kind != "DELETED" and known.get(meta["uid"]) != meta["resourceVersion"]:
                        show([summary(body)])
                    known[meta["uid"]] = meta["resourceVersion"]

        ask(follow, self._context)


def overview(job: Mapping[str, Any]) -> Overview:
    """Return a job in detail."""
    meta = job["metadata"]
    deleting = ", being deleted" if meta.get("deletionTimestamp") else ""
    return Overview(
        f"{meta['name']} ({str(meta['uid'])[:8]}) in namespace {meta['namespace']}",
        phase_of(job) + deleting,
        detailed(job),
        data(job),
        unseen="" if status_of(job) else "no operator has seen it yet; see dljob doctor",
    )


def detailed(job: Mapping[str, Any]) -> Json:
    """Return the status in the shape of a job on a Ray, with the fields that only a DLJob has."""
    status, metrics = status_of(job), entries(nested(status_of(job), "progress"), "metrics")
    return {
        **status,
        **as_local(job),
        # As the operator wrote them: texts.
        "progress": {**nested(status, "progress"), "metrics": {str(m["name"]): str(m["value"]) for m in metrics}},
        "recentFaults": [{**fault, "seconds": _took(fault)} for fault in entries(status, "recentFaults")],
    }


def with_evidence(faults: Sequence[Json], full_faults: Sequence[Json]) -> list[Json]:
    """Add the evidence in PrimeMaster's own status to the faults of a DLJob's, which keeps none."""
    known = {(fault.get("detectedAt"), fault.get("target")): fault for fault in full_faults}
    added_keys = ("evidence", "followed", "firstCause", "rule")
    return [
        {**fault, **{key: more[key] for key in added_keys if key in more}}
        for fault in faults
        for more in [known.get((fault.get("detectedAt"), fault.get("target")), {})]
    ]


def _took(fault: Mapping[str, Any]) -> float | None:
    begun, over = unix(fault.get("detectedAt")), unix(fault.get("recoveredAt"))
    return None if begun is None or over is None else over - begun


def as_local(job: Mapping[str, Any]) -> Json:
    """Convert the status to the shape of a job on a Ray, so that one code draws both."""
    status, meta = status_of(job), job["metadata"]
    begun = unix(status.get("startTime")) or unix(meta.get("creationTimestamp"))
    over = unix(status.get("completionTime"))
    progress = nested(status, "progress")
    reason, message = jobs.why(job)
    metrics = {
        str(m["name"]): value for m in entries(progress, "metrics") if (value := _number(m.get("value"))) is not None
    }
    # `time` tells `standing` that this status may be some seconds old.
    times = {key: progress[key] for key in ("time", "stepTime", "secondsPerStep") if key in progress}
    return {
        "phase": phase_of(job),
        "reason": reason,
        "message": message,
        "roles": entries(status, "roles"),
        "restarts": {level_in_words(level): count for level, count in nested(status, "restarts").items()},
        "progress": {"step": progress.get("step"), "metrics": metrics, **times},
        "seconds": round(over - begun, 3) if over is not None and begun is not None else None,
    }


def level_in_words(name: str) -> str:
    """Write a restart level in words: roleGroup is "role group"."""
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name)


def _number(text: object) -> float | None:
    with suppress(ValueError):
        return float(str(text))
    return None


def facts(job: Mapping[str, Any]) -> list[str]:
    """Return lines about a job: its uid, times, generation and RayCluster, from the DLJob."""
    meta, status = job["metadata"], status_of(job)
    known = (
        ("uid", meta["uid"]),
        ("created", meta.get("creationTimestamp")),
        ("started", status.get("startTime")),
        ("ended", status.get("completionTime")),
        ("generation", meta.get("generation")),
    )
    return [f"{name}: {value}" for name, value in known if value]


async def pods(kube: Kube, job: Mapping[str, Any]) -> tuple[list[Row], list[str]]:
    """Return node, name, kind and phase of each pod of the job's RayCluster, or why this user may not list them."""
    from dljob.kube.api import PODS, ApiError

    cluster = nested(status_of(job), "rayCluster").get("name")
    if not cluster:
        return [], []
    try:
        pod_bodies = await kube.list(PODS, job["metadata"]["namespace"], labels=f"{CLUSTER}={cluster}")
    except ApiError as error:
        # Pods need a right of their own; the rest of the page does without it.
        if error.status != 403:
            raise
        return [], [f"this user may not list pods: {error.message}"]
    rows = [
        (
            str(nested(pod, "spec").get("nodeName") or "-"),
            str(pod["metadata"]["name"]),
            str(nested(nested(pod, "metadata"), "labels").get("ray.io/node-type") or "-"),
            str(nested(pod, "status").get("phase") or "-"),
        )
        for pod in pod_bodies
    ]
    return sorted(rows), []


def dashboard(job: Mapping[str, Any], context: str | None) -> list[str]:
    """Return commands that reach the dashboard of a running head, and print the RayCluster's token for it."""
    cluster = nested(status_of(job), "rayCluster")
    head, name = cluster.get("headPod"), cluster.get("name")
    if not head or jobs.ended(job):
        return []
    kubectl = ["kubectl", *(["--context", context] if context else []), "-n", job["metadata"]["namespace"]]
    forward = shlex.join([*kubectl, "port-forward", f"pod/{head}", str(DASHBOARD)])
    commands = [f"{forward}    # then http://localhost:{DASHBOARD}"]
    # Only the operator's own clusters have a token Secret with this name.
    if not nested(job["spec"], "rayClusterRef"):
        path = f"jsonpath={{.data.{TOKEN_KEY}}}"
        secret = shlex.join([*kubectl, "get", "secret", names.token_secret(str(name)), "-o", path])
        commands.append(f"{secret} | base64 -d    # the token that it asks for")
    return commands
