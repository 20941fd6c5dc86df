"""Elastic roles on Kubernetes: an edit of `replicas` becomes an order, and what a job wants becomes worker pods.

Pods that hold nothing are named when some are to go: KubeRay would else end any. A queue's RayCluster keeps its pods:
Kueue evicts who changes their number.
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
    """Order the numbers of ranks that the spec has now, where PrimeMaster wants others."""
    if isinstance(case.terms, Refused) or not case.reachable:
        return None
    wanted = {text(row, "name"): number(row, "wanted") for row in items(case.snapshot, "roles") if "wanted" in row}
    for role, count in case.terms.roles:
        if role in wanted and wanted[role] != count:
            target = f"{role}={count}"
            id_ = f"scale/{target}/{case.generation}"
            if id_ not in case.observed.commands and refusal(case, id_) is None:
                action = Command(id_, case.cluster_name, case.address, "scale", target, "spec")
                return PolicyDecision(
                    f"{role} is to have {counted(count, 'rank')} instead of {wanted[role]}", (action,)
                )
    return None


def machines(case: ReconcileContext) -> PolicyDecision | None:
    """Have as many worker pods as PrimeMaster wants; of those that hold something none goes."""
    wanted = part(case.snapshot, "nodes", "wanted")
    if case.ref or case.queued or not wanted or case.cluster is None:
        return None
    scales = tuple(_scales(case, wanted))
    if not scales:
        return None
    words = ", ".join(f"{one.replicas} of {one.group}" for one in scales)
    action = PatchCluster(case.cluster_name, case.cluster["metadata"]["uid"], scales=scales)
    return PolicyDecision(f"the job wants other machines: {words}", (action,))


def _scales(case: ReconcileContext, wanted: Object) -> Iterator[Scale]:
    for group in items(case.cluster, "spec", "workerGroupSpecs"):
        name, have = text(group, "groupName"), number(group, "replicas")
        if name not in wanted:
            continue
        low, high = number(group, "minReplicas"), number(group, "maxReplicas")
        want = min(max(number(wanted, name), low), high)
        if want > have:
            yield Scale(name, want)
        elif want < have and (empty := _empty(case, name)):
            gone = empty[: have - want]
            yield Scale(name, have - len(gone), gone)


def _empty(case: ReconcileContext, group: str) -> tuple[str, ...]:
    """The pods of a group that hold no unit, those without a node first; none while nobody knows who holds what.

    Nor while a unit has no place yet: it may have been promised one that holds nothing now.
    """
    master, units = case.observed.master, part(case.snapshot, "placement")
    if master is None or master.error or not master.placement or number(units, "ready") < number(units, "units"):
        return ()
    held = {text(place, "pod") for place in master.placement}
    mine = [pod for pod in case.observed.pods if pod.group == group and not pod.head and not pod.leaving]
    return tuple(pod.name for pod in sorted(mine, key=lambda pod: (pod.ready, pod.name)) if pod.name not in held)
