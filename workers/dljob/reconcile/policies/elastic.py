"""Elastic roles on Kubernetes: an edit of `replicas` becomes an order to PrimeMaster, whose wishes become worker pods.

When pods are to go, those that hold no unit are named, since KubeRay would delete any. The number of pods in a queued
RayCluster never changes: Kueue evicts a workload whose pod count is edited.
"""

from __future__ import annotations

from collections.abc import Iterator

from dljob.reconcile.policies.commands import refusal
from dljob.reconcile.state.accept import Refused
from dljob.reconcile.state.context import ReconcileContext
from dljob.reconcile.state.fields import items, number, part, text
from dljob.reconcile.state.model import Command, Object, PatchCluster, Scale
from dljob.reconcile.state.steps import PolicyDecision
from dljob.telemetry.wording import counted


def scale(case: ReconcileContext) -> PolicyDecision | None:
    """Order the numbers of ranks in the spec where PrimeMaster aims at others."""
    if isinstance(case.terms, Refused) or not case.reachable:
        return None
    targets = {text(row, "name"): number(row, "wanted") for row in items(case.snapshot, "roles") if "wanted" in row}
    for role, count in case.terms.roles:
        if role in targets and targets[role] != count:
            target = f"{role}={count}"
            # The generation makes the id unique: going back to an earlier number is a new order.
            id_ = f"scale/{target}/{case.generation}"
            if id_ not in case.observed.commands and refusal(case, id_) is None:
                action = Command(id_, case.cluster_name, case.address, "scale", target, "spec")
                return PolicyDecision(
                    f"{role} is to have {counted(count, 'rank')} instead of {targets[role]}", (action,)
                )
    return None


def machines(case: ReconcileContext) -> PolicyDecision | None:
    """Scale worker groups to what PrimeMaster wants; a pod that holds a unit is never removed."""
    counts = part(case.snapshot, "nodes", "wanted")
    if case.ref or case.queued or not counts or case.cluster is None:
        return None
    scales = tuple(_scales(case, counts))
    if not scales:
        return None
    words = ", ".join(f"{change.replicas} of {change.group}" for change in scales)
    action = PatchCluster(case.cluster_name, case.cluster["metadata"]["uid"], scales=scales)
    return PolicyDecision(f"PrimeMaster wants other numbers of worker pods: {words}", (action,))


def _scales(case: ReconcileContext, counts: Object) -> Iterator[Scale]:
    for group in items(case.cluster, "spec", "workerGroupSpecs"):
        name, have = text(group, "groupName"), number(group, "replicas")
        if name not in counts:
            continue
        low, high = number(group, "minReplicas"), number(group, "maxReplicas")
        want = min(max(number(counts, name), low), high)
        if want > have:
            yield Scale(name, want)
        # Fewer pods only as far as some hold no unit.
        elif want < have and (empty := _empty(case, name)):
            removed = empty[: have - want]
            yield Scale(name, have - len(removed), removed)


def _empty(case: ReconcileContext, group: str) -> tuple[str, ...]:
    """Return the pods of a group that hold no unit, those that are not ready first; empty: none, or not known.

    It is empty, too, while a unit has no place: PrimeMaster may have chosen one of these pods for it.
    """
    master, units = case.observed.master, part(case.snapshot, "placement")
    if master is None or master.error or not master.placement or number(units, "ready") < number(units, "units"):
        return ()
    holders = {text(place, "pod") for place in master.placement}
    members = [pod for pod in case.observed.pods if pod.group == group and not pod.head and not pod.leaving]
    return tuple(pod.name for pod in sorted(members, key=lambda pod: (pod.ready, pod.name)) if pod.name not in holders)
