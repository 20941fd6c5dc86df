"""Tolerations: how long pods stay on a Kubernetes node that does not answer."""

from __future__ import annotations

from dljob.raycluster.overlay import Object
from dljob.spec.policy import NodePolicy

LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Taints of a node whose kubelet is silent."""
TOLERATION_SECONDS = 300
"""Seconds that pods stay on such a node: Kubernetes' own default.

The containers of a kubelet that restarts, is upgraded or cut off run on, and to delete their pods costs the job a
restart. A machine that is dead costs no such wait: PrimeMaster misses its heartbeats within seconds, and where it is
the head's, the operator sees that neither the kubelet nor PrimeMaster answers.
"""


def with_patience(pod: Object, policy: NodePolicy, toleration_seconds: int = TOLERATION_SECONDS) -> Object:
    """Return a pod that stays on such a node for this time, unless a template sets another time.

    Unchanged where `faultTolerance.node.action` is Ignore.
    """
    if policy.action == "Ignore":
        return pod
    template_tolerations: list[Object] = pod.get("tolerations", [])
    # A template's toleration of the same taint is the user's decision: it is not doubled.
    added_tolerations = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": toleration_seconds}
        for key in LOST
        if not any(_covers(toleration, key) for toleration in template_tolerations)
    ]
    return {**pod, "tolerations": [*template_tolerations, *added_tolerations]} if added_tolerations else pod


def _covers(toleration: Object, key: str) -> bool:
    """Return whether a toleration applies to such a taint; one without a key applies to all."""
    return toleration.get("key", key) == key and toleration.get("effect", "NoExecute") == "NoExecute"
