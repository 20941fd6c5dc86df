"""KubeRay, the kubelets and the user: RayClusters get pods, pods get ready and die, and somebody orders something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dljob.reconcile.children import patches
from dljob.reconcile.state import names
from dljob.reconcile.state.fields import items, number, part, text
from dljob.reconcile.state.model import Pod
from dljob.testing.kubernetes.api_server import Agenda, ApiServer, Body, RefusedError
from dljob.testing.kubernetes.heads import RANKS, HeadProcess

KUBERAY_S, READY_S, GRACE_S = (0.02, 2.0), (0.3, 12.0), (0.2, 20.0)
STUCK_S = 200.0
"""A pod on a node that is lost stays so long, leaving, before somebody removes it."""


NODES = 4
FROZEN_S, NOT_READY_S, TOLERATED_S = 3.0, 40.0, 30.0
"""After a Kubernetes node is lost: PrimeMaster leaves it, the node controller says so, its pods are to go."""
GRACE_OF_PODS_S = 30.0
AGAIN_S = 5.0
"""The scheduler looks again for a node for a pod."""


class Nature:
    """All that happens outside of the operator. `heads`: every process of a head that there ever was, the last last."""

    def __init__(self, server: ApiServer, agenda: Agenda, news: Callable[[HeadProcess], None]) -> None:
        self.server = server
        self.agenda = agenda
        self.news = news
        self.heads: list[HeadProcess] = []
        self.away_until = 0.0
        """KubeRay does nothing until then."""
        self.pods = 0
        self.dead: dict[str, float] = {}
        """Kubernetes nodes that are lost for ever, and since when."""
        self.boots = 0
        server.told.append(self._told)

    # -- KubeRay

    def _told(self, kind: str, name: str, body: Body, gone: bool) -> None:  # noqa: FBT001 - as the server tells
        if kind == "RayCluster":
            self.agenda.soon(KUBERAY_S, lambda: self.turn(name))
            if gone:
                self.agenda.soon(KUBERAY_S, lambda: self.clear(body["metadata"]["name"]))
        elif kind == "Pod":
            self.agenda.soon(KUBERAY_S, lambda: self.turn(body["cluster"]))

    def turn(self, name: str) -> None:
        """One look of KubeRay's at a RayCluster."""
        if self.agenda.now < self.away_until:
            self.agenda.at(self.away_until, lambda: self.turn(name))
            return
        cluster = self.server.find("RayCluster", name)
        if cluster is None:
            return
        pods = list(self.server.each("Pod", name))
        if text(cluster, "metadata", "deletionTimestamp"):
            self.clear(name)
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
        for body in self.server.each("Pod", name):
            self.remove(body["metadata"]["name"])

    def _fill(self, cluster: Body, pods: list[Body]) -> None:
        """Pods that are missing; those that are leaving count as there, and a failed one is replaced."""
        for body in pods:
            if body["pod"].phase == "Failed":
                self.remove(body["metadata"]["name"])
        if not any(body["pod"].head for body in pods):
            self._make(cluster, head=True)
        for _ in range(RANKS - sum(not body["pod"].head for body in pods)):
            self._make(cluster, head=False)

    def _make(self, cluster: Body, *, head: bool) -> None:
        self.pods += 1
        name = f"{cluster['metadata']['name']}-{'head' if head else 'worker'}-{self.pods}"
        uid = f"pod-{self.pods}"
        away = tuple(sorted(patches.away(cluster) or ()))
        pod = Pod(name, uid, head, "headgroup" if head else "cpu1", "Pending", ready=False, away=away)
        pod = replace(pod, annotations={names.RAY_NODE: uid}, made=self.agenda.now)
        body: Body = {"metadata": {"name": name, "uid": uid}, "cluster": cluster["metadata"]["name"], "pod": pod}
        body["shared"] = not items(cluster, "metadata", "ownerReferences")
        self.server.create("Pod", body)
        self._schedule(name, uid)

    def _schedule(self, name: str, uid: str) -> None:
        """Find a Kubernetes node for a pod."""
        body = self._body(name, uid)
        if body is None or body["pod"].leaving:
            return
        pod: Pod = body["pod"]
        first = int(uid.removeprefix("pod-"))
        every = [f"node-{(first + at) % NODES}" for at in range(NODES)]
        node = next((each for each in every if each not in self.dead and each not in pod.away), "")
        if node:
            self._change(body, replace(pod, node=node, trouble="", trouble_reason=""))
            self.agenda.soon(READY_S, lambda: self._up(name, uid, 0))
            return
        self._change(body, replace(pod, trouble="Unschedulable: no node takes it", trouble_reason="Unschedulable"))
        self.agenda.after(AGAIN_S, lambda: self._schedule(name, uid))

    def _up(self, name: str, uid: str, life: int) -> None:
        """A pod's containers run, and are ready, unless they ended again before."""
        body = self._body(name, uid)
        if body is None or body["pod"].leaving or body["pod"].phase == "Failed" or body["pod"].restarts != life:
            return
        if body["pod"].node in self.dead:
            return
        pod: Pod = body["pod"]
        address = f"10.0.{uid.removeprefix('pod-')}.1"
        container = pod.container
        if pod.head:
            container = self._boot(body["cluster"], name).container
        self._change(body, replace(pod, phase="Running", ready=True, ip=address, container=container, trouble=""))

    def _boot(self, cluster: str, pod: str) -> HeadProcess:
        """Another process of a head; with the memory of the last one where that is kept."""
        self.boots += 1
        body = self.server.find("RayCluster", cluster)
        kept = names.SURVIVES in part(body, "metadata", "annotations")
        old = next((each for each in reversed(self.heads) if each.cluster == cluster), None)
        if kept and old is not None and not old.alive:
            old.again(pod, self.boots)
            return old
        head = HeadProcess(self.agenda, cluster, pod, self.boots, self.news)
        self.heads.append(head)
        return head

    def _say(self, cluster: Body) -> None:
        """What KubeRay writes to the status."""
        name = cluster["metadata"]["name"]
        pods: list[Pod] = [body["pod"] for body in self.server.each("Pod", name)]
        head = next((pod for pod in pods if pod.head and not pod.leaving and pod.phase != "Failed"), None)
        ready = sum(pod.ready and not pod.leaving for pod in pods if not pod.head)
        held = bool(part(cluster, "spec").get("suspend"))
        up = "True" if head is not None and head.ready and not held else "False"
        status: dict[str, Any] = {
            "observedGeneration": number(cluster, "metadata", "generation"),
            "desiredWorkerReplicas": 0 if held else RANKS,
            "readyWorkerReplicas": ready,
            "conditions": [{"type": "HeadPodReady", "status": up, "reason": "HeadPodRunningAndReady"}],
            "head": {"podIP": head.ip, "podName": head.name} if head is not None else {},
        }
        self.server.put("RayCluster", {**cluster, "status": status})
        for process in self.heads:
            if process.alive and process.cluster == name:
                process.machines_are(ready - self._unseen(pods))

    def _unseen(self, pods: list[Pod]) -> int:
        """Workers that count as ready, and are on nodes that are lost."""
        return sum(pod.ready and not pod.leaving and not pod.head and pod.node in self.dead for pod in pods)

    # -- Kubernetes nodes

    def lose_node(self, name: str, excluded: float) -> None:
        """A Kubernetes node is gone for ever, and nothing on it says a word; PrimeMaster excludes it for so long."""
        self.dead[name] = self.agenda.now
        for body in self._on(name):
            process = self.process_of(body["metadata"]["name"])
            if process is not None:
                process.end()
        self.agenda.after(FROZEN_S, lambda: self._freeze(name, excluded))
        self.agenda.after(NOT_READY_S, lambda: self._not_ready(name))
        self.agenda.after(NOT_READY_S + TOLERATED_S, lambda: self._taint(name))

    def _on(self, node: str) -> list[Body]:
        return [body for body in self.server.each("Pod") if body["pod"].node == node]

    def _freeze(self, node: str, excluded: float) -> None:
        for body in self._on(node):
            for process in self.heads:
                if process.alive and process.cluster == body["cluster"] and not body["pod"].head:
                    process.leave(body["metadata"]["uid"], self.agenda.now + excluded)
            self.turn(body["cluster"])

    def _not_ready(self, node: str) -> None:
        for body in self._on(node):
            self._change(body, replace(body["pod"], ready=False))

    def _taint(self, node: str) -> None:
        for body in self._on(node):
            self.remove(
                body["metadata"]["name"], end="DeletionByTaintManager: Taint manager: deleting due to NoExecute"
            )

    def state_of(self, node: str) -> str:
        """What the API server says of a node."""
        lost = self.dead.get(node)
        return "Ready" if lost is None or self.agenda.now < lost + NOT_READY_S else "NotReady"

    # -- pods

    def head_of(self, address: str) -> HeadProcess | None:
        """The process that answers at an address."""
        for process in reversed(self.heads):
            body = self.server.find("Pod", process.pod) if process.alive else None
            if body is not None and body["pod"].ip == address:
                return process
        return None

    def process_of(self, pod: str) -> HeadProcess | None:
        """The process of a head's pod."""
        return next((each for each in reversed(self.heads) if each.alive and each.pod == pod), None)

    def delete_pod(self, name: str, uid: str, grace: int | None) -> Body | None:
        """The operator deletes a pod; returns it while it is there. Raises RefusedError."""
        body = self.server.get("Pod", name)
        if body["metadata"]["uid"] != uid:
            raise RefusedError(409, f"the uid of pod {name} is another one", "Conflict")
        if grace == 0 or not body["pod"].node:
            self._gone(name, uid)
        else:
            self.remove(name)
        return self.server.find("Pod", name)

    def remove(self, name: str, *, stuck: bool = False, end: str = "Deleted: somebody deleted it") -> None:
        """Delete a pod; its process ends within its grace, unless its node is lost."""
        body = self.server.find("Pod", name)
        if body is None or body["pod"].leaving:
            return
        process = self.process_of(name)
        ends = self.agenda.now + GRACE_OF_PODS_S
        pod = replace(body["pod"], leaving=True, ready=False, ends=ends, end=body["pod"].end or end)
        self._change(body, pod)
        if stuck and process is not None:
            process.end()
        uid = body["metadata"]["uid"]
        self.agenda.soon(
            (STUCK_S, STUCK_S) if stuck else GRACE_S, lambda: pod.node in self.dead or self._gone(name, uid)
        )
        if body["shared"]:
            # `_stuck` (reconcile/status/cluster.py): it tells the RayCluster's owner `kubectl delete pod ... --force`.
            self.agenda.after(STUCK_S, lambda: self._gone(name, uid))

    def _gone(self, name: str, uid: str) -> None:
        if self._body(name, uid) is not None:
            process = self.process_of(name)
            if process is not None:
                process.end()
            self.server.drop("Pod", name)

    def fail(self, name: str, reason: str) -> None:
        """A pod is ended by its node: evicted, or out of what it has."""
        body = self.server.find("Pod", name)
        if body is None or body["pod"].leaving:
            return
        process = self.process_of(name)
        if process is not None:
            process.end()
        words = f"{reason}: the node was low on resource: memory"
        pod = replace(body["pod"], phase="Failed", ready=False, trouble=words, trouble_reason=reason)
        self._change(body, replace(pod, end=words))

    def restart(self, name: str, reason: str) -> None:
        """The Ray container of a pod ends, and another one comes in the same pod."""
        body = self.server.find("Pod", name)
        if body is None or body["pod"].leaving or body["pod"].phase != "Running":
            return
        pod: Pod = body["pod"]
        process = self.process_of(name)
        if process is not None:
            process.end()
        words = f"{reason}: container ray ended with exit code 137 ({reason})"
        told = replace(pod, ready=False, restarts=pod.restarts + 1, trouble=words, trouble_reason=reason, end=words)
        self._change(body, told)
        uid = body["metadata"]["uid"]
        self.agenda.soon(READY_S, lambda: self._up(name, uid, told.restarts))

    def _body(self, name: str, uid: str) -> Body | None:
        body = self.server.find("Pod", name)
        return body if body is not None and body["metadata"]["uid"] == uid else None

    def _change(self, body: Body, pod: Pod) -> None:
        self.server.put("Pod", {**body, "pod": pod})

    # -- what ranks live

    def rank_lives(self, head: HeadProcess, lease: float) -> bool:
        """Whether a rank of a head's job may still do something: within its lease, and in a pod that is there."""
        now = self.agenda.now
        renewed = [min(head.ended or now, m.gone or now) for m in head.masters.values() if not m.ended]
        if not renewed or max(renewed) + lease <= now:
            return False
        return any(not body["pod"].head for body in self.server.each("Pod", head.cluster))
