"""Digest of a Pod for decisions: its phase, its Ray container, and what keeps it from running."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress

from dljob.raycluster.pods import IMAGE_CHECK
from dljob.reconcile.children.patches import excluded_nodes
from dljob.reconcile.state.context import seconds
from dljob.reconcile.state.fields import items, number, part, text
from dljob.reconcile.state.model import ImageVersions, Object, Pod

_WAITS = frozenset({"", "PodInitializing", "ContainerCreating"})
"""Reasons of a waiting container that are normal."""
_VERSION = 32
"""Most characters of a version."""


def digest(body: Object) -> Pod:
    """Return the digest of a RayCluster's Pod."""
    meta, status = part(body, "metadata"), part(body, "status")
    labels: Mapping[str, str] = part(meta, "labels")
    ray = _ray_container(body)
    reason, trouble = next(_troubles(status), ("", ""))
    return Pod(
        name=text(meta, "name"),
        uid=text(meta, "uid"),
        head=labels.get("ray.io/node-type") == "head",
        group=labels.get("ray.io/group", ""),
        phase=text(status, "phase") or "Pending",
        ready=any(c["type"] == "Ready" and c["status"] == "True" for c in items(status, "conditions")),
        ip=text(status, "podIP"),
        node=text(body, "spec", "nodeName"),
        container=text(ray, "containerID"),
        restarts=number(ray, "restartCount"),
        ended_start=seconds(text(ray, "lastState", "terminated", "startedAt")) or 0.0,
        leaving="deletionTimestamp" in meta,
        # The deletionTimestamp of a pod lies ahead: it is the end of its grace period.
        ends=seconds(text(meta, "deletionTimestamp")),
        created=seconds(text(meta, "creationTimestamp")) or 0.0,
        away=tuple(excluded_nodes(part(body, "spec"))),
        trouble=f"{reason}: {trouble}" if trouble else reason,
        trouble_reason=reason,
        end=next(_ends(meta, status, ray), ""),
        annotations={k: v for k, v in part(meta, "annotations").items() if k.startswith("dljob.io/")},
        image=_image(status),
    )


def _image(status: Object) -> ImageVersions | None:
    """Return what the check of the pod's image told. The image is the user's, so it may have told anything."""
    for container in items(status, "initContainerStatuses"):
        for state in ("state", "lastState") if container["name"] == IMAGE_CHECK else ():
            with suppress(ValueError, AttributeError):
                versions = json.loads(text(container, state, "terminated", "message"))
                python, ray, dljob = (str(versions.get(name) or "")[:_VERSION] for name in ("python", "ray", "dljob"))
                return ImageVersions(python, ray, dljob)
    return None


def _ends(meta: Object, status: Object, ray: Object) -> Iterator[str]:
    """Yield why the pod ends, or its Ray container last ended, the most telling reason first."""
    for condition in items(status, "conditions"):
        # Drains, taints, preemption and eviction set this condition before they act (since Kubernetes 1.26).
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            yield _describe(condition)
    if status.get("phase") == "Failed" and status.get("reason"):
        yield _describe(status)
    for state in ("state", "lastState"):
        end = part(ray, state, "terminated")
        if end.get("exitCode"):
            yield f"{end.get('reason') or 'Error'}: container {ray['name']} ended with {_exit(end)}"
    # Last: every pod that is being removed has it, so it counts when nothing says more.
    if "deletionTimestamp" in meta:
        # Without a grace period it is no announcement: nothing can be saved, and ranks end as on a machine that fails.
        # The kubelet deletes a pod whose containers have ended without one, too.
        forced = meta.get("deletionGracePeriodSeconds") == 0 and part(ray, "state", "running")
        yield "Removed: somebody deleted it by force" if forced else "Deleted: somebody deleted it"


def _describe(state: Object) -> str:
    return ": ".join(words for words in (text(state, "reason"), text(state, "message").strip()) if words)


def _ray_container(body: Object) -> Object:
    """Return the status of the Ray container, which is the first one by KubeRay's rule."""
    first = next((container["name"] for container in items(body, "spec", "containers")), "")
    statuses = items(body, "status", "containerStatuses")
    nothing: Object = {}
    return next((status for status in statuses if status["name"] == first), nothing)


def _troubles(status: Object) -> Iterator[tuple[str, str]]:
    """Yield (reason, message) of troubles, the gravest first."""
    if status.get("phase") in ("Failed", "Unknown"):
        yield text(status, "reason") or status["phase"], text(status, "message") or _ended(status)
    for container in (*items(status, "initContainerStatuses"), *items(status, "containerStatuses")):
        waiting, last = part(container, "state", "waiting"), part(container, "lastState", "terminated")
        name = f"container {container['name']}"
        if text(waiting, "reason") not in _WAITS:
            before = f"; it ended {_exit_with_count(container)}" if last else ""
            yield waiting["reason"], f"{name}: {text(waiting, 'message')}{before}".rstrip(": ")
        elif last and not container.get("ready"):
            yield text(last, "reason") or "Error", f"{name} ended {_exit_with_count(container)}"
    for condition in items(status, "conditions"):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            yield text(condition, "reason") or "Unschedulable", text(condition, "message")


def _ended(status: Object) -> str:
    """Describe how the containers of a failed pod ended."""
    ends = ((c["name"], part(c, "state", "terminated")) for c in items(status, "containerStatuses"))
    return ", ".join(f"container {name} ended with {_exit(end)}" for name, end in ends if end)


def _exit_with_count(container: Object) -> str:
    """Describe a container's last end, and how many ends it had."""
    count = number(container, "restartCount")
    times = f"{count} times, the last time " if count > 1 else ""
    return f"{times}with {_exit(part(container, 'lastState', 'terminated'))}"


def _exit(end: Object) -> str:
    reason = f" ({end['reason']})" if end.get("reason") not in (None, "Error") else ""
    message = f": {text(end, 'message').strip()[-300:]}" if end.get("message") else ""
    return f"exit code {end.get('exitCode')}{reason}{message}"
