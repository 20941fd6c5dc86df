"""One job's life, played for everything but the operator, and the digest of its end.

The events are in `plays.py`. Each event waits until the operator has reported the state before it, so that all lives
report the same states however busy the machine is.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from operators import KEY, BrokenError, Operator
from stage import Scene, World

from dljob.kube.api import DLJOBS, PODS, Json
from dljob.kube.resources import NAMESPACES
from dljob.kube.token_key import TokenKey
from dljob.reconcile.state import names

NAME = "j"
STEP_SECONDS = 180.0
MUST_BE_TOLD = frozenset(
    [
        "SpecAccepted",
        "ClusterCreated",
        "Submitted",
        "CommandSent",
        "Requested",
        "HeadLost",
        "Completed",
        "LogsSaved",
        "ClusterDeleted",
        "NodeExcluded",
        "Suspending",
        "JobSuspended",
        "JobResumed",
    ]
)
"""Reasons of Events about completed actions. Others tell of passing states, which a restarted operator may not see."""
NODES = ("fake-0", "fake-1")
_ADDRESSES = (f"127.{64 + i // 65025}.{i // 255 % 255}.{1 + i % 255 % 254}" for i in itertools.count(1))


def manifest(namespace: str) -> Json:
    """Return a job of one rank on the scene's Ray; only this program places its pods and runs its heads."""
    nobody = {"template": {"spec": {"schedulerName": "nobody"}}}
    role = {
        "name": "worker",
        "entrypoint": {"class": "sweep_user.Held"},
        "resources": {"cpu": "500m"},
    }
    return {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": NAME, "namespace": namespace},
        "spec": {
            "roles": [role],
            "image": "example.test/ray:1",
            "head": nobody,
            "nodeGroups": [{"name": "cpu", "replicas": 1, "cpu": "1", **nobody}],
        },
    }


@dataclass
class Life:
    """A job from its creation until nothing of it is left."""

    world: World
    scene: Scene
    operator: Operator
    play: Play
    uid: str = ""
    heads: list[str] = field(default_factory=list)
    """The addresses of its heads."""
    began: float = field(default_factory=time.monotonic)

    @property
    def namespace(self) -> str:
        return self.operator.namespace

    async def live(self) -> Json:
        """Run the life; returns the digest of its end."""
        kube = self.world.kube
        await kube.create(NAMESPACES, {"metadata": {"name": self.namespace}})
        living = asyncio.create_task(self._live())
        operating = asyncio.create_task(self.operator.live())
        try:
            await asyncio.wait((living, operating), return_when=asyncio.FIRST_COMPLETED)
            if operating.done():
                operating.result()
            return living.result()
        finally:
            for task in (living, operating):
                task.cancel()
            await asyncio.gather(living, operating, return_exceptions=True)
            for ip in self.heads:  # Leftovers of a broken life would take the room of all that follow.
                await self.scene.lose(ip)
            await kube.delete(NAMESPACES, self.namespace)

    async def _live(self) -> Json:
        kube = self.world.kube
        made = await kube.create(DLJOBS, manifest(self.namespace), self.namespace)
        self.uid = made["metadata"]["uid"]
        await self.play(self)
        await self.scene.touch(self.uid, "go")
        await self.until(self._over, "it is over, its logs are saved and its RayCluster is gone")
        found = await self._digest()
        await kube.patch(DLJOBS, NAME, self.namespace, {"spec": {"ttlSecondsAfterFinished": 0}})
        await self.until(lambda: not self._children(), "nothing is left of it")
        return found

    async def order(self, **patch: Json) -> None:
        """Patch the job, as a user does."""
        await self.world.kube.patch(DLJOBS, NAME, self.namespace, patch)

    async def told(self, **conditions: str) -> None:
        """Wait until the operator reports these conditions."""

        def look() -> bool:
            now = {one["type"]: one["reason"] for one in self.status.get("conditions", ())}
            return all(now.get(kind) == reason for kind, reason in conditions.items())

        await self.until(look, f"it is told that {conditions}")

    # -- actions of KubeRay, kubelets and users

    async def attempt(self, number: int) -> tuple[str, str]:
        """Play an attempt until it runs: head, then worker; returns the head's address and pod."""
        cluster = names.cluster_name(NAME, self.uid, number)
        await self.until(lambda: self._object("rayclusters", cluster), f"attempt {number} has a RayCluster")
        await self.until(lambda: self._head_pod(cluster), f"KubeRay makes the head of {cluster}")
        await self.until(lambda: self.workers(cluster), f"KubeRay makes the worker of {cluster}")
        await self.told(ClusterReady="HeadPending")
        head = await self._head(cluster)
        await self.told(ClusterReady="WorkersPending")
        await self.place(self.workers(cluster)[0], NODES[0])
        await self.told(ClusterReady="PodsReady")
        await self.set_up(number, 1)
        return head

    async def set_up(self, attempt: int, incarnation: int) -> None:
        """Hold the rank in its setup until the operator has reported that; then let it run."""
        await self.told(MasterReady="MasterReady", PlacementReady="UnitsHeld", RolesReady="RanksPending")
        await self.scene.touch(self.uid, f"set-{incarnation}")
        await self.until(lambda: self.runs(attempt), f"attempt {attempt} runs")
        await self.until(self._marked, "its worker says what it holds")

    async def _head(self, cluster: str) -> tuple[str, str]:
        pod, ip = self._head_pod(cluster), next(_ADDRESSES)
        self.heads.append(ip)
        await self.scene.head(
            ip,
            uid=self.uid,
            cluster=cluster,
            token=TokenKey(KEY.encode()).token(self.uid, cluster),
            pod=self.workers(cluster)[0],
            files=self._object("configmaps", names.spec_map(cluster))["data"],
        )
        name = pod["metadata"]["name"]
        patch = {"status": _running(pod, ip)}
        await self.world.kube.patch(PODS, name, self.namespace, patch, sub="status")
        return ip, name

    async def place(self, pod: str, node: str) -> None:
        """Bind a pod to a node, as the scheduler does; KWOK runs it there."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        path = f"{PODS.path(self.namespace, pod)}/binding"
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}
        await self.world.kube.call("POST", path, body)

    async def lose(self, ip: str, pod: str) -> None:
        """Lose a head."""
        await self.scene.lose(ip)
        await self.world.kube.delete(PODS, pod, self.namespace)

    # -- observations

    @property
    def job(self) -> Json:
        return self._object("dljobs", NAME) or {}

    @property
    def status(self) -> Json:
        return self.job.get("status") or {}

    def _object(self, plural: str, name: str) -> Json:
        return self.world.objects.get((plural, self.namespace, name)) or {}

    def _head_pod(self, cluster: str) -> Json:
        return next((pod for pod in self._pods(cluster) if _label(pod, "ray.io/node-type") == "head"), {})

    def workers(self, cluster: str) -> list[str]:
        """Return the worker pods of a RayCluster that are not being deleted."""
        pods = [pod for pod in self._pods(cluster) if _label(pod, "ray.io/node-type") == "worker"]
        return sorted(pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"])

    def _pods(self, cluster: str) -> list[Json]:
        return [pod for pod in self.world.all("pods", self.namespace) if _label(pod, "ray.io/cluster") == cluster]

    def _marked(self) -> bool:
        cluster = names.cluster_name(NAME, self.uid, self.status["attempt"])
        pods = (self._object("pods", name) for name in self.workers(cluster))
        return all((pod["metadata"].get("annotations") or {}).get(names.RAY_NODE) for pod in pods)

    def runs(self, attempt: int) -> bool:
        """Return whether an attempt runs and no earlier condition is left."""
        status = self.status
        calm = all(one["reason"] != "Requested" for one in status.get("conditions", ()))
        return calm and (status.get("phase"), status.get("attempt")) == ("Running", attempt)

    def avoided(self) -> bool:
        """Return whether new pods keep away from any Kubernetes node."""
        return any(one.get("avoided") for one in (self.status.get("nodes") or {}).get("excluded", ()))

    def _over(self) -> bool:
        there = self.world.all("rayclusters", self.namespace) or self.world.all("pods", self.namespace)
        logs = self._object("configmaps", names.logs_map(NAME))
        said = any(one["reason"] == "ClusterDeleted" for one in self.status.get("conditions", ()))
        return bool(self.status.get("completionTime") and logs and said and not there)

    def _children(self) -> list[str]:
        """Return the job and all objects with its label."""
        found = [f"dljobs/{NAME}"] if self.job else []
        for plural in ("rayclusters", "secrets", "configmaps", "pods"):
            mine = [body for body in self.world.all(plural, self.namespace) if _label(body, names.LABEL_UID)]
            found += [f"{plural}/{body['metadata']['name']}" for body in mine]
        return found

    async def until(self, check: Any, what: str, seconds: float = STEP_SECONDS) -> Any:
        """Return the first true answer; fails with what was seen instead."""
        try:
            return await self.world.until(check, what, seconds)
        except TimeoutError as error:
            seen = {key: self.status.get(key) for key in ("phase", "reason", "message", "attempt", "restarts")}
            log = self.operator.log.read_text()[-3000:]
            raise BrokenError(f"{error}\n{seen}\n{await self.scene.told(self.uid)}\n{log}") from None

    # -- the end

    async def _digest(self) -> Json:
        """Return what must be equal in all lives."""
        ray = await self._released()
        history = self.world.history[self.namespace]
        made = {b["metadata"]["uid"]: b["metadata"]["name"] for plural, _, b in history if plural == "rayclusters"}
        status = self.status
        return {
            "phase": status["phase"],
            "reason": status["reason"],
            "attempt": status["attempt"],
            "conditions": {one["type"]: f"{one['status']} {one['reason']}" for one in status["conditions"]},
            "restarts": {level: count for level, count in status["restarts"].items() if count},
            "roles": [{k: role.get(k) for k in ("name", "succeeded", "restarts")} for role in status["roles"]],
            "commands": [[one["id"], one["state"]] for one in status.get("lastCommands", ())],
            "clusters": [self._plain(name) for name in made.values()],
            "children": sorted(self._plain(child) for child in self._children()),
            "logs": sorted(self._object("configmaps", names.logs_map(NAME))["data"]),
            "submissions": [[self._plain(sent), _outcome(state)] for sent, state in ray["submissions"]],
            "left in Ray": ray["left"],
            "refused": ray["refused"],
            "events": sorted(
                MUST_BE_TOLD & {e["reason"] for e in self.world.all("events", self.namespace) if _ours(e)}
            ),
        }

    async def _released(self) -> Json:
        """Return Ray's state of the job once its last submission is over."""
        end = time.monotonic() + STEP_SECONDS
        while True:
            found = await self.scene.told(self.uid)
            if all(state not in ("PENDING", "RUNNING") for _, state in found["submissions"]) and not found["left"]:
                return found
            if time.monotonic() > end:
                return found
            await asyncio.sleep(0.1)

    def _plain(self, words: str) -> str:
        for attempt in range(1, 6):
            words = words.replace(names.cluster_name(NAME, self.uid, attempt), f"j-<{attempt}>")
        return words.replace(self.uid[:8], "<uid>")

    def laws(self) -> list[str]:
        """Return violations of the rules that every version of the status must keep."""
        found: list[str] = []
        last: Json = {}
        for plural, kind, body in self.world.history[self.namespace]:
            status = body.get("status") or {}
            if plural != "dljobs" or kind == "DELETED":
                continue
            if (status.get("attempt") or 1) < (last.get("attempt") or 1):
                found.append(f"attempt {last.get('attempt')} became {status.get('attempt')}")
            if last.get("completionTime") and status.get("phase") != last.get("phase"):
                found.append(f"{last.get('phase')} became {status.get('phase')}")
            last = status
        return found


def _label(body: Json, name: str) -> str:
    return (body["metadata"].get("labels") or {}).get(name, "")


def _ours(event: Json) -> bool:
    return event.get("reportingController") == names.CONTROLLER


def _running(pod: Json, ip: str) -> Json:
    """Return a running head pod's status as a kubelet writes it."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ready = [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in ("Ready", "ContainersReady")]
    containers = [
        {
            "name": container["name"],
            "image": container["image"],
            "imageID": "x",
            "containerID": f"fake://{pod['metadata']['uid']}",
            "ready": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": now}},
        }
        for container in pod["spec"]["containers"]
    ]
    return {
        "phase": "Running",
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "startTime": now,
        "conditions": ready,
        "containerStatuses": containers,
    }


Play: TypeAlias = Callable[[Life], Awaitable[None]]


def _outcome(state: str) -> str:
    """Unify a lost head's launcher: it may end by itself (FAILED: the job is suspended) or be ended (STOPPED)."""
    return state if state == "SUCCEEDED" else "ended"
