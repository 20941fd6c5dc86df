"""Tolerations: how long pods stay on a Kubernetes node that does not answer."""

from __future__ import annotations

from dljob.raycluster.overlay import Object
from dljob.spec.policy import NodePolicy

LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Taints of a node whose kubelet is silent. By default pods tolerate them for 300 s."""


def with_patience(pod: Object, policy: NodePolicy) -> Object:
    """Return a pod that stays on such a node for `unreachableSeconds`, unless a template sets another time.

    Unchanged where `faultTolerance.node.action` is Ignore.
    """
    if policy.action == "Ignore":
        return pod
    given: list[Object] = pod.get("tolerations", [])
    # A template's toleration of the same taint is the user's decision: it is not doubled.
    ours = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": policy.unreachable_seconds}
        for key in LOST
        if not any(_covers(toleration, key) for toleration in given)
    ]
    return {**pod, "tolerations": [*given, *ours]} if ours else pod


def _covers(toleration: Object, key: str) -> bool:
    """Return whether a toleration applies to such a taint; one without a key applies to all."""
    return toleration.get("key", key) == key and toleration.get("effect", "NoExecute") == "NoExecute"
