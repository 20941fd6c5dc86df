"""What keeps the pods of machines in one domain, or on hosts of their own: affinity, as Kubernetes has it."""

from __future__ import annotations

from dljob.plan.model import MachineGroup
from dljob.raycluster.overlay import Object

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
HOST = "kubernetes.io/hostname"
CLUSTER, GROUP = "ray.io/cluster", "ray.io/group"
"""Labels of KubeRay's pods. Source: KubeRay 1.6.2, controllers/ray/utils/constant.go."""


def with_domains(pod: Object, group: MachineGroup, cluster: str) -> Object:
    """A pod that keeps to the domain of the other pods of its group, and away from their hosts, as the plan wants it.

    Terms of a template stay beside. Pods of one attempt only: those of the last one may yet be ending elsewhere. The
    first pod of a group goes anywhere, and the others follow it.
    """
    labels = dict(group.labels)
    together = [_term(key, {CLUSTER: cluster, key: labels[key]}) for key in group.domains]
    apart = [_term(HOST, {CLUSTER: cluster, GROUP: group.name})] if group.spread else []
    if not together and not apart:
        return pod
    affinity = dict(pod.get("affinity") or {})
    for name, terms in (("podAffinity", together), ("podAntiAffinity", apart)):
        if terms:
            there = dict(affinity.get(name) or {})
            affinity[name] = {**there, REQUIRED: [*(there.get(REQUIRED) or []), *terms]}
    return {**pod, "affinity": affinity}


def _term(key: str, labels: dict[str, str]) -> Object:
    return {"topologyKey": key, "labelSelector": {"matchLabels": labels}}
