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
    known = {text(entry, "name"): entry for entry in items(case.old, "nodes", "excluded")}
    annotation = "" if case.ref else case.annotations.get(names.EXCLUDE_NODES, "")
    if not (known or annotation or items(case.snapshot, "nodes", "excluded")):
        return []
    named, of_master = list(_of_user(case, known, annotation)), list(_of_master(case, known))
    names_now = {entry["name"] for entry in (*of_master, *named)}
    before = [entry for entry in _of_before(case, known) if entry["name"] not in names_now]
    # Entries of users are cut off first: the annotation repeats them, but only the status knows what PrimeMaster left.
    return _lifted(case, [*[*before, *of_master][-MAX_EXCLUDED:], *named])


def unlisted(case: ReconcileContext) -> tuple[Event, ...]:
    """Return an Event about excluded nodes for which the status has no room."""
    more = [entry["name"] for entry in every(case)[MAX_EXCLUDED:]]
    if not more:
        return ()
    first = ", ".join(more[:SHOWN])
    count = f"{first} and {len(more) - SHOWN} others" if len(more) > SHOWN else first
    reason = f"annotation {names.EXCLUDE_NODES} names more Kubernetes nodes than status.nodes.excluded has room for"
    return (Event("Warning", reasons.NODE_EXCLUDED, f"{reason}: the job's pods leave {count}, too", "ExcludeNode"),)


def avoided(entries: list[Entry]) -> tuple[str, ...]:
    """Return the Kubernetes nodes that new pods are kept away from."""
    return tuple(sorted({text(entry, "kubernetesNode") for entry in entries if entry.get("avoided")}))


def next_attempt(case: ReconcileContext) -> Object:
    """Return the part of `status.nodes` that the next attempt needs."""
    avoided_entries = [entry for entry in entries(case) if entry.get("avoided")]
    return {"excluded": avoided_entries} if avoided_entries else {}


def state(nodes: Object) -> list[tuple[object, ...]]:
    """Return the part of the excluded nodes whose change is a change of state."""
    return [tuple(entry.get(key) for key in ("name", "reason", *OWN)) for entry in items(nodes, "excluded")]


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
        recorded = (entry for entry in known.values() if text(entry, "reason") != REQUESTED)
        yield from (dict(entry) for entry in recorded if number(entry, "attempt") in (0, case.attempt))
        return
    reported = exclusions(case.snapshot)
    left_nodes = {entry["name"] for entry in reported}
    for entry in reported:
        old = known.get(entry["name"], {})
        yield {**entry, **({key: old[key] for key in OWN if key in old} or _pod_and_node(case, entry, left_nodes))}


def _pod_and_node(case: ReconcileContext, entry: Object, left_nodes: set[str]) -> Entry:
    """Return pod and Kubernetes node of a Ray node; empty: the pod is unknown, or the node needs no exclusion."""
    pod = _pod_of(case, entry["name"])
    if case.ref or pod is None or not pod.node or text(entry, "reason") == ANNOUNCED:
        return {}
    # Frozen or lost may be the pod alone. A failed check or a broken device is the machine's own.
    is_alone = not any(_answers(neighbour, pod, left_nodes) for neighbour in case.observed.pods)
    bad = is_alone or text(entry, "reason") not in SILENT
    return {"kubernetesNode": pod.node, "pod": pod.name, "avoided": bad, "attempt": case.attempt}


def _pod_of(case: ReconcileContext, node: str) -> Pod | None:
    placement = case.observed.master.placement if case.observed.master is not None else ()
    pod_names = {text(place, "pod") for place in placement if text(place, "node") == node}
    pods = (pod for pod in case.observed.pods if not pod.head)
    return next((pod for pod in pods if pod.annotations.get(names.RAY_NODE) == node or pod.name in pod_names), None)


def _answers(neighbour: Pod, pod: Pod, left_nodes: set[str]) -> bool:
    """Whether another pod on the same Kubernetes node is alive, as far as is known."""
    is_alive = neighbour.node == pod.node and neighbour.uid != pod.uid and neighbour.ready and not neighbour.leaving
    return is_alive and neighbour.annotations.get(names.RAY_NODE) not in left_nodes


def _of_user(case: ReconcileContext, known: Mapping[str, Object], annotation: str) -> Iterator[Entry]:
    """Yield the nodes that the annotation names; a word that cannot be a node name is skipped."""
    for name in sorted({word.strip() for word in annotation.split(",")}):
        if NODE.fullmatch(name):
            since = text(known.get(name, {}), "since") or stamp(case.now)
            yield {"name": name, "reason": REQUESTED, "since": since, "kubernetesNode": name, "avoided": True}


def _of_before(case: ReconcileContext, known: Mapping[str, Object]) -> Iterator[Entry]:
    """Yield the nodes left in earlier attempts until their time is over: this PrimeMaster knows none of them."""
    for entry in known.values():
        if 0 < number(entry, "attempt") < case.attempt and (seconds(text(entry, "until")) or 0.0) > case.now:
            yield dict(entry)


def _lifted(case: ReconcileContext, every: list[Entry]) -> list[Entry]:
    """Lift exclusions while a pod finds no node: a bad node is better than none.

    Nodes that failed their check and nodes that users name stay excluded.
    """
    pods = unschedulable_pods(case, avoided(every))
    if not any(case.now - pod.created >= patience(case) for pod in pods):
        return every
    # What users name is their decision, and a node that failed its check would only fail it again.
    fixed = (REQUESTED, CHECK_FAILED)
    return [{**row, "avoided": False} if row.get("avoided") and row["reason"] not in fixed else row for row in every]


def changes(old: Object, new: Object) -> Iterator[tuple[str, str, str]]:
    """Yield (type, reason, message) of an Event for each Kubernetes node that becomes excluded or usable again.

    A node that a user names may be missing from a full list and still be excluded: it causes no Event.
    """
    full = len(items(new, "excluded")) >= MAX_EXCLUDED
    before = {text(entry, "name"): entry for entry in items(old, "excluded") if text(entry, "kubernetesNode")}
    after = {text(entry, "name"): entry for entry in items(new, "excluded") if text(entry, "kubernetesNode")}
    for name, entry in after.items():
        if name not in before:
            yield "Warning", reasons.NODE_EXCLUDED, _describe(entry)
    for name, entry in before.items():
        if full and name not in after and text(entry, "reason") == REQUESTED:
            continue
        if entry.get("avoided") and not part(after, name).get("avoided"):
            reason = "no other node takes them" if name in after else "it is excluded no longer"
            yield (
                "Normal",
                reasons.NODE_READMITTED,
                f"new pods may go to Kubernetes node {entry['kubernetesNode']}: {reason}",
            )


def _describe(entry: Object) -> str:
    node, until = entry["kubernetesNode"], text(entry, "until")
    if text(entry, "reason") == REQUESTED:
        return f"annotation {names.EXCLUDE_NODES} names Kubernetes node {node}: the job's pods leave it"
    words = f"pod {entry['pod']} on Kubernetes node {node} is replaced: {entry['reason']}"
    if entry.get("avoided"):
        return f"{words}; new pods keep away from {node}{f' until {until}' if until else ''}"
    return f"{words}; other pods of the job answer there, so {node} is used on"
