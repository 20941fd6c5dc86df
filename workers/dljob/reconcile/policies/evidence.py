"""Evidence for PrimeMaster: why Kubernetes ended a pod, so that the first cause of a failure has a name.

Ray reports a lost node without a reason; kubelet, scheduler and eviction API know it. An annotation on the pod
remembers what was sent, so that another operator does not send it again when the pod may already be another Ray node.
"""

from __future__ import annotations

import hashlib

from dljob.reconcile.policies.commands import REFUSED
from dljob.reconcile.state import names
from dljob.reconcile.state.context import ReconcileContext
from dljob.reconcile.state.fields import bounded, text
from dljob.reconcile.state.model import Action, Annotate, Command, Pod
from dljob.reconcile.state.steps import PolicyDecision
from dljob.telemetry.wording import counted

SIZE = 240
"""The length of a cause; the gateway accepts 253 characters."""
PODS_A_PASS = 20
CAUSES = ("Command cause/", "Command leave/")


def tell(case: ReconcileContext) -> PolicyDecision | None:
    """Send PrimeMaster the ends of pods, before `annotate.pods` gives these pods the ids of other Ray nodes."""
    if not case.reachable:
        return None
    ends = [(pod, node) for pod in case.observed.pods if (node := _node(case, pod)) and _is_unreported(pod)]
    if not ends:
        return None
    actions = tuple(action for pod, node in ends[:PODS_A_PASS] for action in _report_end(case, pod, node))
    rest = max(0, len(ends) - PODS_A_PASS)
    return PolicyDecision(
        f"{counted(len(ends), 'pod')} ended, and PrimeMaster does not know why", actions, postponed=rest
    )


def announce(case: ReconcileContext, pod: Pod, reason: str) -> tuple[Action, ...]:
    """Tell PrimeMaster that the operator is about to delete a pod, and why: it may be gone before the next pass."""
    node, id_ = _ray_node_of(case, pod), f"leave/{pod.uid}"
    if not node or not case.reachable or _unheard(case) or id_ in case.observed.commands:
        return ()
    words = bounded(f"{reason} ({_place(pod)})", SIZE)
    return (Command(id_, case.cluster_name, case.address, "cause", f"node/{node}", words),)


def _report_end(case: ReconcileContext, pod: Pod, node: str) -> tuple[Action, ...]:
    noted = Annotate("Pod", pod.name, {names.TOLD: _digest(pod)})
    id_ = f"cause/{pod.uid}/{_digest(pod)}"
    if _unheard(case) or id_ in case.observed.commands:
        return (noted,)
    words = bounded(f"{pod.end} ({_place(pod)})", SIZE)
    return (Command(id_, case.cluster_name, case.address, "cause", f"node/{node}", words), noted)


def _place(pod: Pod) -> str:
    return f"pod {pod.name} on Kubernetes node {pod.node}" if pod.node else f"pod {pod.name}"


def _unheard(case: ReconcileContext) -> bool:
    """Whether the gateway is of an older version without this command; the job continues without it."""
    return any(trouble.code == REFUSED and trouble.action.startswith(CAUSES) for trouble in case.observed.troubles)


def _node(case: ReconcileContext, pod: Pod) -> str:
    """Return the Ray node of a pod that ends or has ended; empty for a pod that holds nothing of the job."""
    return _ray_node_of(case, pod) if pod.end else ""


def _ray_node_of(case: ReconcileContext, pod: Pod) -> str:
    if pod.head or case.observed.master is None:
        return ""
    nodes = (text(place, "node") for place in case.observed.master.placement if text(place, "pod") == pod.name)
    return pod.annotations.get(names.RAY_NODE) or next(nodes, "")


def _is_unreported(pod: Pod) -> bool:
    return pod.annotations.get(names.TOLD) != _digest(pod)


def _digest(pod: Pod) -> str:
    return hashlib.sha256(f"{pod.restarts}/{pod.end}".encode()).hexdigest()[:12]
