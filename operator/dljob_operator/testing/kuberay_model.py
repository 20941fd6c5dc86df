"""Model of KubeRay, the scheduler, the kubelets and the node controller: pods of RayClusters, from creation to end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dljob.kube.errors import ApiError
from dljob.reconcile.children import patches
from dljob.reconcile.state import names
from dljob.reconcile.state.context import stamp
from dljob.reconcile.state.fields import items, number, part, text
from dljob.reconcile.state.model import Object
from dljob_operator.testing.api_server import CLUSTER, ApiServer, Body, merged
from dljob_operator.testing.head_process import RANKS, HeadProcess
from dljob_operator.testing.virtual_time import Agenda

KUBERAY_S, READY_S, GRACE_S = (0.02, 2.0), (0.3, 12.0), (0.2, 20.0)
STUCK_S = 200.0
"""Seconds that a deleted pod on a lost node stays before somebody deletes it by force."""


NODES = 4
FROZEN_S, NOT_READY_S, TOLERATED_S = 3.0, 40.0, 30.0
"""Seconds after the loss of a Kubernetes node: PrimeMaster excludes it, it counts as not ready; then its pods go."""
GRACE_OF_PODS_S = 30.0
AGAIN_S = 5.0
"""Seconds until the scheduler looks again for a node for a pending pod."""


# -- pods as the API server has them


def is_head(pod: Object) -> bool:
    """Whether a pod is a head."""
    return text(pod, "metadata", "labels", "ray.io/node-type") == "head"


def is_leaving(pod: Object) -> bool:
    """Whether a pod is being deleted."""
    return "deletionTimestamp" in pod["metadata"]


def node_of(pod: Object) -> str:
    """The Kubernetes node of a pod; empty: none yet."""
    return text(pod, "spec", "nodeName")


def cluster_of(pod: Object) -> str:
    """The RayCluster of a pod."""
    return text(pod, "metadata", "labels", CLUSTER)


def is_ready(pod: Object) -> bool:
    """Whether a pod is ready."""
    return any(c["type"] == "Ready" and c["status"] == "True" for c in items(pod, "status", "conditions"))


def _conditions(pod: Object, type_: str, *, holds: bool, reason: str = "", message: str = "") -> list[Object]:
    """The conditions of a pod with one of them changed."""
    others = [condition for condition in items(pod, "status", "conditions") if condition["type"] != type_]
    return [*others, {"type": type_, "status": str(holds), "reason": reason, "message": message}]


class Nature:
    """The cluster without API server and operators. `heads` keeps all process trees of heads, the newest last."""

    def __init__(self, server: ApiServer, agenda: Agenda, news: Callable[[HeadProcess], None]) -> None:
        self.server = server
        self.agenda = agenda
        self.news = news
        self.heads: list[HeadProcess] = []
        self.away_until = 0.0
        """Time until which KubeRay does nothing."""
        self.pods = 0
        self.dead: dict[str, float] = {}
        """Kubernetes nodes that are lost for good -> since when."""
        self.boots = 0
        server.listeners.append(self._on_change)

    # -- KubeRay

    def _on_change(self, kind: str, name: str, body: Body, is_deleted: bool) -> None:  # noqa: FBT001 - as the server tells
        if kind == "RayCluster":
            self.agenda.soon(KUBERAY_S, lambda: self.turn(name))
            if is_deleted:
                self.agenda.soon(KUBERAY_S, lambda: self.clear(body["metadata"]["name"]))
        elif kind == "Pod":
            self.agenda.soon(KUBERAY_S, lambda: self.turn(cluster_of(body)))

    def turn(self, name: str) -> None:
        """Reconcile one RayCluster, as KubeRay does."""
        if self.agenda.now < self.away_until:
            self.agenda.at(self.away_until, lambda: self.turn(name))
            return
        cluster = self.server.find("RayCluster", name)
        if cluster is None:
            return
        pods = list(self.server.objects_of("Pod", name))
        if text(cluster, "metadata", "deletionTimestamp"):
            self.clear(name)
            # Foreground deletion: the RayCluster goes after its last pod.
            if not pods:
                self.server.drop("RayCluster", name)
            return
        if part(cluster, "spec").get("suspend"):
            self.clear(name)
        else:
            self._fill(cluster, pods)
        self._say(cluster)

    def clear(self, name: str) -> None:
        """Delete all pods of a RayCluster."""
        for body in self.server.objects_of("Pod", name):
            self.remove(body["metadata"]["name"])

    def _fill(self, cluster: Body, pods: list[Body]) -> None:
        """Create missing pods; one that is being deleted counts as present, and a failed one is replaced."""
        for body in pods:
            if text(body, "status", "phase") == "Failed":
                self.remove(body["metadata"]["name"])
        if not any(is_head(body) for body in pods):
            self._make(cluster, head=True)
        for _ in range(RANKS - sum(not is_head(body) for body in pods)):
            self._make(cluster, head=False)

    def _make(self, cluster: Body, *, head: bool) -> None:
        self.pods += 1
        owner, uid = cluster["metadata"]["name"], f"pod-{self.pods}"
        name = f"{owner}-{'head' if head else 'worker'}-{self.pods}"
        group = _group(cluster, head=head)
        labels = {**part(group, "template", "metadata", "labels"), CLUSTER: owner}
        labels |= {"ray.io/node-type": "head" if head else "worker"}
        labels |= {"ray.io/group": "headgroup" if head else text(group, "groupName")}
        meta: Body = {"name": name, "uid": uid, "labels": labels}
        spec: Body = {"containers": [{"name": "ray"}], "affinity": dict(part(group, "template", "spec", "affinity"))}
        waits = {"waiting": {"reason": "ContainerCreating"}}
        container = {"name": "ray", "restartCount": 0, "ready": False, "state": waits}
        status: Body = {"phase": "Pending", "conditions": [], "containerStatuses": [container]}
        self.server.create("Pod", {"metadata": meta, "spec": spec, "status": status})
        self._schedule(name, uid)

    def _schedule(self, name: str, uid: str) -> None:
        """Find a Kubernetes node for a pod."""
        body = self._body(name, uid)
        if body is None or is_leaving(body):
            return
        # Each pod has another first choice, so pods spread over the nodes.
        first, kept_from = int(uid.removeprefix("pod-")), set(patches.excluded_nodes(body["spec"]))
        every = [f"node-{(first + at) % NODES}" for at in range(NODES)]
        node = next((node_name for node_name in every if node_name not in self.dead and node_name not in kept_from), "")
        reason_fields = {} if node else {"reason": "Unschedulable", "message": "no node takes it"}
        status_patch = {"conditions": _conditions(body, "PodScheduled", holds=bool(node), **reason_fields)}
        if node:
            self._change(body, {"spec": {"nodeName": node}, "status": status_patch})
            self.agenda.soon(READY_S, lambda: self._up(name, uid, 0))
            return
        self._change(body, {"status": status_patch})
        self.agenda.after(AGAIN_S, lambda: self._schedule(name, uid))

    def _up(self, name: str, uid: str, incarnation: int) -> None:
        """Make a pod ready, unless its containers ended again meanwhile."""
        body = self._body(name, uid)
        if body is None or is_leaving(body) or text(body, "status", "phase") == "Failed" or node_of(body) in self.dead:
            return
        container = items(body, "status", "containerStatuses")[0]
        # The container has ended again since: another process of it will become ready.
        if container["restartCount"] != incarnation:
            return
        id_ = self._boot(cluster_of(body), name).container if is_head(body) else ""
        runs: Body = {**container, "ready": True, "containerID": id_, "state": {"running": {}}}
        address = f"10.0.{uid.removeprefix('pod-')}.1"
        status_patch: Body = {"phase": "Running", "podIP": address, "containerStatuses": [runs]}
        self._change(body, {"status": {**status_patch, "conditions": _conditions(body, "Ready", holds=True)}})

    def _boot(self, cluster: str, pod: str) -> HeadProcess:
        """Start a head's process tree, with the memory of the last one where the RayCluster keeps it."""
        self.boots += 1
        body = self.server.find("RayCluster", cluster)
        keeps_memory = names.SURVIVES in part(body, "metadata", "annotations")
        old = next((head_process for head_process in reversed(self.heads) if head_process.cluster == cluster), None)
        if keeps_memory and old is not None and not old.alive:
            old.again(pod, self.boots)
            return old
        head = HeadProcess(self.agenda, cluster, pod, self.boots, self.news)
        self.heads.append(head)
        return head

    def _say(self, cluster: Body) -> None:
        """Write the status of a RayCluster, and tell the head how many workers are ready."""
        name = cluster["metadata"]["name"]
        pods = list(self.server.objects_of("Pod", name))
        head = next(
            (pod for pod in pods if is_head(pod) and not is_leaving(pod) and text(pod, "status", "phase") != "Failed"),
            None,
        )
        ready = sum(is_ready(pod) and not is_leaving(pod) for pod in pods if not is_head(pod))
        is_suspended = bool(part(cluster, "spec").get("suspend"))
        up = "True" if head is not None and is_ready(head) and not is_suspended else "False"
        status: dict[str, Any] = {
            "observedGeneration": number(cluster, "metadata", "generation"),
            "desiredWorkerReplicas": 0 if is_suspended else RANKS,
            "readyWorkerReplicas": ready,
            "conditions": [{"type": "HeadPodReady", "status": up, "reason": "HeadPodRunningAndReady"}],
            "head": _named(head) if head else {},
        }
        self.server.put("RayCluster", {**cluster, "status": status})
        for process in self.heads:
            if process.alive and process.cluster == name:
                process.machines_are(ready - self._unseen(pods))

    def _unseen(self, pods: list[Body]) -> int:
        """Return the number of workers that count as ready but are on lost nodes."""
        ready_workers = [pod for pod in pods if not is_head(pod) and not is_leaving(pod) and is_ready(pod)]
        return sum(node_of(pod) in self.dead for pod in ready_workers)

    # -- Kubernetes nodes

    def lose_node(self, name: str, excluded: float) -> None:
        """Lose a Kubernetes node for good; PrimeMaster excludes it for `excluded` seconds."""
        self.dead[name] = self.agenda.now
        for body in self._on(name):
            process = self.process_of(body["metadata"]["name"])
            if process is not None:
                process.end()
        # As in a real cluster: PrimeMaster notices first, then the node controller, and pods are deleted last.
        self.agenda.after(FROZEN_S, lambda: self._freeze(name, excluded))
        self.agenda.after(NOT_READY_S, lambda: self._not_ready(name))
        self.agenda.after(NOT_READY_S + TOLERATED_S, lambda: self._taint(name))

    def _on(self, node: str) -> list[Body]:
        return [body for body in self.server.objects_of("Pod") if node_of(body) == node]

    def _freeze(self, node: str, excluded: float) -> None:
        for body in self._on(node):
            for process in self.heads:
                if process.alive and process.cluster == cluster_of(body) and not is_head(body):
                    process.leave(body["metadata"]["uid"], self.agenda.now + excluded)
            self.turn(cluster_of(body))

    def _not_ready(self, node: str) -> None:
        for body in self._on(node):
            self._change(body, {"status": {"conditions": _conditions(body, "Ready", holds=False)}})

    def _taint(self, node: str) -> None:
        reason_fields = {"reason": "DeletionByTaintManager", "message": "Taint manager: deleting due to NoExecute"}
        for body in self._on(node):
            if not is_leaving(body):
                status_patch = {"conditions": _conditions(body, "DisruptionTarget", holds=True, **reason_fields)}
                self._change(body, {"status": status_patch})
            self.remove(body["metadata"]["name"])

    def node(self, name: str) -> Body:
        """Return a Kubernetes node as the API server has it."""
        lost = self.dead.get(name)
        ready = lost is None or self.agenda.now < lost + NOT_READY_S
        ready_condition = {"type": "Ready", "status": "True" if ready else "Unknown"}
        return {"metadata": {"name": name}, "status": {"conditions": [ready_condition]}}

    def placement(self, head: HeadProcess) -> list[Object]:
        """Return the placement of a head's job, as its gateway serves it."""
        ready = [pod for pod in self.server.objects_of("Pod", head.cluster) if not is_head(pod) and is_ready(pod)]
        return [
            {"pod": pod["metadata"]["name"], "node": pod["metadata"]["uid"], "units": [unit], "ranks": unit}
            for pod, unit in ((pod, f"worker/{at}") for at, pod in enumerate(ready))
        ]

    # -- pods

    def head_of(self, address: str) -> HeadProcess | None:
        """Return the process tree that answers at an address."""
        for process in reversed(self.heads):
            body = self.server.find("Pod", process.pod) if process.alive else None
            if body is not None and text(body, "status", "podIP") == address:
                return process
        return None

    def process_of(self, pod: str) -> HeadProcess | None:
        """Return the process tree in a head's pod."""
        return next(
            (head_process for head_process in reversed(self.heads) if head_process.alive and head_process.pod == pod),
            None,
        )

    def delete_pod(self, name: str, uid: str, grace: int | None) -> Body | None:
        """Delete a pod for the operator; return it while it exists. Raises NotThereError, and ApiError 409."""
        body = self.server.get("Pod", name)
        if uid and body["metadata"]["uid"] != uid:
            raise ApiError(409, "Conflict", f"the uid of pod {name} is another one")
        # By force, or not scheduled yet: no kubelet has to confirm the deletion.
        if grace == 0 or not node_of(body):
            self._remove_pod(name, uid)
        else:
            self.remove(name)
        return self.server.find("Pod", name)

    def remove(self, name: str, *, stuck: bool = False) -> None:
        """Delete a pod: it ends within its grace period, or never on a lost node."""
        body = self.server.find("Pod", name)
        if body is None or is_leaving(body):
            return
        process, uid = self.process_of(name), body["metadata"]["uid"]
        ends = stamp(self.agenda.now + GRACE_OF_PODS_S)
        meta = {"deletionTimestamp": ends, "deletionGracePeriodSeconds": int(GRACE_OF_PODS_S)}
        self._change(body, {"metadata": meta, "status": {"conditions": _conditions(body, "Ready", holds=False)}})
        if stuck and process is not None:
            process.end()
        # On a lost node nobody confirms the deletion.
        self.agenda.soon(
            (STUCK_S, STUCK_S) if stuck else GRACE_S, lambda: node_of(body) in self.dead or self._remove_pod(name, uid)
        )
        if names.LABEL_UID not in body["metadata"]["labels"]:
            # `_stuck` (reconcile/status/cluster.py): it tells the RayCluster's owner `kubectl delete pod ... --force`.
            self.agenda.after(STUCK_S, lambda: self._remove_pod(name, uid))

    def _remove_pod(self, name: str, uid: str) -> None:
        if self._body(name, uid) is not None:
            process = self.process_of(name)
            if process is not None:
                process.end()
            self.server.drop("Pod", name)

    def fail(self, name: str, reason: str) -> None:
        """Fail a pod, as an eviction does."""
        body = self.server.find("Pod", name)
        if body is None or is_leaving(body):
            return
        process = self.process_of(name)
        if process is not None:
            process.end()
        status_patch = {"phase": "Failed", "reason": reason, "message": "the node was low on resource: memory"}
        self._change(body, {"status": {**status_patch, "conditions": _conditions(body, "Ready", holds=False)}})

    def restart(self, name: str, reason: str) -> None:
        """Restart the Ray container of a pod."""
        body = self.server.find("Pod", name)
        if body is None or is_leaving(body) or text(body, "status", "phase") != "Running":
            return
        process = self.process_of(name)
        if process is not None:
            process.end()
        old, uid = items(body, "status", "containerStatuses")[0], body["metadata"]["uid"]
        incarnation = old["restartCount"] + 1
        ended = {"terminated": {"exitCode": 137, "reason": reason}}
        now: Body = {**old, "restartCount": incarnation, "ready": False, "state": {"waiting": {}}, "lastState": ended}
        status_patch: Body = {"containerStatuses": [now], "conditions": _conditions(body, "Ready", holds=False)}
        self._change(body, {"status": status_patch})
        self.agenda.soon(READY_S, lambda: self._up(name, uid, incarnation))

    def _body(self, name: str, uid: str) -> Body | None:
        body = self.server.find("Pod", name)
        return body if body is not None and body["metadata"]["uid"] == uid else None

    def _change(self, body: Body, patch: Object) -> None:
        self.server.put("Pod", merged(body, patch))

    # -- what ranks live

    def rank_lives(self, head: HeadProcess, lease: float) -> bool:
        """Whether a rank of a head's job may still run: within its lease, and in an existing pod."""
        now = self.agenda.now
        # Ranks go on for one lease after PrimeMaster is gone.
        renewed = [min(head.ended or now, m.gone_at or now) for m in head.masters.values() if not m.ended]
        if not renewed or max(renewed) + lease <= now:
            return False
        return any(not is_head(body) for body in self.server.objects_of("Pod", head.cluster))


def _group(cluster: Object, *, head: bool) -> Object:
    """Return the head's group or the workers' one; empty where the spec has none, as in others' RayClusters here."""
    if head:
        return part(cluster, "spec", "headGroupSpec")
    return next(iter(items(cluster, "spec", "workerGroupSpecs")), part(None))


def _named(head: Object) -> Object:
    return {"podIP": text(head, "status", "podIP"), "podName": head["metadata"]["name"]}
