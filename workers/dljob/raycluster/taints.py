"""How long pods stay on a Kubernetes node that does not answer."""

from __future__ import annotations

from dljob.raycluster.overlay import Object
from dljob.spec.policy import NodePolicy

LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""What the node controller puts on a node whose kubelet is silent. Pods tolerate it for 300 s when they say nothing."""


def with_patience(pod: Object, policy: NodePolicy) -> Object:
    """A pod that stays on such a node for a while, unless a template says how long, or nodes are nobody's matter."""
    if policy.action == "Ignore":
        return pod
    given: list[Object] = pod.get("tolerations", [])
    ours = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": policy.unreachable_seconds}
        for key in LOST
        if not any(_covers(toleration, key) for toleration in given)
    ]
    return {**pod, "tolerations": [*given, *ours]} if ours else pod


def _covers(toleration: Object, key: str) -> bool:
    """Whether a toleration is about what a silent kubelet means; one without a key is about everything."""
    return toleration.get("key", key) == key and toleration.get("effect", "NoExecute") == "NoExecute"
