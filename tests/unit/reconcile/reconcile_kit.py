"""An in-memory world for the tests of `reconcile`: an API server, KubeRay, Ray's Job API and a PrimeMaster.

world = World()                      # a DLJob was applied
world.settle()                       # passes until nothing is to be done
world.head_ready().settle()          # the world moves on
world.master("Running").settle()
assert world.phase == "Running"
"""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass, field, replace
from typing import Any

from reconcile_samples import NOW, SETTINGS, UID, dljob, merged, snapshot, spec

from dljob.raycluster.pods import CARRIED_KEY, SPEC_KEY
from dljob.reconcile.children.patches import operations
from dljob.reconcile.policies.resources import reads_history
from dljob.reconcile.reconcile import reconcile
from dljob.reconcile.state import names
from dljob.reconcile.state.context import stamp
from dljob.reconcile.state.model import (
    Action,
    Annotate,
    Command,
    Create,
    CreateToken,
    Delete,
    Event,
    Finalize,
    KeepResourceUse,
    MasterView,
    Object,
    Observed,
    PatchCluster,
    Pod,
    RayJobView,
    ReconcileResult,
    SaveLogs,
    Serve,
    Settings,
    Submit,
    Trouble,
    Watch,
)
from dljob.spec.status import TERMINAL
from dljob.testing.world.fault_schedule import chance
from dljob_operator.testing.api_server import ApiServer
from dljob_operator.testing.virtual_time import Agenda
from dljob_operator.watch.cache import cluster_digest

__all__ = ["NOW", "SETTINGS", "UID", "CrashError", "World", "dljob", "snapshot", "spec"]

IRREVERSIBLE = (Delete, Submit, Command, SaveLogs)
MANY = ("cause", "Pod", "ConfigMap", "NetworkPolicy", "Secret")
"""Kinds of commands and deletions that may occur many times in a pass."""


def copied(value: Any) -> Any:
    """A copy that shares nothing with the original, several times faster than one by `copy.deepcopy`."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - ours


class CrashError(Exception):
    """The simulated operator crashes."""


@dataclass
class World:
    """Everything outside the operator, and a record of the operator's calls."""

    job: dict[str, Any] | None = field(default_factory=dljob)
    settings: Settings = SETTINGS
    now: float = NOW
    clusters: dict[str, dict[str, Any]] = field(default_factory=dict)
    maps: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    """The data of the ConfigMap with what ended jobs used: name of a job -> its entry."""
    secrets: dict[str, str] = field(default_factory=dict)
    """Name -> the ConfigMap that owns it."""
    pods: dict[str, list[Pod]] = field(default_factory=dict)
    ray: dict[str, str] = field(default_factory=dict)
    """Submission id -> status on the living head."""
    masters: set[str] = field(default_factory=set)
    """Submissions whose PrimeMaster lives; it no longer needs its launcher."""
    session: str = "session-1"
    view: MasterView | None = None
    said: RayJobView | None = None
    troubles: tuple[Trouble, ...] = ()
    kuberay: str = ""
    objection: tuple[str, str] = ("", "")
    sent: tuple[str, ...] = ()
    services: dict[str, Any] = field(default_factory=dict)
    """Kind/name -> Service or EndpointSlice."""
    served: dict[str, str] = field(default_factory=dict)
    """Their digests, as the operator's process knows them."""
    events: list[Event] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    """A line for every call that changed something."""
    submissions: list[tuple[str, str]] = field(default_factory=list)
    """(submission id, Ray session that accepted it)."""
    posted: dict[str, Submit] = field(default_factory=dict)
    """Submission id -> submission that Ray accepted."""
    commands: list[Command] = field(default_factory=list)
    watch: Watch | None = None
    outcome: ReconcileResult | None = None
    counted: int = 0
    """Restarts that the living PrimeMaster counts, including those handed on to it."""
    worn: int = 0
    """Restarts in the job's whole life."""
    handed: list[tuple[int, int]] = field(default_factory=list)
    """For each PrimeMaster: restarts handed on to it, and restarts in the status at that time."""
    fuse: int | None = None
    """Number of calls until the operator crashes; None: never."""

    # -- what the operator sees

    def observed(self) -> Observed:
        assert self.job is not None
        status = self.job.get("status", {})
        attempt = status.get("attempt", 1)
        named = self.job["spec"].get("rayClusterRef") or status.get("rayCluster", {})
        own = names.cluster_name(self.job["metadata"]["name"], UID, attempt)
        name = named.get("name") or own
        if "rayClusterRef" not in self.job["spec"] and name not in self.clusters and not self.pods.get(name):
            name = own  # As in the shell: nothing of the last attempt is left to look at.
        cluster = copied(self.clusters.get(name))
        past = {names.cluster_name(self.job["metadata"]["name"], UID, each) for each in range(1, attempt)}
        return Observed(
            job=copied(self.job),
            cluster=cluster and cluster_digest(cluster),  # only what the operator's cache keeps
            pods=tuple(self.pods.get(name, ())),
            strays=tuple(copied(self.clusters[each]) for each in sorted(past - {name}) if each in self.clusters),
            earlier=tuple(
                pod for each in past if each not in (name, *self.clusters) for pod in self.pods.get(each, ())
            ),
            master=self.view,
            ray_job=self.said,
            troubles=self.troubles,
            logs_saved=names.logs_map(self.job["metadata"]["name"]) in self.maps,
            resource_history=self.kept.get(self.job["metadata"]["name"], "") if reads_history(self.job) else None,
            objection=self.objection,
            kuberay=self.kuberay,  # type: ignore[arg-type]
            commands=self.sent,
            services=dict(self.served),
        )

    def look(self) -> ReconcileResult:
        return reconcile(self.observed(), self.settings, self.now)

    # -- what the operator does

    def step(self) -> ReconcileResult:
        """Run one pass."""
        outcome = self.look()
        self.outcome = outcome
        json.dumps(outcome.status)
        once = [a for a in outcome.actions if isinstance(a, IRREVERSIBLE) and getattr(a, "kind", "") not in MANY]
        assert len(once) <= 1, outcome
        if outcome.written_first:
            self._write(outcome.status)
        for action in outcome.actions:
            self._burn()
            self.execute(action)
        self.events += outcome.events
        if not outcome.written_first:
            self._write(outcome.status)
        self._poll(outcome.watch)
        return outcome

    def _write(self, status: Object | None) -> None:
        if status is None:
            return
        self._burn()
        assert self.job is not None
        self.job["status"] = json.loads(json.dumps(status))
        self.log.append(f"status {status['phase']}/{status['reason']}")

    def settle(self, passes: int = 50) -> World:
        """Run passes until nothing is left to do."""
        for _ in range(passes):
            if self.job is None:
                return self
            outcome = self.step()
            if not outcome.actions and outcome.status is None:
                return self
        raise AssertionError(f"no rest after {passes} passes: {self.log[-6:]}")

    def _burn(self) -> None:
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                raise CrashError

    def execute(self, action: Action) -> None:
        """Apply an action of the operator to the world."""
        match action:
            case CreateToken():
                assert action.owner in self.maps
                self.secrets.setdefault(action.name, action.owner)
            case Create(kind="ConfigMap" | "NetworkPolicy"):
                self.maps.setdefault(action.body["metadata"]["name"], action.body)
            case Create():
                self._create(action.body)
            case Serve():
                self._serve(action)
            case Delete():
                self._delete(action)
            case PatchCluster() | Annotate():
                self._edit(action)
            case Finalize():
                assert self.job is not None
                self.job["metadata"]["finalizers"] = [names.FINALIZER] if action.on else []
                self.job = None if not action.on and "deletionTimestamp" in self.job["metadata"] else self.job
            case Submit() | Command() | SaveLogs() | KeepResourceUse():
                self._order(action)
        if not isinstance(action, Delete) or action.kind != "Pod":
            self.log.append(f"{type(action).__name__} {getattr(action, 'kind', '')}".strip())

    def _edit(self, action: PatchCluster | Annotate) -> None:
        if isinstance(action, PatchCluster):
            self._patch(action)
        else:
            self._annotate(action)

    def _serve(self, action: Serve) -> None:
        key = f"{action.kind}/{action.name}"
        self.served[key] = action.digest
        if action.body is None:
            del self.services[key]
        else:
            self.services[key] = action.body

    def _order(self, action: Submit | Command | SaveLogs | KeepResourceUse) -> None:
        """Apply an action that is sent to the head, or keeps what came from there."""
        if isinstance(action, KeepResourceUse):
            self.kept[action.job] = action.value
            return
        assert action.cluster in self.clusters
        match action:
            case Submit():
                pods = {pod.name: pod.container for pod in self.pods[action.cluster] if pod.head}
                assert not action.head[1] or pods[action.head[0]] == action.head[1], "a head that restarted"
                if action.session and action.session != self.session:
                    return  # The shell asks the head first.
                if action.id not in self.ray:
                    self.submissions.append((action.id, self.session))
                    self.posted[action.id] = self._as_made(action)
                    self.ray[action.id] = "RUNNING"
                    if {action.id.rpartition("-r")[0]} & self.masters:
                        self.masters.add(action.id)
                        return
                    self.counted = _handed({**self.maps, **action.packages}, action)
                    self.handed.append((self.counted, self.status.get("restarts", {}).get("process", 0)))
            case Command():
                self.commands.append(action)
                self.sent += (action.id,)
            case SaveLogs():
                self.maps[action.name] = {}

    def _as_made(self, action: Submit) -> Submit:
        """Return the submission as the operator completes it; the attempt's ConfigMap is preferred to the DLJob."""
        if not action.spec_map:
            return action
        spec = json.loads(self.maps[action.spec_map]["data"][SPEC_KEY])["spec"]
        return replace(action, runtime_env=spec.get("runtimeEnv", {}))

    def _delete(self, action: Delete) -> None:
        if action.kind == "DLJob":
            self.job = None
        elif action.kind == "Pod":
            self._delete_pod(action)
        elif action.kind in ("ConfigMap", "NetworkPolicy"):
            self.maps.pop(action.name, None)
            self.secrets = {name: owner for name, owner in self.secrets.items() if owner != action.name}
        else:
            assert action.kind == "RayCluster"
            assert self.clusters[action.name]["metadata"]["uid"] == action.uid
            self.delete_cluster(action.name)

    def _delete_pod(self, action: Delete) -> None:
        """Mark a pod as leaving; remove it at once without a grace period or a living kubelet."""
        pods = self.pods[self.name]
        (pod,) = (pod for pod in pods if (pod.name, pod.uid) == (action.name, action.uid))
        grace = " ".join([action.name, *([str(action.grace)] if action.grace is not None else [])])
        self.log.append(f"Delete Pod {grace}")
        left = replace(pod, leaving=True, ready=False, ends=self.now + (action.grace or 30))
        gone = action.grace == 0 or not pod.node
        self.pods[self.name] = [*(left if each is pod else each for each in pods if each is not pod or not gone)]

    def _create(self, body: Any) -> None:
        name = body["metadata"]["name"]
        if name not in self.clusters:
            made = copied(body)
            at = stamp(self.now)
            made["metadata"] |= {"uid": f"uid-{name}-{len(self.log)}", "generation": 1, "creationTimestamp": at}
            made["status"] = {"observedGeneration": 1}  # KubeRay has seen it.
            self.clusters[name] = made
            self.pods[name] = []

    def _patch(self, action: PatchCluster) -> None:
        found = self.clusters[action.name]
        found["metadata"].setdefault("resourceVersion", "1")
        server = ApiServer(Agenda(self.now, chance("patch")))
        server.objects["RayCluster", action.name] = found
        self.clusters[action.name] = server.json_patch("RayCluster", action.name, operations(found, action))

    def _annotate(self, action: Annotate) -> None:
        if action.kind == "Pod":
            for name, pods in self.pods.items():
                self.pods[name] = [
                    replace(pod, annotations=merged(pod.annotations, action.annotations))
                    if pod.name == action.name
                    else pod
                    for pod in pods
                ]
            return
        assert self.job is not None
        target = self.job if action.kind == "DLJob" else self.clusters[action.name]
        target["metadata"]["annotations"] = merged(target["metadata"].get("annotations", {}), action.annotations)

    def _poll(self, watch: Watch | None) -> None:
        """Return what the shell's poller would have heard."""
        if watch != self.watch:
            self.view = self.said = None
        self.watch = watch
        if watch is not None:
            known = self.ray.get(watch.submission, "MISSING")
            if self.said is None or self.said.status in ("", "MISSING"):
                spec = self.posted[watch.submission].metadata[names.SPEC_HASH] if known != "MISSING" else ""
                self.said = RayJobView(watch.submission, known, session=self.session, spec=spec)

    # -- what happens in the world

    @property
    def cluster(self) -> dict[str, Any]:
        """Return the newest RayCluster."""
        return list(self.clusters.values())[-1]

    @property
    def name(self) -> str:
        return self.cluster["metadata"]["name"]

    def head_ready(self, uid: str = "pod-1") -> World:
        """Let KubeRay report a ready head."""
        head = Pod(f"{self.name}-head", uid, True, "headgroup", "Running", True, ip="10.0.0.1", node="node-a")
        head = replace(head, container=f"containerd://{uid}-{self.session}")
        self.pods[self.name] = [head]
        return self.condition("HeadPodReady", "True")

    def workers_ready(self, ready: int = 1, desired: int = 1) -> World:
        head = self.pods[self.name][0]
        workers = [
            Pod(f"{self.name}-w{at}", f"worker-{at}", False, "cpu1", "Running" if at < ready else "Pending", at < ready)
            for at in range(desired)
        ]
        self.pods[self.name] = [head, *workers]
        self.cluster["status"] |= {"desiredWorkerReplicas": desired, "readyWorkerReplicas": ready}
        return self

    def condition(self, kind: str, status: str = "True", **more: Any) -> World:
        """Set a condition of the RayCluster, as KubeRay does."""
        made = self.cluster["status"] = {
            "desiredWorkerReplicas": 1,
            "readyWorkerReplicas": 0,
            **self.cluster.get("status", {}),
        }
        kept = [one for one in made.get("conditions", []) if one["type"] != kind]
        made["conditions"] = [*kept, {"type": kind, "status": status, **more}]
        made["head"] = {"podIP": "10.0.0.1", "podName": f"{self.name}-head", "serviceName": f"{self.name}-head-svc"}
        return self

    def delete_cluster(self, name: str = "") -> World:
        """Delete the RayCluster with its pods and Ray's state."""
        name = name or self.name
        del self.clusters[name]
        self.pods.pop(name, None)
        self.new_session()
        return self

    def new_session(self) -> World:
        """Restart the head's process; Ray's state is lost."""
        self.ray.clear()
        self.masters.clear()
        self.session = f"session-{int(self.session.rpartition('-')[2]) + 1}"
        for name, pods in self.pods.items():
            self.pods[name] = [replace(pod, container=f"{pod.container}+") if pod.head else pod for pod in pods]
        if self.said is not None:
            self.said = replace(self.said, status="MISSING", session=self.session)
        if self.view is not None:
            self.silent(0.0)
        return self

    def kept_head(self, uid: str = "") -> World:
        """Restart the head's process, maybe in another pod, with Ray's state kept; processes on the head are gone."""
        self.ray = {id_: "FAILED" if status == "RUNNING" else status for id_, status in self.ray.items()}
        self.masters |= {id_ for id_ in self.posted if id_.rpartition("-r")[0] in self.masters}
        head, *others = self.pods[self.name]
        new = replace(head, uid=uid, name=f"{self.name}-{uid}") if uid else head
        self.pods[self.name] = [replace(new, container=f"{head.container}+"), *others]
        if self.said is not None:
            self.said = replace(self.said, status=self.ray.get(self.said.id, "MISSING"))
        return self.silent(0.0) if self.view is not None else self

    @property
    def keeps(self) -> bool:
        """Return whether Ray's state outlives its head."""
        return self.has_head and names.SURVIVES in self.cluster["metadata"].get("annotations", {})

    @property
    def has_head(self) -> bool:
        return bool(self.clusters) and bool(self.pods[self.name])

    @property
    def lives(self) -> bool:
        """Return whether a PrimeMaster of the watched attempt runs."""
        running = {id_ for id_, status in self.ray.items() if status == "RUNNING"}
        return self.watch is not None and self.watch.submission in self.masters | running

    def calm(self, end: str = "Succeeded", rounds: int = 12) -> World:
        """Let the job run to its end without further faults."""
        for _ in range(rounds):
            self.settle()
            if self.job is None or self.phase in TERMINAL:
                return self
            if self.clusters and not self.has_head:
                self.head_ready(f"pod-{len(self.log)}")
            elif self.clusters:
                self.workers_ready()
            if self.lives:
                self.master("Running").settle().master(end)
            self.later(30)
        raise AssertionError(f"no end: {self.status['phase']}/{self.status['reason']}: {self.log[-8:]}")

    def master(self, phase: str = "Running", **more: Any) -> World:
        """Set PrimeMaster's snapshot."""
        carry = {"v": 1, "count": self.counted}
        counts = {"restarts": {"process": self.counted}, "carry": carry} if self.counted else {}
        self.view = MasterView(snapshot(phase, **{"attempt": self.status.get("attempt") or 1, **counts, **more}))
        if self.watch is not None:
            self.masters.add(self.watch.submission)
        return self

    def wear(self) -> World:
        """Let PrimeMaster count a restarted process."""
        self.worn += 1
        self.counted += 1
        return self.master("Running")

    def silent(self, seconds: float, error: str = "connection refused") -> World:
        """Let PrimeMaster be silent since this many seconds."""
        self.view = replace(self.view or MasterView({}), age=seconds, error=error)
        return self

    def launcher(self, status: str, **more: Any) -> World:
        """Set Ray's record of the submission."""
        self.ray[self.watch.submission] = status
        self.said = RayJobView(self.watch.submission, status, session=self.session, **more)
        return self

    def edit(self, **spec: Any) -> World:
        """Edit fields of the DLJob's spec."""
        assert self.job is not None
        self.job["spec"] |= spec
        self.job["metadata"]["generation"] += 1
        return self

    def later(self, seconds: float) -> World:
        self.now += seconds
        if self.view is not None and self.view.error:
            self.view = replace(self.view, age=self.view.age + seconds)
        return self

    def restarted(self) -> World:
        """Restart the operator; its memory is lost."""
        self.view = self.said = self.watch = self.fuse = None
        self.sent = ()
        return self

    def running(self) -> World:
        self.settle().head_ready().settle()
        return self.workers_ready().master("Running").settle()

    # -- the status

    @property
    def status(self) -> dict[str, Any]:
        assert self.job is not None
        return self.job["status"]

    @property
    def phase(self) -> str:
        return self.status["phase"]

    def cond(self, kind: str) -> tuple[str, str]:
        """Return status and reason of a condition."""
        found = next(one for one in self.status["conditions"] if one["type"] == kind)
        return found["status"], found["reason"]

    def message(self, kind: str) -> str:
        return next(one for one in self.status["conditions"] if one["type"] == kind)["message"]

    def reasons(self) -> list[str]:
        return [event.reason for event in self.events]


def _handed(files: dict[str, Any], action: Submit) -> int:
    """Return the last attempt's counts, as the launcher finds them."""
    if "--carried" not in action.argv:
        return 0
    where = action.argv[action.argv.index("--carried") + 1]
    text = files.get(where.removeprefix("gcs://")) or files[names.spec_map(action.cluster)]["data"][CARRIED_KEY]
    return json.loads(text)["state"].get("count", 0)
