"""Annotations that the operator writes: the plan on DLJob and RayCluster; on each pod its units, roles and ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dljob.reconcile.state import accept, names
from dljob.reconcile.state.accept import Refused
from dljob.reconcile.state.context import ReconcileContext
from dljob.reconcile.state.fields import bounded, field, text, texts
from dljob.reconcile.state.model import Annotate, Object
from dljob.reconcile.state.placement import placement_plan
from dljob.reconcile.state.steps import PolicyDecision
from dljob.telemetry.wording import counted

PODS_A_PASS = 50
VALUE_SIZE = 4096
UNITS, ROLES, RANKS, NODE, ATTEMPT = names.ON_POD


def pods(case: ReconcileContext) -> PolicyDecision | None:
    """Annotate the pods whose annotations differ from what they hold now, with one patch each."""
    if case.ref or case.observed.master is None or case.observed.master.error or not case.observed.master.placement:
        return None
    place_by_pod = {text(place, "pod"): place for place in case.observed.master.placement if case.snapshot}
    actions: list[Annotate] = []
    for pod in case.observed.pods:
        new_annotations = (
            _on_pod(place_by_pod[pod.name], case.attempt) if pod.name in place_by_pod else dict.fromkeys(names.ON_POD)
        )
        change = {key: value for key, value in new_annotations.items() if pod.annotations.get(key) != value}
        if change and place_by_pod and not pod.leaving:
            actions.append(Annotate("Pod", pod.name, change))
    if not actions:
        return None
    # The rest follows in the next passes, between which an order to stop can come.
    now, left_count = tuple(actions[:PODS_A_PASS]), max(0, len(actions) - PODS_A_PASS)
    return PolicyDecision(
        f"the annotations of {counted(len(actions), 'pod')} name other units than they hold",
        now,
        requeue=0.0 if left_count else None,
        postponed=left_count,
    )


def plans(case: ReconcileContext) -> PolicyDecision | None:
    """Keep the plan of the running attempt in the annotations of DLJob and RayCluster.

    Runs only in a pass that writes no status: a patch of the DLJob changes the resourceVersion that the status is
    written with.
    """
    terms = case.terms
    if case.cluster is None or isinstance(terms, Refused) or text(case.old, "attemptSpecHash") != terms.hash:
        return None
    actions = tuple(_on_plan(case, terms.plan_hash))
    return (
        PolicyDecision("the annotations with the placement plan are missing or outdated", actions) if actions else None
    )


def _on_plan(case: ReconcileContext, digest: str) -> Iterator[Annotate]:
    on_job = case.annotations.get(names.PLAN_HASH) == digest and names.PLAN in case.annotations
    on_cluster = bool(case.ref) or field(case.cluster, "metadata", "annotations", names.PLAN_HASH) == digest
    if on_job and on_cluster:
        return  # the text of a plan may be 64 KiB, and is made only when it is needed
    plan_text, _ = placement_plan(accept.blueprint(case.source, case.settings).plan)
    plan = {names.PLAN: plan_text, names.PLAN_HASH: digest}
    if not on_cluster:
        yield Annotate("RayCluster", case.cluster_name, plan)
    if not on_job:
        yield Annotate("DLJob", case.name, plan)


def _on_pod(place: Object, attempt: int) -> Mapping[str, str | None]:
    """Return the annotations of a pod. `place` is its entry in the gateway's placement."""
    units = texts(place, "units")
    ranks = text(place, "ranks")
    roles = sorted({part.rpartition("/")[0] for part in ranks.split(",") if "/" in part})
    return {
        UNITS: bounded(",".join(units), VALUE_SIZE),
        ROLES: ",".join(roles),
        RANKS: bounded(ranks, VALUE_SIZE),
        NODE: text(place, "node"),
        ATTEMPT: str(attempt),
    }
