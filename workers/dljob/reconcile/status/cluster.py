"""The condition ClusterReady: the trouble of the RayCluster and its pods, in the words of the component that failed."""

from __future__ import annotations

from dljob.reconcile.children.drift import edits
from dljob.reconcile.state import names, reasons
from dljob.reconcile.state.accept import Refused
from dljob.reconcile.state.context import DASHBOARD_PORT, ReconcileContext, seconds, stamp
from dljob.reconcile.state.fields import items, number, part, text
from dljob.reconcile.state.hints import advised
from dljob.reconcile.state.model import Object, Pod
from dljob.reconcile.state.steps import Said
from dljob.telemetry.wording import counted

MISSING = "the API server serves no RayCluster (ray.io/v1): install the KubeRay operator, 1.6 or newer"
OLD = (
    "the served RayCluster lacks spec.authOptions or spec.upgradeStrategy: upgrade KubeRay and its CRDs to 1.6 or newer"
)
SILENT = "see that its operator runs (kubectl get pods -A -l app.kubernetes.io/name=kuberay-operator)"
GOES_ON = "the job goes on by itself"
KUBERAY = {
    "missing": (reasons.KUBERAY_MISSING, f"{MISSING}; {GOES_ON}"),
    "old": (reasons.KUBERAY_TOO_OLD, f"{OLD}; {GOES_ON}"),
}
PREFIX = "ClusterReady"
STUCK_SECONDS = 60.0
"""Seconds after its grace from which an existing pod is reported: on a dead node it was deleted by force by then."""
SILENT_SECONDS = 30.0
"""KubeRay writes a status within a second, unless it has many RayClusters; after this time its silence is reported."""


def ready(case: ReconcileContext) -> list[Said]:
    """Return ClusterReady; empty while an earlier attempt's RayCluster is deleted, whose condition says why already."""
    if case.finished or case.replaced:
        return _refused_to_go(case) or (_finished(case) if case.finished else [])
    if case.cluster is None:
        return [Said(PREFIX, "False", *_absent(case))]
    if case.leaving:
        return [_leaving(case.cluster_name)]
    # A RayCluster that is held back has no pods, or its pods go: their trouble would only hide the reason.
    back = _external_hold(case)
    if back:
        return [Said(PREFIX, "False", *back)]
    pending, edited = _pending(case), edits(case)
    edit = f"{edited}; the RayCluster is left as it is" if edited else ""
    if pending:
        reason, message = pending
        return [
            Said(PREFIX, "False", reason, f"{message}; somebody edited the RayCluster: {edit}" if edit else message)
        ]
    if edit:
        return [Said(PREFIX, "True", reasons.CLUSTER_EDITED, edit)]
    workers = number(case.cluster, "status", "readyWorkerReplicas")
    pods_note = f"the head and {workers} worker pods are ready{_way_in(case)}"
    return [Said(PREFIX, "True", reasons.PODS_READY, pods_note)]


def _way_in(case: ReconcileContext) -> str:
    """Return how a user outside of the Kubernetes cluster reaches Ray's dashboard."""
    line = f"kubectl port-forward svc/{case.service} {DASHBOARD_PORT} -n {case.meta['namespace']}"
    return f"; Ray's dashboard: {line}" if case.service else ""


ENDED = ("Error", "CrashLoopBackOff", *reasons.FAILED_PROBES.values())
"""Troubles of a pod whose container ended, and starts again."""


def _refused_to_go(case: ReconcileContext) -> list[Said]:
    """Return ClusterReady for a RayCluster whose deletion was refused, or succeeded after a refusal; else empty.

    The answer to a deletion may get lost, and a RayCluster that is being deleted is not deleted again: then the
    condition would keep the old refusal.
    """
    cluster, condition = case.cluster or case.leftover, case.conditions.get(PREFIX)
    if cluster is not None and not text(cluster, "metadata", "deletionTimestamp"):
        refused = case.trouble(f"DeleteRayCluster {text(cluster, 'metadata', 'name')}")
        return [] if refused is None else [Said(PREFIX, "False", reasons.DELETION_REFUSED, refused.message)]
    if condition is None or condition.reason != reasons.DELETION_REFUSED or (case.finished and cluster is None):
        return []
    return [_leaving(case.recorded.get("name", case.cluster_name))]


def _leaving(name: str) -> Said:
    return Said(PREFIX, "False", reasons.CLUSTER_LEAVING, f"RayCluster {name} is being deleted")


def _finished(case: ReconcileContext) -> list[Said]:
    logs = f"; ConfigMap {names.logs_map(case.name)} has the last lines of each rank's log"
    note = logs if case.observed.logs_saved else ""
    if case.ref and case.cluster is not None:
        return [Said(PREFIX, "True", reasons.CLUSTER_KEPT, f"RayCluster {case.ref} is not the job's, and stays{note}")]
    if case.cluster is None and case.leftover is None:
        return [Said(PREFIX, "False", reasons.CLUSTER_DELETED, f"the job is over{note}")]
    if case.live.retain:
        return [Said(PREFIX, "True", reasons.CLUSTER_KEPT, f"cleanupPolicy is Retain{note}")]
    return []


def _external_hold(case: ReconcileContext) -> tuple[str, str] | None:
    """Return (reason, message) of a hold by others on the RayCluster: a suspension, or its token; None: no hold."""
    if case.suspended:
        reason = reasons.WAITS_IN_QUEUE if case.queued else reasons.CLUSTER_SUSPENDED
        goes_on = "; the job goes on when its owner resumes it" if case.ref else ""
        return reason, f"RayCluster {case.cluster_name} is suspended{goes_on}"
    if case.observed.locked:
        return reasons.TOKEN_UNKNOWN, case.observed.locked
    if case.ref and case.on_hold and not case.head_ready:
        return case.conditions[PREFIX].reason, f"RayCluster {case.ref} was suspended; its head is not ready yet"
    return None


def _absent(case: ReconcileContext) -> tuple[str, str]:
    """Return (reason, message) for the lack of a RayCluster."""
    if case.observed.kuberay:
        return KUBERAY[case.observed.kuberay]
    if case.ref:
        namespace = case.meta["namespace"]
        message = f"there is no RayCluster {case.ref} in namespace {namespace}: make it, and the job goes on by itself"
        return reasons.RAY_CLUSTER_NOT_FOUND, message
    if case.foreign is not None:
        owners = items(case.foreign, "metadata", "ownerReferences")
        whose = ", ".join(f"{owner.get('kind')} {owner.get('name')}" for owner in owners) or "nobody"
        message = f"RayCluster {case.cluster_name} exists and belongs to {whose}: delete it, and the job goes on"
        return reasons.NAME_TAKEN, message
    if isinstance(case.terms, Refused):
        return reasons.CLUSTER_MISSING, "the spec is not accepted; condition Accepted says why"
    trouble = case.trouble("Create")
    if trouble is not None:
        reason = reasons.NAME_TAKEN if trouble.code == 409 else reasons.CREATION_REFUSED
        return reason, advised(reason, f"{trouble.action}: {trouble.message}")
    return reasons.CLUSTER_MISSING, "the RayCluster is about to be created"


def _pending(case: ReconcileContext) -> tuple[str, str] | None:
    """Return (reason, message) of the first thing that is not ready; None: all is ready.

    The order is from the most specific cause to the least: KubeRay's own failure, a pod with trouble, KubeRay's
    silence, a pod that does not go, then missing pods.
    """
    status = part(case.cluster, "status")
    desired, workers = number(status, "desiredWorkerReplicas"), number(status, "readyWorkerReplicas")
    ready = f"{workers} of {desired} worker pods are ready"
    # How many machines others have is their matter, unless the job has no room on those that are ready.
    if case.head_ready and ((case.ref and not (case.lacks_room and workers < desired)) or 0 < desired <= workers):
        return None
    # KubeRay could not create a pod, so there is no pod that could tell why.
    if case.condition_is_true("ReplicaFailure"):
        return _refused(case.cluster_conditions["ReplicaFailure"], ready)
    stuck = [pod for pod in case.observed.pods if pod.trouble and not pod.ready and not pod.leaving]
    # A container that ended starts again by itself, at times with success; what holds another pod lasts.
    stuck.sort(key=lambda pod: pod.trouble_reason in ENDED)
    if stuck:
        first, others = stuck[0], len(stuck) - 1
        more = f" (and {counted(others, 'other')})" if others else ""
        fallback = reasons.HEAD_PENDING if first.head else reasons.WORKERS_PENDING
        words = f"pod {first.name}{more}: {first.trouble}"
        return first.trouble_reason or fallback, advised(first.trouble_reason, words)
    # No status, no pods: KubeRay refuses the RayCluster, or does not run.
    if not status and not case.observed.pods:
        return _ignored(case)
    late = [pod for pod in case.observed.pods if pod.ends is not None and pod.ends + STUCK_SECONDS <= case.now]
    if late:
        return reasons.POD_STUCK, _stuck(case, late[0])
    if not case.head_ready:
        return reasons.HEAD_PENDING, _head_words(case)
    return reasons.WORKERS_PENDING, ready


def _head_words(case: ReconcileContext) -> str:
    """Return the state of a head that is not ready."""
    head = case.head
    if head is None:
        ending = next((pod for pod in case.observed.pods if pod.head), None)
        return (
            f"head pod {ending.name} is being deleted; the next one follows" if ending else "there is no head pod yet"
        )
    if head.machine not in ("NotReady", "Gone"):
        return f"head pod {head.name} is {head.phase}, not ready"
    state = f"Kubernetes node {head.node} of head pod {head.name} does not answer the API server"
    return f"{state}; PrimeMaster answers, and the job goes on" if case.reachable else state


def silence(case: ReconcileContext) -> float | None:
    """Return the seconds until KubeRay's silence is reported; None when it has written a status, or need not."""
    if case.cluster is None or part(case.cluster, "status") or case.finished:
        return None
    seconds_left = _created_at(case) + SILENT_SECONDS - case.now
    return seconds_left if seconds_left > 0 else None


def _created_at(case: ReconcileContext) -> float:
    return seconds(text(case.cluster, "metadata", "creationTimestamp")) or case.now


def _ignored(case: ReconcileContext) -> tuple[str, str]:
    """Return (reason, message) of a RayCluster that KubeRay refuses, or has not looked at."""
    reason, words = case.observed.objection
    if reason:
        return reason, advised(reason, words)
    if silence(case) is not None:
        return reasons.HEAD_PENDING, "there is no head pod yet"
    return reasons.KUBERAY_SILENT, f"KubeRay has done nothing about RayCluster {case.cluster_name}: {SILENT}; {GOES_ON}"


def _stuck(case: ReconcileContext, pod: Pod) -> str:
    """Return the message about a pod that KubeRay counts as present, and so does not replace."""
    since, namespace = stamp(pod.ends or 0.0), case.meta["namespace"]
    force = f"kubectl delete pod {pod.name} -n {namespace} --grace-period=0 --force"
    return f"pod {pod.name} should be gone since {since}; if Kubernetes node {pod.node} is lost: {force}"


def _refused(failure: Object, ready: str) -> tuple[str, str]:
    """Return (reason, message) of a pod that KubeRay could not create.

    KubeRay's message begins with the reason on a line of its own (1.6.2).
    """
    reason = text(failure, "reason")
    words = text(failure, "message").removeprefix(reason).strip()
    if not words:
        return reason or reasons.CREATION_REFUSED, ready
    return reason or reasons.CREATION_REFUSED, advised(reason, words)
