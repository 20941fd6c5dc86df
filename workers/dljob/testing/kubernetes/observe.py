"""What an operator looks at before it decides: its caches, and the API server where a cache must not be believed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dljob.reconcile.policies.machines import FORCE_SECONDS
from dljob.reconcile.state import names
from dljob.reconcile.state.fields import part, text
from dljob.reconcile.state.model import Observed, Pod
from dljob.testing.kubernetes.api_server import Body

if TYPE_CHECKING:
    from dljob.testing.kubernetes.operator_process import Memory, Operator, Steps


def observe(op: Operator, memory: Memory, job: Body) -> Steps[Observed]:
    """What a pass decides from: caches, live reads where a cache may be wrong, and what the head told."""
    status, server = part(job, "status"), op.world.server
    if status.get("completionTime") and not memory.logs_saved:
        logs = names.logs_map(op.world.name)
        found = yield from op.call(lambda: server.find("ConfigMap", logs))
        memory.logs_saved = text(found, "metadata", "labels", names.ATTEMPT) == str(memory.attempt)
    ref = text(job, "spec", "rayClusterRef", "name")
    if ref:
        cluster = yield from op.call(lambda: server.find("RayCluster", ref))
        pods = yield from op.call(lambda: [body["pod"] for body in server.each("Pod", ref)])
        pods = [pod for pod in pods if pod.head]
    else:
        yield from _not_lost(op, job)
        yield from _not_left(op, job, memory.attempt)
        cluster, pods = _own(op, job, memory.attempt)
    pods = yield from _machines(op, pods)
    master, ray_job = op.poll.views()
    return Observed(
        job=job,
        cluster=cluster,
        pods=tuple(sorted(pods, key=lambda pod: (not pod.head, pod.name))),
        master=master,
        ray_job=ray_job,
        troubles=tuple(memory.troubles.values()),
        logs_saved=memory.logs_saved,
        commands=memory.commands,
    )


def _machines(op: Operator, pods: list[Pod]) -> Steps[list[Pod]]:
    """The Kubernetes nodes of pods that should be gone are looked at live."""
    seen: list[Pod] = []
    for pod in pods:
        machine = ""
        if pod.node and pod.ends is not None and pod.ends + FORCE_SECONDS <= op.now:
            machine = yield from op.call(lambda pod=pod: op.world.nature.state_of(pod.node))
        seen.append(replace(pod, machine=machine) if machine else pod)
    return seen


def _not_lost(op: Operator, job: Body) -> Steps[None]:
    """Look live before a RayCluster counts as gone."""
    name, uid = (text(job, "status", "rayCluster", each) for each in ("name", "uid"))
    if not uid or text(job, "status", "completionTime") or text(job, "metadata", "deletionTimestamp"):
        return
    known = op.cache.get(("RayCluster", name))
    if known is None or known["metadata"]["uid"] != uid:
        found = yield from op.call(lambda: op.world.server.find("RayCluster", name))
        if found is not None:
            op.keep("RayCluster", found)


def _not_left(op: Operator, job: Body, attempt: int) -> Steps[None]:
    """Look live before what is left of the last attempt counts as gone."""
    name = text(job, "status", "rayCluster", "name")
    own = names.cluster_name(op.world.name, job["metadata"]["uid"], attempt)
    if name and name != own and ("RayCluster", name) not in op.cache and not _pods(op, name):
        found = yield from op.call(lambda: op.world.server.find("RayCluster", name))
        if found is not None:
            op.keep("RayCluster", found)
        for body in (yield from op.call(lambda: list(op.world.server.each("Pod", name)))):
            op.keep("Pod", body)


def _own(op: Operator, job: Body, attempt: int) -> tuple[Body | None, list[Pod]]:
    own = names.cluster_name(op.world.name, job["metadata"]["uid"], attempt)
    name = text(job, "status", "rayCluster", "name") or own
    cluster, pods = op.cache.get(("RayCluster", name)), _pods(op, name)
    if name != own and cluster is None and not pods:
        cluster, pods = op.cache.get(("RayCluster", own)), _pods(op, own)
    return cluster, pods


def _pods(op: Operator, cluster: str) -> list[Pod]:
    return [body["pod"] for (kind, _), body in op.cache.items() if kind == "Pod" and body["cluster"] == cluster]
