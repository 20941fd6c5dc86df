"""The excluded Kubernetes nodes in `status.nodes.excluded`: those that PrimeMaster left, and those that users name.

PrimeMaster knows Ray nodes, whose ids end with their RayCluster. Only the pod, while it exists, tells which Kubernetes
node a Ray node was. The status keeps that beyond the pod, a restart of the operator and the attempt (ADR 38).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from dljob.reconcile.state import names, reasons
from dljob.reconcile.state.accept import Refused
from dljob.reconcile.state.context import ReconcileContext, seconds, stamp
from dljob.reconcile.state.fields import items, number, part, text
from dljob.reconcile.state.model import Event, Object, Pod
from dljob.reconcile.state.snapshot import MAX_EXCLUDED, exclusions
from dljob.telemetry import reasons as told

Entry: TypeAlias = dict[str, Any]

REQUESTED = "Requested"
"""The reason for a node that the annotation `dljob.io/exclude-nodes` names."""
ANNOUNCED = "Preempted"
"""PrimeMaster's reason for a node with an announced departure. The node is not bad, and its pod ends by itself."""
CHECK_FAILED = "CheckFailed"
SILENT = (told.NODE_FROZEN, told.NODE_LOST)
"""Reasons that may concern one pod alone: where other pods of the job answer, the Kubernetes node is healthy."""
OWN = ("kubernetesNode", "pod", "avoided", "attempt")
"""Keys of an entry that the operator adds to what PrimeMaster reports."""
NODE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""The syntax of a value of the label kubernetes.io/hostname."""
# faultTolerance.node.pendingTimeoutSeconds, where the spec cannot be read.
DEFAULT_PATIENCE = 300
SHOWN = 5
"""Number of nodes that an Event names."""


def entries(case: ReconcileContext) -> list[Entry]:
    """Return the excluded nodes that fit into the status; those that users name come last."""
    return every(case)[:MAX_EXCLUDED]


def every(case: ReconcileContext) -> list[Entry]:
    """Return all excluded nodes: those that PrimeMaster left, the newest last, then all that users name.

    On the RayCluster of spec.rayClusterRef the entries have Ray's node names alone: its pods are not the job's.
    """
    known = {text(one, "name"): one for one in items(case.old, "nodes", "excluded")}
    wanted = "" if case.ref else case.annotations.get(names.EXCLUDE_NODES, "")
    if not (known or wanted or items(case.snapshot, "nodes", "excluded")):
        return []
    named, left = list(_of_user(case, known, wanted)), list(_of_master(case, known))
    names_now = {one["name"] for one in (*left, *named)}
    before = [one for one in _of_before(case, known) if one["name"] not in names_now]
    # Entries of users are cut off first: the annotation repeats them, but only the status knows what PrimeMaster left.
    return _lifted(case, [*[*before, *left][-MAX_EXCLUDED:], *named])


def unlisted(case: ReconcileContext) -> tuple[Event, ...]:
    """Return an Event about excluded nodes for which the status has no room."""
    more = [one["name"] for one in every(case)[MAX_EXCLUDED:]]
    if not more:
        return ()
    first = ", ".join(more[:SHOWN])
    count = f"{first} and {len(more) - SHOWN} others" if len(more) > SHOWN else first
    why = f"annotation {names.EXCLUDE_NODES} names more Kubernetes nodes than status.nodes.excluded has room for"
    return (Event("Warning", reasons.NODE_EXCLUDED, f"{why}: the job's pods leave {count}, too", "ExcludeNode"),)


def avoided(entries: list[Entry]) -> tuple[str, ...]:
    """Return the Kubernetes nodes that new pods are kept away from."""
    return tuple(sorted({text(one, "kubernetesNode") for one in entries if one.get("avoided")}))


def next_attempt(case: ReconcileContext) -> Object:
    """Return the part of `status.nodes` that the next attempt needs."""
    kept = [one for one in entries(case) if one.get("avoided")]
    return {"excluded": kept} if kept else {}


def state(nodes: Object) -> list[tuple[object, ...]]:
    """Return the part of the excluded nodes whose change is a change of state."""
    return [tuple(one.get(key) for key in ("name", "reason", *OWN)) for one in items(nodes, "excluded")]


def patience(case: ReconcileContext) -> float:
    """Return the seconds a pod may stay unplaced before exclusions are lifted: half of PrimeMaster's own patience."""
    terms = case.terms
    return (DEFAULT_PATIENCE if isinstance(terms, Refused) else terms.pending_timeout) / 2


def unschedulable_pods(case: ReconcileContext, nodes: tuple[str, ...]) -> list[Pod]:
    """Return the pods that no node accepts and whose affinity excludes some of `nodes`."""
    return [
        pod
        for pod in case.observed.pods
        if pod.trouble_reason == "Unschedulable" and not pod.leaving and set(pod.away) & set(nodes)
    ]


def _of_master(case: ReconcileContext, known: Mapping[str, Object]) -> Iterator[Entry]:
    """Yield the nodes that PrimeMaster left in this attempt, from its report or, without one, from the status."""
    if not case.snapshot:
        mine = (one for one in known.values() if text(one, "reason") != REQUESTED)
        yield from (dict(one) for one in mine if number(one, "attempt") in (0, case.attempt))
        return
    said = exclusions(case.snapshot)
    gone = {one["name"] for one in said}
    for one in said:
        old = known.get(one["name"], {})
        yield {**one, **({key: old[key] for key in OWN if key in old} or _pod_and_node(case, one, gone))}


def _pod_and_node(case: ReconcileContext, one: Object, gone: set[str]) -> Entry:
    """Return pod and Kubernetes node of a Ray node; empty: the pod is unknown, or the node needs no exclusion."""
    pod = _pod_of(case, one["name"])
    if case.ref or pod is None or not pod.node or text(one, "reason") == ANNOUNCED:
        return {}
    # Frozen or lost may be the pod alone. A failed check or a broken device is the machine's own.
    alone = not any(_answers(other, pod, gone) for other in case.observed.pods)
    bad = alone or text(one, "reason") not in SILENT
    return {"kubernetesNode": pod.node, "pod": pod.name, "avoided": bad, "attempt": case.attempt}


def _pod_of(case: ReconcileContext, node: str) -> Pod | None:
    placement = case.observed.master.placement if case.observed.master is not None else ()
    held = {text(place, "pod") for place in placement if text(place, "node") == node}
    pods = (pod for pod in case.observed.pods if not pod.head)
    return next((pod for pod in pods if pod.annotations.get(names.RAY_NODE) == node or pod.name in held), None)


def _answers(other: Pod, pod: Pod, gone: set[str]) -> bool:
    """Whether another pod on the same Kubernetes node is alive, as far as is known."""
    there = other.node == pod.node and other.uid != pod.uid and other.ready and not other.leaving
    return there and other.annotations.get(names.RAY_NODE) not in gone


def _of_user(case: ReconcileContext, known: Mapping[str, Object], wanted: str) -> Iterator[Entry]:
    """Yield the nodes that the annotation names; a word that cannot be a node name is skipped."""
    for name in sorted({word.strip() for word in wanted.split(",")}):
        if NODE.fullmatch(name):
            since = text(known.get(name, {}), "since") or stamp(case.now)
            yield {"name": name, "reason": REQUESTED, "since": since, "kubernetesNode": name, "avoided": True}


def _of_before(case: ReconcileContext, known: Mapping[str, Object]) -> Iterator[Entry]:
    """Yield the nodes left in earlier attempts until their time is over: this PrimeMaster knows none of them."""
    for one in known.values():
        if 0 < number(one, "attempt") < case.attempt and (seconds(text(one, "until")) or 0.0) > case.now:
            yield dict(one)


def _lifted(case: ReconcileContext, every: list[Entry]) -> list[Entry]:
    """Lift exclusions while a pod finds no node: a bad node is better than none.

    Nodes that failed their check and nodes that users name stay excluded.
    """
    pods = unschedulable_pods(case, avoided(every))
    if not any(case.now - pod.made >= patience(case) for pod in pods):
        return every
    # What users name is their decision, and a node that failed its check would only fail it again.
    fixed = (REQUESTED, CHECK_FAILED)
    return [{**one, "avoided": False} if one.get("avoided") and one["reason"] not in fixed else one for one in every]


def changes(old: Object, new: Object) -> Iterator[tuple[str, str, str]]:
    """Yield (type, reason, message) of an Event for each Kubernetes node that becomes excluded or usable again.

    A node that a user names may be missing from a full list and still be excluded: it causes no Event.
    """
    full = len(items(new, "excluded")) >= MAX_EXCLUDED
    before = {text(one, "name"): one for one in items(old, "excluded") if text(one, "kubernetesNode")}
    after = {text(one, "name"): one for one in items(new, "excluded") if text(one, "kubernetesNode")}
    for name, one in after.items():
        if name not in before:
            yield "Warning", reasons.NODE_EXCLUDED, _describe(one)
    for name, one in before.items():
        if full and name not in after and text(one, "reason") == REQUESTED:
            continue
        if one.get("avoided") and not part(after, name).get("avoided"):
            why = "no other node takes them" if name in after else "it is excluded no longer"
            yield (
                "Normal",
                reasons.NODE_READMITTED,
                f"new pods may go to Kubernetes node {one['kubernetesNode']}: {why}",
            )


def _describe(one: Object) -> str:
    node, until = one["kubernetesNode"], text(one, "until")
    if text(one, "reason") == REQUESTED:
        return f"annotation {names.EXCLUDE_NODES} names Kubernetes node {node}: the job's pods leave it"
    why = f"pod {one['pod']} on Kubernetes node {node} is replaced: {one['reason']}"
    if one.get("avoided"):
        return f"{why}; new pods keep away from {node}{f' until {until}' if until else ''}"
    return f"{why}; other pods of the job answer there, so {node} is used on"
