"""Changes of a running RayCluster, as a JSON Patch that tests what it rests on.

To the API server `workerGroupSpecs` is one atomic list: a server-side apply would remove entries of a queue or of
another author (ADR 8). A JSON Patch names a group by its index, so it tests the group's name and the resourceVersion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dljob.reconcile.state import names
from dljob.reconcile.state.fields import items, number, part, text, texts
from dljob.reconcile.state.model import Object, PatchCluster

HOSTNAME = "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ANNOTATION = "/metadata/annotations/" + names.EXCLUDED.replace("/", "~1")


def operations(cluster: Object, action: PatchCluster) -> list[Object]:
    """Return the JSON Patch that applies an action to a RayCluster just read; empty: it has been applied already."""
    # Tests alone are no patch: an action that has been applied must not fail on a new resourceVersion.
    changes = list(_changes(cluster, action))
    return [*_tests(cluster, action.uid), *changes] if changes else []


def excluded(cluster: Object | None) -> tuple[str, ...]:
    """Return the Kubernetes nodes that the operator keeps a RayCluster's new pods away from."""
    words = text(cluster, "metadata", "annotations", names.EXCLUDED)
    return tuple(words.split(",")) if words else ()


def avoided_nodes(cluster: Object | None) -> frozenset[str] | None:
    """Return all Kubernetes nodes that a RayCluster's pods avoid, whoever set that; None: its spec is unknown."""
    groups = [*items(cluster, "spec", "workerGroupSpecs"), part(cluster, "spec", "headGroupSpec")]
    if not all(part(group, "template") for group in groups):
        return None
    return frozenset(node for group in groups for node in excluded_nodes(part(group, "template", "spec")))


def excluded_nodes(pod: Object) -> Iterator[str]:
    """Yield the Kubernetes nodes that the affinity in a pod's spec excludes."""
    for term in items(pod, "affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms"):
        for expression in items(term, "matchExpressions"):
            if (expression.get("key"), expression.get("operator")) == (HOSTNAME, "NotIn"):
                yield from texts(expression, "values")


def excluding(cluster: Object, nodes: Sequence[str]) -> Object:
    """Return a RayCluster, not yet created, whose pods avoid these Kubernetes nodes."""
    if not nodes:
        return cluster
    meta = part(cluster, "metadata")
    noted = {**part(meta, "annotations"), names.EXCLUDED: ",".join(nodes)}
    return {**cluster, "metadata": {**meta, "annotations": noted}, "spec": with_exclusions(cluster["spec"], nodes)}


def with_exclusions(spec: Object, nodes: Sequence[str]) -> Object:
    """Return the spec of a RayCluster whose pods avoid these Kubernetes nodes."""
    workers = [_exclude_in_group(group, nodes) for group in items(spec, "workerGroupSpecs")]
    return {**spec, "headGroupSpec": _exclude_in_group(part(spec, "headGroupSpec"), nodes), "workerGroupSpecs": workers}


def scaled(spec: Object, cluster: Object) -> Object:
    """Return the spec of a RayCluster with the pod numbers that it has now, where its bounds allow them."""
    replicas_by_group = {
        text(group, "groupName"): number(group, "replicas") for group in items(cluster, "spec", "workerGroupSpecs")
    }
    workers = [
        {**group, "replicas": replicas_by_group[name]}
        if number(group, "minReplicas")
        <= replicas_by_group.get(name := text(group, "groupName"), -1)
        <= number(group, "maxReplicas")
        else group
        for group in items(spec, "workerGroupSpecs")
    ]
    return {**spec, "workerGroupSpecs": workers}


def _exclude_in_group(group: Object, nodes: Sequence[str]) -> Object:
    template = part(group, "template")
    pod = part(template, "spec")
    pod_spec = {**pod, "affinity": affinity(part(pod, "affinity"), (), nodes)}
    return {**group, "template": {**template, "spec": pod_spec}}


def _tests(cluster: Object, uid: str) -> Iterator[Object]:
    yield {"op": "test", "path": "/metadata/uid", "value": uid}
    yield {"op": "test", "path": "/metadata/resourceVersion", "value": text(cluster, "metadata", "resourceVersion")}
    for at, group in enumerate(items(cluster, "spec", "workerGroupSpecs")):
        yield {"op": "test", "path": f"/spec/workerGroupSpecs/{at}/groupName", "value": text(group, "groupName")}


def _changes(cluster: Object, action: PatchCluster) -> Iterator[Object]:
    yield from _clusters_without(cluster, action.excluded)
    scales = {scale.group: scale for scale in action.scales}
    for at, group in enumerate(items(cluster, "spec", "workerGroupSpecs")):
        scale = scales.get(text(group, "groupName"))
        if scale is not None and scale.replicas != number(group, "replicas"):
            place = f"/spec/workerGroupSpecs/{at}"
            yield {"op": "add", "path": f"{place}/replicas", "value": scale.replicas}
            if scale.removed:
                yield {"op": "add", "path": f"{place}/scaleStrategy", "value": {"workersToDelete": list(scale.removed)}}


def _clusters_without(cluster: Object, nodes: Sequence[str] | None) -> Iterator[Object]:
    old_nodes = excluded(cluster)
    if nodes is None or old_nodes == nodes:
        return
    groups = [("headGroupSpec", part(cluster, "spec", "headGroupSpec"))]
    groups += [(f"workerGroupSpecs/{at}", g) for at, g in enumerate(items(cluster, "spec", "workerGroupSpecs"))]
    for place, group in groups:
        old = part(group, "template", "spec", "affinity")
        yield from _set(f"/spec/{place}/template/spec/affinity", old, affinity(old, old_nodes, nodes))
    # JSON Patch adds no key to a mapping that does not exist.
    if not part(cluster, "metadata", "annotations"):
        yield {"op": "add", "path": "/metadata/annotations", "value": {}}
    yield from _set(ANNOTATION, ",".join(old_nodes), ",".join(nodes))


def _set(path: str, old: object, new: object) -> Iterator[Object]:
    """Yield the operation that replaces a value by another; an empty value means that there is none."""
    if new and new != old:
        yield {"op": "add", "path": path, "value": new}
    elif old and not new:
        yield {"op": "remove", "path": path}


def affinity(old: Object, old_nodes: Sequence[str], nodes: Sequence[str]) -> dict[str, Any]:
    """Return a pod's affinity with our excluded nodes replaced by others; everything else in it stays."""
    on_nodes = part(old, "nodeAffinity")
    required = part(on_nodes, REQUIRED)
    # A node must match one of the terms and all expressions of that term: ours is added to each of them.
    terms = items(required, "nodeSelectorTerms")
    new_terms = [new_term for term in terms if (new_term := _term(term, old_nodes, nodes)) is not None]
    if nodes and not terms:
        new_terms = [{"matchExpressions": [_affinity(nodes)]}]  # there is no term to add to
    own_affinity = _with(on_nodes, REQUIRED, _with(required, "nodeSelectorTerms", new_terms))
    return _with(old, "nodeAffinity", own_affinity)


def _term(term: Object, old_nodes: Sequence[str], nodes: Sequence[str]) -> Object | None:
    """Return one of the alternative terms of a node affinity, changed; None: only our expression was in it."""
    if not term:
        return term  # an empty term matches no node; with our expression in it, it would match some
    expressions = list(items(term, "matchExpressions"))
    if old_nodes and _affinity(old_nodes) in expressions:
        expressions.reverse()  # ours is the last one: a template may contain an equal expression before it
        expressions.remove(_affinity(old_nodes))
        expressions.reverse()
    if nodes:
        expressions.append(_affinity(nodes))
    return _with(term, "matchExpressions", expressions) or None


def _affinity(nodes: Sequence[str]) -> Object:
    return {"key": HOSTNAME, "operator": "NotIn", "values": list(nodes)}


def _with(old: Object, key: str, value: object) -> dict[str, Any]:
    """Return the mapping with another value for `key`, or without `key` if the value is empty."""
    other_entries = {name: old_value for name, old_value in old.items() if name != key}
    return {**other_entries, key: value} if value else other_entries
