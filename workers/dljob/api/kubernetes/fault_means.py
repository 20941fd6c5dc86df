"""How a faults file reaches a job on Kubernetes: with the rights of the user alone (docs/adr/0125).

Processes get signals by `pods/exec`, pods are deleted or evicted, a Kubernetes node is cordoned, and a pod's network is
cut by an ephemeral container that has NET_ADMIN. What lasts ends by itself when the command's connection breaks.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from inspect import getsource
from typing import TYPE_CHECKING, Any

from dljob.api.kubernetes.cluster_thread import ClusterThread
from dljob.api.kubernetes.gateway import JobGateway
from dljob.api.views import nested
from dljob.errors import DLJobError, UnreachableError
from dljob.plan.model import JobPlan
from dljob.plan.targets import MASTER, NODE, OPERATOR, Target
from dljob.raycluster.pods import HEAD_CONTAINER, WORKER_CONTAINER
from dljob.runtime.faults import in_pod
from dljob.runtime.faults.means import incarnation_of, node_of, oom_clue, ranks_of, ranks_on, unknown
from dljob.spec.loading.faults import FileFault

if TYPE_CHECKING:
    from dljob.kube.api import Kube
    from dljob.kube.exec import PodCommand

Json = dict[str, Any]
"""Command line of PrimeMaster, as Ray sets it for the actor class."""
RAYLET = "raylet"
"""The program of a node of Ray."""
OPERATOR_LABELS = "app.kubernetes.io/name=dljob,app.kubernetes.io/component=operator"
CORDONED = "dljob.io/cordoned-by"
"""Annotation of a node that `dljob chaos` has cordoned: who may uncordon it, if the command could not."""
UP_S = 60.0
"""Seconds for an ephemeral container to start: its image is on the node already."""


@dataclass(frozen=True, slots=True)
class Right:
    """A right that a fault needs; `group` and `resource` as in RBAC, `resource` with its subresource."""

    verb: str
    group: str
    resource: str
    everywhere: bool = False
    """Whether it is needed beyond the job's namespace."""

    @property
    def describe(self) -> str:
        """The right as text."""
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}"


EXEC = (Right("create", "", "pods/exec"),)
_CORDON = (Right("get", "", "nodes", everywhere=True), Right("patch", "", "nodes", everywhere=True))
_OPERATOR = (Right("list", "", "pods", everywhere=True), Right("delete", "", "pods", everywhere=True))


def rights_for(fault: FileFault, target: Target, plan: JobPlan) -> tuple[Right, ...]:
    """Return the rights that the user needs for a fault."""
    if target.role == OPERATOR and OPERATOR not in plan.roles:
        return _OPERATOR
    if target.role == NODE and fault.fault == "leave":
        return (Right("create", "", "pods/eviction"), *(() if target.pod else _CORDON))
    if target.role == NODE and fault.fault == "cut":
        return (
            Right("get", "", "pods"),
            Right("watch", "", "pods"),
            Right("patch", "", "pods/ephemeralcontainers"),
            *EXEC,
        )
    if target.pod and fault.fault == "kill":
        return (Right("delete", "", "pods"),)
    return EXEC


class PodMeans:
    """The way to the pods of one job.

    Attributes:
        notes: What was done beyond the fault itself, and what could not be undone, for the user.
    """

    def __init__(
        self, cluster: ClusterThread, gateway: Callable[[], JobGateway], namespace: str, plan: JobPlan
    ) -> None:
        self._cluster = cluster
        self._gateway = gateway
        self._namespace = namespace
        self._plan = plan
        self._pods: dict[str, str] = {}
        self._held: list[PodCommand] = []
        self._cuts: list[tuple[str, str]] = []
        self._cordoned: list[str] = []
        self.notes: list[str] = []

    async def head_time(self, kube: Kube) -> float:
        """Return the time of the head in unix seconds, by an order that hits nothing."""
        return float((await self._signal(kube, self._gateway().pod, HEAD_CONTAINER, order("kill")))["time"])

    # -- victims

    def victims(self, target: Target, pids: Mapping[str, int], status: Mapping[str, Any]) -> dict[str, int]:
        """Return name -> pid of the processes to hit, each in the namespace of its pod; empty: the fault waits."""
        if target.role == MASTER:
            return {MASTER: pids[MASTER]} if MASTER in pids else {}
        if self._is_operator(target):
            return {OPERATOR: 0}
        self._learn_pods(status)
        if target.role == NODE:
            node = node_of(target, status, tuple(self._pods))
            return {NODE: 0, **{n: pids[n] for n in ranks_on(node, status) if n in pids}} if node in self._pods else {}
        names, at = ranks_of(target, status), _nodes(status)
        # All or nothing: a fault on a part of its target would be another fault.
        return {n: pids[n] for n in names} if all(n in pids and at[n] in self._pods for n in names) else {}

    def _is_operator(self, target: Target) -> bool:
        return target.role == OPERATOR and OPERATOR not in self._plan.roles

    def _learn_pods(self, status: Mapping[str, Any]) -> None:
        """Ask for the pods again when a node has none yet, or is gone: pods come and go while a file is at work."""
        nodes = {unit["node"] for unit in status["units"] if unit["node"]}
        if nodes != self._pods.keys():
            gateway = self._gateway()
            self._pods = self._cluster.ask(lambda _: gateway.pods())

    # -- faults

    def strike(self, fault: FileFault, target: Target, victims: Mapping[str, int], status: Mapping[str, Any]) -> None:
        """Inject a fault.

        Raises:
            UnreachableError: it could not be done, for example since the API server refused; the message says which.
        """
        try:
            self._cluster.ask(lambda kube: self._strike(kube, fault, target, victims, status))
        except DLJobError as error:
            message = f"{fault.fault} {fault.target} was not done: {error.message}"
            raise UnreachableError(message, hint=error.hint) from error

    async def _strike(
        self,
        kube: Kube,
        fault: FileFault,
        target: Target,
        victims: Mapping[str, int],
        status: Mapping[str, Any],
    ) -> None:
        if self._is_operator(target):
            await self._end_operator(kube)
        elif target.role == MASTER:
            await self._kill_master(kube)
        elif target.role == NODE:
            node = node_of(target, status, tuple(self._pods)) or ""
            await self._strike_pod(kube, fault, target, self._pods[node])
        else:
            await self._strike_ranks(kube, fault, victims, status)

    async def _kill_master(self, kube: Kube) -> None:
        """Kill the PrimeMaster that commands; its standby, which is called the same, may run beside it."""
        gateway = self._gateway()
        pod, pid = await gateway.master()
        container = HEAD_CONTAINER if pod == gateway.pod else WORKER_CONTAINER
        await self._signal(kube, pod, container, order("kill", pids=[pid]))

    async def _strike_ranks(
        self, kube: Kube, fault: FileFault, victims: Mapping[str, int], status: Mapping[str, Any]
    ) -> None:
        kind = "kill" if fault.fault == "oom" else fault.fault
        if kind not in ("kill", "stop", "slow"):
            raise unknown(fault)
        if fault.fault == "oom":
            gateway = self._gateway()
            for name, pid in victims.items():
                # Before the kill, as on a machine: the evidence is about this process alone.
                process = f"{name}.{incarnation_of(name, status)}"
                await gateway.learned(process, oom_clue(name, pid).text)
        at = _nodes(status)
        by_pod: dict[str, list[int]] = defaultdict(list)
        for name, pid in victims.items():
            by_pod[self._pods[at[name]]].append(pid)
        order_by_pod = {
            pod: order(kind, pids=pids, seconds=fault.seconds, factor=fault.factor) for pod, pids in by_pod.items()
        }
        async with asyncio.TaskGroup() as group:
            for pod, signal_order in order_by_pod.items():
                group.create_task(self._signal(kube, pod, WORKER_CONTAINER, signal_order))

    async def _strike_pod(self, kube: Kube, fault: FileFault, target: Target, pod: str) -> None:
        from dljob.kube.api import PODS

        if fault.fault == "cut":
            await self._cut(kube, pod, fault.seconds or 1)
        elif fault.fault == "stop":
            await self._signal(kube, pod, WORKER_CONTAINER, order("stop", everything=True, seconds=fault.seconds))
        elif fault.fault == "leave":
            if not target.pod:
                await self._cordon(kube, pod)
            await kube.evict(pod, self._namespace, fault.seconds)
        elif fault.fault == "kill" and target.pod:
            await kube.delete(PODS, pod, self._namespace, grace=0)
        elif fault.fault == "kill":
            await self._signal(kube, pod, WORKER_CONTAINER, order("kill", title=RAYLET))
        else:
            raise unknown(fault)

    async def _signal(self, kube: Kube, pod: str, container: str, signal_order: Json) -> Json:
        """Have signals sent in a container; the connection of those that last is kept until `close`."""
        from dljob.kube.exec import PodCommand

        command = ["python", "-c", getsource(in_pod), json.dumps(signal_order)]
        running = await PodCommand.start(kube, pod, container, command, self._namespace)
        answer = await running.first()
        if answer["wrong"]:
            await running.end()
            raise UnreachableError(f"in pod {pod} {answer['wrong']}, and which of them is meant is not known")
        if signal_order["do"] == "kill" or signal_order["seconds"] is None:
            await running.end()
        else:
            self._held.append(running)
        return answer

    async def _cut(self, kube: Kube, pod: str, seconds: int) -> None:
        """Cut a pod's network by an ephemeral container, which ends the cut by itself."""
        from dljob.kube.api import PODS

        body = await kube.get(PODS, pod, self._namespace)
        name = f"dljob-cut-{time.time_ns() % 10**9}"
        patch = ephemeral(body, name, seconds)
        await kube.patch(PODS, pod, self._namespace, patch, kind="strategic", sub="ephemeralcontainers")
        self._cuts.append((pod, name))
        state = ""
        async with asyncio.timeout(UP_S):
            stream = kube.watch(PODS, self._namespace, fields=f"metadata.name={pod}")
            async with aclosing(stream) as changes:
                async for _, now in changes:
                    if state := _state_of(now, name):
                        break
        if state != "running":
            raise UnreachableError(f"the container {name} in pod {pod}, which is to cut its network, {state}")

    async def _cordon(self, kube: Kube, pod: str) -> None:
        from dljob.kube.api import NODES, PODS

        node = (await kube.get(PODS, pod, self._namespace))["spec"]["nodeName"]
        # Somebody else's cordon stays when this command ends.
        if (await kube.get(NODES, node))["spec"].get("unschedulable"):
            return
        mark = {"metadata": {"annotations": {CORDONED: "chaos"}}, "spec": {"unschedulable": True}}
        await kube.patch(NODES, node, None, mark)
        self._cordoned.append(node)
        self.notes.append(f"cordoned Kubernetes node {node} until this command ends")

    async def _end_operator(self, kube: Kube) -> None:
        from dljob.kube.api import PODS

        pods = await kube.list(PODS, None, labels=OPERATOR_LABELS)
        if not pods:
            raise UnreachableError(f"no pod of the operator is seen (labels {OPERATOR_LABELS})")
        for pod in pods:
            meta = pod["metadata"]
            await kube.delete(PODS, meta["name"], meta["namespace"], grace=0)

    # -- the end

    def close(self) -> None:
        """End stops, slowdowns and cuts, and uncordon what this command cordoned; `notes` has what failed."""
        self._cluster.ask(self._undo)

    async def _undo(self, kube: Kube) -> None:
        from dljob.kube.api import NODES
        from dljob.kube.exec import PodCommand

        running_commands, self._held = self._held, []
        await asyncio.gather(*(command.end() for command in running_commands), return_exceptions=True)
        for pod, name in self._cuts:
            command = ["python", "-c", getsource(in_pod), json.dumps({"do": "end"})]
            # Over already, or its pod is gone: it ends by itself.
            with suppress(DLJobError):
                running = await PodCommand.start(kube, pod, name, command, self._namespace)
                await running.end()
        self._cuts.clear()
        for node in self._cordoned:
            mark = {"metadata": {"annotations": {CORDONED: None}}, "spec": {"unschedulable": None}}
            try:
                await kube.patch(NODES, node, None, mark)
            except DLJobError as error:
                self.notes.append(f"node {node} is still cordoned: {error.message}; kubectl uncordon {node}")
        self._cordoned.clear()


def _nodes(status: Mapping[str, Any]) -> dict[str, str]:
    return {f"{r['role']}/{r['rank']}": r["node"] for r in status["ranks"]}


def order(
    do: str,
    *,
    pids: Sequence[int] = (),
    title: str = "",
    everything: bool = False,
    seconds: int | None = None,
    factor: int | None = None,
) -> Json:
    """Return an order to `in_pod`."""
    return {"do": do, "pids": list(pids), "title": title, "all": everything, "seconds": seconds, "factor": factor or 2}


def ephemeral(pod: Mapping[str, Any], name: str, seconds: int) -> Json:
    """Return the patch that adds the container that cuts a pod's network, in the image of the pod's own container."""
    image = next(c["image"] for c in pod["spec"]["containers"] if c["name"] == WORKER_CONTAINER)
    # NET_ADMIN counts for root alone; whatever else root may do is dropped.
    rights = {"runAsUser": 0, "runAsNonRoot": False, "allowPrivilegeEscalation": False,
              "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]}}  # fmt: skip
    container = {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", getsource(in_pod), json.dumps({"do": "cut", "seconds": seconds})],
        "securityContext": rights,
    }
    return {"spec": {"ephemeralContainers": [container]}}


def _state_of(pod: Mapping[str, Any], name: str) -> str:
    """Return `running`, or why a container does not; empty while it starts."""
    rows: Sequence[Json] = nested(pod, "status").get("ephemeralContainerStatuses") or ()
    state: Json = {}
    for row in rows:
        state = row["state"] if row["name"] == name else state
    if "running" in state:
        return "running"
    if "terminated" in state:
        return f"ended: {state['terminated'].get('message') or state['terminated'].get('reason')}"
    waits = nested(state, "waiting")
    starting = waits.get("reason") in (None, "ContainerCreating", "PodInitializing")
    return "" if starting else f"does not start: {waits['reason']}: {waits.get('message', '')}"
