"""Which Kubernetes nodes are bad, as `status.nodes.excluded` remembers it: what PrimeMaster left, and what users name.

PrimeMaster knows Ray nodes, whose ids end with their RayCluster. Which pod and Kubernetes node one was is seen while
the pod is there, and kept: beyond the pod, a restart of the operator and the attempt.
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
"""The reason of a node that the annotation `dljob.io/exclude-nodes` names."""
ANNOUNCED = "Preempted"
"""PrimeMaster's reason of a node that is announced to go: it was not bad, and its pod goes by itself."""
CHECK_FAILED = "CheckFailed"
SILENT = (told.NODE_FROZEN, told.NODE_LOST)
"""Reasons that may be of a pod alone: where others of the job answer, the Kubernetes node does too."""
OWN = ("kubernetesNode", "pod", "avoided", "attempt")
"""What PrimeMaster does not know of them."""
NODE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""What can be the value of the label kubernetes.io/hostname."""
DEFAULT_PATIENCE = 300
SHOWN = 5
"""So many nodes are named."""


def entries(case: ReconcileContext) -> list[Entry]:
    """The excluded nodes as the status has them: as many as it has room for, those that users name last."""
    return every(case)[:MAX_EXCLUDED]


def every(case: ReconcileContext) -> list[Entry]:
    """The excluded nodes as they are now: what PrimeMaster left, the newest last, then all that users name.

    Where the RayCluster is not the job's, Ray's names alone.
    """
    known = {text(one, "name"): one for one in items(case.old, "nodes", "excluded")}
    wanted = "" if case.ref else case.annotations.get(names.EXCLUDE_NODES, "")
    if not (known or wanted or items(case.snapshot, "nodes", "excluded")):
        return []
    named, left = list(_of_user(case, known, wanted)), list(_of_master(case, known))
    names_now = {one["name"] for one in (*left, *named)}
    before = [one for one in _of_before(case, known) if one["name"] not in names_now]
    # The annotation says again what users name, and nothing but the status what PrimeMaster left.
    return _lifted(case, [*[*before, *left][-MAX_EXCLUDED:], *named])


def unlisted(case: ReconcileContext) -> tuple[Event, ...]:
    """An Event about the nodes that are excluded, and that the status has no room for."""
    more = [one["name"] for one in every(case)[MAX_EXCLUDED:]]
    if not more:
        return ()
    first = ", ".join(more[:SHOWN])
    count = f"{first} and {len(more) - SHOWN} others" if len(more) > SHOWN else first
    why = f"annotation {names.EXCLUDE_NODES} names more Kubernetes nodes than status.nodes.excluded has room for"
    return (Event("Warning", reasons.NODE_EXCLUDED, f"{why}: the job's pods leave {count}, too", "ExcludeNode"),)


def avoided(entries: list[Entry]) -> tuple[str, ...]:
    """The Kubernetes nodes that new pods keep away from."""
    return tuple(sorted({text(one, "kubernetesNode") for one in entries if one.get("avoided")}))


def next_attempt(case: ReconcileContext) -> Object:
    """What of `status.nodes` the next attempt needs to know."""
    kept = [one for one in entries(case) if one.get("avoided")]
    return {"excluded": kept} if kept else {}


def state(nodes: Object) -> list[tuple[object, ...]]:
    """What is a change of state in the excluded nodes."""
    return [tuple(one.get(key) for key in ("name", "reason", *OWN)) for one in items(nodes, "excluded")]


def patience(case: ReconcileContext) -> float:
    """Seconds that a pod may find no node before one that was excluded is better than none: PrimeMaster's, by half."""
    terms = case.terms
    return (DEFAULT_PATIENCE if isinstance(terms, Refused) else terms.pending_timeout) / 2


def kept_out(case: ReconcileContext, nodes: tuple[str, ...]) -> list[Pod]:
    """The pods that no node takes, and that keep away from some of these."""
    return [
        pod
        for pod in case.observed.pods
        if pod.trouble_reason == "Unschedulable" and not pod.leaving and set(pod.away) & set(nodes)
    ]


def _of_master(case: ReconcileContext, known: Mapping[str, Object]) -> Iterator[Entry]:
    """What PrimeMaster left in this attempt, as it says now or said last."""
    if not case.snapshot:
        mine = (one for one in known.values() if text(one, "reason") != REQUESTED)
        yield from (dict(one) for one in mine if number(one, "attempt") in (0, case.attempt))
        return
    said = exclusions(case.snapshot)
    gone = {one["name"] for one in said}
    for one in said:
        old = known.get(one["name"], {})
        yield {**one, **({key: old[key] for key in OWN if key in old} or _found(case, one, gone))}


def _found(case: ReconcileContext, one: Object, gone: set[str]) -> Entry:
    """Which pod and Kubernetes node a Ray node is; empty: that cannot be seen, or is of no use."""
    pod = _pod_of(case, one["name"])
    if case.ref or pod is None or not pod.node or text(one, "reason") == ANNOUNCED:
        return {}
    alone = not any(_answers(other, pod, gone) for other in case.observed.pods)
    bad = alone or text(one, "reason") not in SILENT
    return {"kubernetesNode": pod.node, "pod": pod.name, "avoided": bad, "attempt": case.attempt}


def _pod_of(case: ReconcileContext, node: str) -> Pod | None:
    placement = case.observed.master.placement if case.observed.master is not None else ()
    held = {text(place, "pod") for place in placement if text(place, "node") == node}
    pods = (pod for pod in case.observed.pods if not pod.head)
    return next((pod for pod in pods if pod.annotations.get(names.RAY_NODE) == node or pod.name in held), None)


def _answers(other: Pod, pod: Pod, gone: set[str]) -> bool:
    """Whether another pod lives on the same Kubernetes node, as far as anybody knows."""
    there = other.node == pod.node and other.uid != pod.uid and other.ready and not other.leaving
    return there and other.annotations.get(names.RAY_NODE) not in gone


def _of_user(case: ReconcileContext, known: Mapping[str, Object], wanted: str) -> Iterator[Entry]:
    """What the annotation names; what cannot be a node's name is left out."""
    for name in sorted({word.strip() for word in wanted.split(",")}):
        if NODE.fullmatch(name):
            since = text(known.get(name, {}), "since") or stamp(case.now)
            yield {"name": name, "reason": REQUESTED, "since": since, "kubernetesNode": name, "avoided": True}


def _of_before(case: ReconcileContext, known: Mapping[str, Object]) -> Iterator[Entry]:
    """What was left in earlier attempts, until its time is over; PrimeMaster knows nothing of those any more."""
    for one in known.values():
        if 0 < number(one, "attempt") < case.attempt and (seconds(text(one, "until")) or 0.0) > case.now:
            yield dict(one)


def _lifted(case: ReconcileContext, every: list[Entry]) -> list[Entry]:
    """An excluded node is better than none, but for one that failed its check and what users want."""
    pods = kept_out(case, avoided(every))
    if not any(case.now - pod.made >= patience(case) for pod in pods):
        return every
    fixed = (REQUESTED, CHECK_FAILED)
    return [{**one, "avoided": False} if one.get("avoided") and one["reason"] not in fixed else one for one in every]


def news(old: Object, new: Object) -> Iterator[tuple[str, str, str]]:
    """(type, reason, message) of an Event for each Kubernetes node that is excluded now, or no longer.

    One that a user names, and that is not in a full list any more, may be excluded all the same.
    """
    full = len(items(new, "excluded")) >= MAX_EXCLUDED
    before = {text(one, "name"): one for one in items(old, "excluded") if text(one, "kubernetesNode")}
    after = {text(one, "name"): one for one in items(new, "excluded") if text(one, "kubernetesNode")}
    for name, one in after.items():
        if name not in before:
            yield "Warning", reasons.NODE_EXCLUDED, _words(one)
    for name, one in before.items():
        if full and name not in after and text(one, "reason") == REQUESTED:
            continue
        if one.get("avoided") and not part(after, name).get("avoided"):
            why = "no other takes them" if name in after else "it is excluded no longer"
            yield (
                "Normal",
                reasons.NODE_READMITTED,
                f"new pods may go to Kubernetes node {one['kubernetesNode']}: {why}",
            )


def _words(one: Object) -> str:
    node, until = one["kubernetesNode"], text(one, "until")
    if text(one, "reason") == REQUESTED:
        return f"annotation {names.EXCLUDE_NODES} names Kubernetes node {node}: the job's pods leave it"
    why = f"pod {one['pod']} on Kubernetes node {node} is replaced: {one['reason']}, Ray node {one['name']}"
    if one.get("avoided"):
        return f"{why}; new pods keep away from {node}{f' until {until}' if until else ''}"
    return f"{why}; other pods of the job answer there, so {node} is used on"
