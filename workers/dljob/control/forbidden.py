"""Pods that no job may have: those with the rights of the operator, or of the machine."""

from __future__ import annotations

from collections.abc import Iterator

from dljob.control.fields import field, items, part, text
from dljob.control.model import Object

DEFAULT = "default"
"""The service account of a pod that names none."""


def forbidden(cluster: Object, operator: str) -> str:
    """What a RayCluster must not ask for, in words; empty when it does not.

    Args:
        cluster: the whole RayCluster, templates laid over it.
        operator: `namespace/name` of the operator's own service account; empty: none is kept.
    """
    namespace, _, account = operator.partition("/")
    here = text(cluster, "metadata", "namespace") == namespace
    for place, pod in _pods(cluster):
        used = text(pod, "serviceAccountName") or text(pod, "serviceAccount") or (DEFAULT if _has_token(pod) else "")
        if account and here and used == account:
            return f"{place}: service account {account} is the operator's own; choose another"
        for kind in ("initContainers", "containers"):
            for container in items(pod, kind):
                if field(container, "securityContext", "privileged") is True:
                    name = text(container, "name")
                    return f"{place}: container {name} is privileged; ask for the capabilities that it needs"
    return ""


def _has_token(pod: Object) -> bool:
    """Whether a pod can act as its service account; our own pods cannot, whichever that is."""
    volumes = (source for volume in items(pod, "volumes") for source in items(volume, "projected", "sources"))
    projected = any(field(source, "serviceAccountToken") is not None for source in volumes)
    return projected or field(pod, "automountServiceAccountToken") is not False


def _pods(cluster: Object) -> Iterator[tuple[str, Object]]:
    spec = part(cluster, "spec")
    yield "head", part(spec, "headGroupSpec", "template", "spec")
    for group in items(spec, "workerGroupSpecs"):
        yield f"node group {text(group, 'groupName')}", part(group, "template", "spec")
