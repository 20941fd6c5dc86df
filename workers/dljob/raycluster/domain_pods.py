"""Pod affinity that keeps a group's pods in one topology domain, if possible or always, or on separate hosts."""

from __future__ import annotations

from dljob.plan.model import MachineGroup
from dljob.raycluster.overlay import Object

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
WEIGHT = 100
"""Of 1 to 100, against other preferences of a pod's template."""
HOST = "kubernetes.io/hostname"
CLUSTER, GROUP = "ray.io/cluster", "ray.io/group"
"""Labels of KubeRay's pods. Source: KubeRay 1.6.2, controllers/ray/utils/constant.go."""


def with_domains(pod: Object, group: MachineGroup, cluster: str) -> Object:
    """Return a pod with affinity to the domain of its group's other pods, and away from their hosts, as planned.

    Terms of a template are kept. Only pods of the same attempt count, since those of the previous one may still be
    ending elsewhere. Kubernetes places the first pod of a group anywhere, and the others follow it.
    """
    labels = dict(group.labels)
    together = [_term(key, {CLUSTER: cluster, key: labels[key]}) for key in group.domains]
    apart = [_term(HOST, {CLUSTER: cluster, GROUP: group.name})] if group.spread else []
    rather = [
        {"weight": WEIGHT, "podAffinityTerm": _term(key, {CLUSTER: cluster, key: labels[key]})}
        for key in group.preferred
    ]
    if not together and not apart and not rather:
        return pod
    affinity = dict(pod.get("affinity") or {})
    for name, kind, terms in (
        ("podAffinity", REQUIRED, together),
        ("podAffinity", PREFERRED, rather),
        ("podAntiAffinity", REQUIRED, apart),
    ):
        if terms:
            # Terms of a list all hold, or count, together: the template's and ours.
            present_terms = dict(affinity.get(name) or {})
            affinity[name] = {**present_terms, kind: [*(present_terms.get(kind) or []), *terms]}
    return {**pod, "affinity": affinity}


def _term(key: str, labels: dict[str, str]) -> Object:
    return {"topologyKey": key, "labelSelector": {"matchLabels": labels}}
