"""Bad Kubernetes nodes: new pods avoid them, old pods leave them, by force where the node does not answer.

KubeRay replaces a pod that is gone, but counts one that is being deleted as present. A pod on a lost node would stay so
and never be replaced, since no kubelet reports its end (ADR 38).
"""

from __future__ import annotations

from collections.abc import Iterator

from dljob.reconcile.children import patches
from dljob.reconcile.policies import evidence
from dljob.reconcile.state import exclusions, names, reasons
from dljob.reconcile.state.accept import Refused
from dljob.reconcile.state.context import ReconcileContext, seconds, stamp
from dljob.reconcile.state.fields import items, part, text
from dljob.reconcile.state.model import Action, Delete, Event, PatchCluster, Pod
from dljob.reconcile.state.steps import PolicyDecision
from dljob.telemetry import reasons as told
from dljob.telemetry.wording import counted

GRACE_SECONDS = 5
"""The grace of a pod that PrimeMaster has left already: it has nothing to save."""
FORCE_SECONDS = 10.0
"""Seconds that a pod may exist beyond the end of its grace: a kubelet that answers has removed it by then."""
LOOK_SECONDS = 15.0
"""Seconds between looks at the node of a pod that does not end."""
PODS_A_PASS = 20
GONE = ("NotReady", "Gone")
TAINTED = "DeletionByTaintManager"
"""The taint manager's reason to delete a pod on a node that is not ready.

It stands on the pod, and so serves an operator that may not read nodes.
"""


def force(case: ReconcileContext) -> PolicyDecision | None:
    """Delete pods by force that should be gone, on nodes that no longer report it."""
    pods = () if case.ref else (*case.observed.pods, *case.observed.earlier)
    lost = [pod for pod in pods if _overdue(case, pod) and _dead(case, pod)]
    if not lost:
        return None
    actions = tuple(Delete("Pod", pod.name, pod.uid, grace=0) for pod in lost[:PODS_A_PASS])
    events = tuple(Event("Warning", reasons.POD_FORCED, _describe(pod), "DeletePod") for pod in lost[:PODS_A_PASS])
    return PolicyDecision(
        f"{counted(len(lost), 'pod')} should be gone, on nodes that no longer report it: deleted by force",
        actions,
        events=events,
        postponed=len(lost) - len(actions),
    )


def replace_head(case: ReconcileContext) -> PolicyDecision | None:
    """Delete a head by force on a node that the API server cannot reach either, once PrimeMaster is silent for long.

    A silent kubelet alone proves nothing: its containers run on, and PrimeMaster answers.
    """
    head, seconds_left = case.head, _until_head_is_dead(case)
    if head is None or seconds_left is None or seconds_left > 0:
        return None
    witness = "PrimeMaster does not answer either" if case.submitted else "nothing of the job ran there"
    words = (
        f"head pod {head.name}: Kubernetes node {head.node} {_node_words(head)}, and {witness}: it is deleted by force"
    )
    event = Event("Warning", reasons.POD_FORCED, words, "DeletePod")
    return PolicyDecision(
        "the head's machine is dead: another one is made",
        (Delete("Pod", head.name, head.uid, grace=0),),
        events=(event,),
    )


def _until_head_is_dead(case: ReconcileContext) -> float | None:
    """Return the seconds until a head counts as dead; None while its node or PrimeMaster answers, or nobody asks."""
    head, terms, master = case.head, case.terms, case.observed.master
    if case.ref or head is None or head.ready or head.machine not in GONE or isinstance(terms, Refused):
        return None
    if terms.unreachable_seconds is None or not case.submitted:
        return None if terms.unreachable_seconds is None else 0.0
    return None if master is None or not master.error else terms.unreachable_seconds - master.age


def exclude(case: ReconcileContext) -> PolicyDecision | None:
    """Keep new pods away from bad nodes, and delete old pods there."""
    if case.ref or case.cluster is None or case.leaving:
        return None
    entries = exclusions.every(case)
    if exclusions.state({"excluded": exclusions.entries(case)}) != exclusions.state(part(case.old, "nodes")):
        # Written first, since the pods that tell which Kubernetes nodes these are may be gone in the next pass.
        return PolicyDecision("the set of excluded nodes changed: the status is written first")
    # First the RayCluster, then the pods: KubeRay must not replace a deleted pod on the node that it left.
    nodes = exclusions.avoided(entries)
    if nodes != patches.excluded(case.cluster):
        action = PatchCluster(case.cluster_name, case.cluster["metadata"]["uid"], nodes)
        reason = f"new pods are to keep away from {', '.join(nodes) or 'no node any more'}"
        return PolicyDecision(reason, (action,), events=exclusions.unlisted(case))
    pods = tuple(_leave(case, entries))
    if not pods:
        return None
    now = tuple(action for pod in pods[:PODS_A_PASS] for action in pod)
    return PolicyDecision(
        f"{counted(len(pods), 'pod')} on excluded nodes, or waiting under an outdated exclusion",
        now,
        postponed=max(0, len(pods) - PODS_A_PASS),
    )


def wait(case: ReconcileContext) -> float | None:
    """Return the seconds until time alone changes a decision about nodes or pods on them; None: it does not."""
    waits = [at for at in _dues(case) if at > 0]
    return min(waits) if waits else None


def _dues(case: ReconcileContext) -> Iterator[float]:
    for pod in (*case.observed.pods, *case.observed.earlier):
        if pod.ends is not None:
            yield LOOK_SECONDS if _overdue(case, pod) else pod.ends + FORCE_SECONDS - case.now
    yield _until_head_is_dead(case) or 0.0
    entries = exclusions.every(case)
    for entry in entries:
        until = seconds(text(entry, "until"))
        if until is not None and entry.get("attempt", case.attempt) != case.attempt:
            yield until - case.now + 1.0
    for pod in exclusions.unschedulable_pods(case, exclusions.avoided(entries)):
        yield pod.created + exclusions.patience(case) - case.now


def _overdue(case: ReconcileContext, pod: Pod) -> bool:
    """Whether a pod that is being deleted should be gone by now."""
    return pod.ends is not None and pod.ends + FORCE_SECONDS <= case.now


def _dead(case: ReconcileContext, pod: Pod) -> bool:
    """Whether no kubelet will ever report a pod's end.

    The API server says so of the node; or both kubelet and Ray node do not answer; or the taint manager deleted the
    pod.
    """
    if pod.machine in GONE:
        return True
    # PrimeMaster too gets no heartbeat from that pod: two independent witnesses.
    known = items(case.old, "nodes", "excluded")
    frozen = any(text(entry, "pod") == pod.name and text(entry, "reason") == told.NODE_FROZEN for entry in known)
    return frozen or (pod.machine == "Unknown" and pod.end.startswith(TAINTED))


def _describe(pod: Pod) -> str:
    since, node = stamp(pod.ends or 0.0), f"Kubernetes node {pod.node} {_node_words(pod)}"
    return f"pod {pod.name} should be gone since {since}, and {node}: it is deleted by force"


def _node_words(pod: Pod) -> str:
    return {"NotReady": "is not ready", "Gone": "is gone"}.get(pod.machine, "does not answer")


def _leave(case: ReconcileContext, entries: list[exclusions.Entry]) -> Iterator[tuple[Action, ...]]:
    """Yield the actions for each pod on an excluded node, and for pods that wait under an outdated exclusion.

    The head stays on a node that a user names, until it is replaced for another reason.
    """
    left_pods = {text(entry, "pod") for entry in entries if entry.get("attempt") == case.attempt}
    # After the submission nothing is deleted before the gateway was polled: only its placement tells which Ray node a
    # pod is, and PrimeMaster must learn why that one goes.
    asked = case.observed.master is not None or not case.submitted
    users = (entry for entry in entries if asked and entry["reason"] == exclusions.REQUESTED)
    # A head may report that reason, too, but not where the operator puts the node's name.
    barred = {entry["kubernetesNode"] for entry in users if "kubernetesNode" in entry}
    allowed = patches.avoided_nodes(case.cluster)
    for pod in case.observed.pods:
        if pod.leaving:
            continue
        if pod.name in left_pods:
            yield (Delete("Pod", pod.name, pod.uid, grace=GRACE_SECONDS),)
        elif pod.node in barred and not pod.head:
            reason = f"Excluded: annotation {names.EXCLUDE_NODES} names Kubernetes node {pod.node}"
            yield (*evidence.announce(case, pod, reason), Delete("Pod", pod.name, pod.uid))
        elif pod.trouble_reason == "Unschedulable" and _stale(pod, allowed):
            yield (Delete("Pod", pod.name, pod.uid),)


def _stale(pod: Pod, away: frozenset[str] | None) -> bool:
    """Whether a pod avoids more nodes than a new pod would."""
    return away is not None and not away.issuperset(pod.away)
