"""State of a story: one DLJob, the API server, the cluster, the operators, and the faults that are due."""

from __future__ import annotations

import json
import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

from dljob.raycluster.pod_security import PodPolicy
from dljob.reconcile.state import names
from dljob.reconcile.state.fields import number, part, text
from dljob.reconcile.state.model import Object, Observed, ReconcileResult, Settings
from dljob_operator.testing.api_server import NAMESPACE, ApiServer, Body
from dljob_operator.testing.head_process import HeadProcess, SimulatedMaster
from dljob_operator.testing.kuberay_model import Nature
from dljob_operator.testing.simulated_process import SimulatedProcess
from dljob_operator.testing.slow_calls import SlowCalls
from dljob_operator.testing.virtual_time import Agenda

EPOCH_S = 1_800_000_000.0
UID = "0f8fad5b-d9cb-469f-a165-70867728950e"
NAME = "job"
SETTINGS = Settings(
    version="0.1.0",
    image="example.org/ray:{rayVersion}",
    ray_version="2.60.0",
    init_image="example.org/dljob:0.1.0",
    pods=PodPolicy(operator="dljob-system/dljob-operator"),
)
TRAVEL_S = 0.01
SHARED = "shared"


@dataclass(frozen=True, slots=True)
class ApiTrouble:
    """Failure of one call after some seconds; `done`: it takes effect, and only its answer is lost."""

    status: int
    done: bool
    seconds: float


def last_checkpoint(carried: Object) -> list[float]:
    """Return the last checkpoint in the state that an attempt hands on: attempt, run, step, time; empty: none."""
    return list(part(carried, "state", "checkpoints").get("worker", ()))


@dataclass(slots=True)
class OpenOrder:
    """What a job was between an order to resume it and the answer to that."""

    phase: str
    """The visible phase when the order was given."""
    had_ended: bool
    """Whether the job had really ended by then: its status may still be on the way."""
    was_resumable: bool = False
    """Whether it could go on at some moment since then."""
    was_unresumable: bool = False
    """Whether it could not at some moment since then."""


class StoryState(ABC):
    """State of a story; its methods are what operators, heads and faults do to it."""

    def __init__(self, manifest: Mapping[str, Any], work: float, rng: Random) -> None:
        self.rng = rng
        self.agenda = Agenda(EPOCH_S, rng)
        self.server = ApiServer(self.agenda)
        self.nature = Nature(self.server, self.agenda, self._on_head_news)
        self.settings, self.name = SETTINGS, NAME
        self.work = work
        self.shared = SHARED if part(manifest, "spec", "rayClusterRef") else ""
        self.operators: list[SimulatedProcess] = []
        self.problems: list[str] = []
        self.trace: list[str] | None = None
        self.troubles: list[ApiTrouble] = []
        self.fuse: int | None = None
        """Calls until an operator crashes; None: none does."""
        self.back_in = 1.0
        """Seconds until another one starts when none is left."""
        self.behind, self.lag = 0, 0.0
        """Changes that the next operator's first lists lack, and the seconds until its watches bring them."""
        self.log: list[tuple[str, Body, bool]] = []
        """All changes, as (kind, object, whether it is gone)."""
        self.slow = SlowCalls(self.agenda, self.broken)
        self.silent_until = 0.0
        """Time until which no head can be reached."""
        self.refuses = self.fails = False
        """Whether the next launcher refuses to start, and whether user code fails."""
        self.taken: dict[str, HeadProcess] = {}
        """Submission id -> the head that accepted it."""
        self.orders: dict[str, OpenOrder] = {}
        """Value of an order to resume that is not settled -> what the job was since it was given."""
        self.handed: list[float] = []
        """The checkpoint from which the last submission goes on, as in `carry`; empty: none."""
        self.wrote_at = 0.0
        """Time of the DLJob's last change."""
        self.lost = 0
        """Lost attempts that count against maxClusterRestarts."""
        self.acted: list[float] = []
        """Seconds from the beginning at which an operator decided to act."""
        self.writes = self.unprovoked = 0
        self.most = 0
        self.writer: SimulatedProcess | None = None
        self.last: Body = {}
        """The DLJob as the invariants saw it last."""
        self.server.listeners.append(self.changed)
        self._apply(manifest)
        self.start()

    def _apply(self, manifest: Mapping[str, Any]) -> None:
        if self.shared:
            self.share()
        meta: Body = {"name": NAME, "namespace": NAMESPACE, "uid": UID, "labels": {}, "annotations": {}}
        meta |= part(manifest, "metadata")
        self.server.create("DLJob", {"metadata": meta, "spec": dict(part(manifest, "spec"))})

    def share(self) -> None:
        """Create the RayCluster that the job refers to."""
        meta: Body = {"name": SHARED, "namespace": NAMESPACE, "labels": {}}
        self.server.create("RayCluster", {"metadata": meta, "spec": {"rayVersion": "2.60.0"}, "status": {}})

    # -- operators

    def start(self) -> None:
        """Start an operator, whose wall clock may be wrong by seconds."""
        skew = self.rng.choice((0.0, 0.0, -1.5, 2.0))
        self.happened()
        self.operators.append(self.new_operator(len(self.operators) + 1, skew, self.behind, self.lag))
        self.behind = 0
        self.note(f"operator {len(self.operators)} begins")

    @abstractmethod
    def new_operator(self, number: int, skew: float, behind: int, lag: float) -> SimulatedProcess:
        """Return an operator that has started; its parameters are those of `SimulatedOperator`."""

    def past(self, behind: int) -> tuple[dict[tuple[str, str], Body], list[tuple[str, Body, bool]]]:
        """Return the objects of so many changes ago by (kind, name), and the changes since."""
        objects: dict[tuple[str, str], Body] = {}
        now = max(0, len(self.log) - behind)
        for kind, body, is_deleted in self.log[:now]:
            if is_deleted:
                objects.pop((kind, body["metadata"]["name"]), None)
            else:
                objects[kind, body["metadata"]["name"]] = body
        return objects, self.log[now:]

    def end(self, operator: SimulatedProcess) -> None:
        """Crash an operator; when it was the last, another one starts later."""
        if not operator.alive:
            return
        operator.end()
        self.happened()
        self.note(f"operator {operator.number} dies")
        if not self.alive:
            self.agenda.after(self.back_in, lambda: self.alive or self.start())

    def close(self) -> None:
        """End all operators, so that no task is left."""
        for operator in self.operators:
            operator.end()

    @property
    def alive(self) -> list[SimulatedProcess]:
        """The operators that run."""
        return [operator for operator in self.operators if operator.alive]

    def travel(self, *, fatal: bool) -> float:
        """Return the seconds that a message takes; a `fatal` one counts towards the next crash."""
        if fatal and self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                self.fuse = None
                self.end(self.rng.choice(self.alive))
        return TRAVEL_S * (0.1 + self.rng.random() ** 3)

    def trouble(self) -> ApiTrouble | None:
        """Return the failure of the next call, if any."""
        return self.troubles.pop(0) if self.troubles else None

    def reach(self, address: str) -> HeadProcess | None:
        """Return the head that answers at an address."""
        return None if self.agenda.now < self.silent_until else self.nature.head_of(address)

    # -- what operators do

    @abstractmethod
    def decided(self, operator: SimulatedProcess, observed: Observed, outcome: ReconcileResult) -> None:
        """Note and check the decision of a pass."""

    def note_decision(self, operator: SimulatedProcess, outcome: ReconcileResult) -> None:
        """Note a decision that changes something."""
        if outcome.actions or outcome.status is not None:
            self.acted.append(self.agenda.now - EPOCH_S)
        if self.trace is not None and (outcome.actions or outcome.status is not None):
            did = ", ".join(type(action).__name__ + getattr(action, "kind", "") for action in outcome.actions)
            status = f" {outcome.status['phase']}/{outcome.status['reason']}" if outcome.status else ""
            self.note(f"operator {operator.number}: {outcome.reason} [{did}]{status}")

    def wrote(self, operator: SimulatedProcess) -> None:
        """Count a write to the API server."""
        self.writes += 1
        if self.writer is not operator:
            self.unprovoked = 0  # two operators whose views differ provoke each other while they overlap
        self.writer = operator
        self.unprovoked += 1
        self.most = max(self.most, self.unprovoked)

    def submitted(self, operator: SimulatedProcess, head: HeadProcess, posted: Body) -> None:
        """Let a submission arrive at a head."""
        # The spec is in Ray's packages on a foreign RayCluster, else in the mounted ConfigMap (ADR 15).
        id_, options = posted["submission_id"], dict(pairwise(shlex.split(posted["entrypoint"])))
        spec = self.server.find("ConfigMap", names.spec_map(head.cluster))
        handed = head.packages if self.shared else dict(part(spec, "data"))
        carried = json.loads(handed.get(options.get("--carried", "").rpartition("/")[2], "{}"))
        count = 0 if carried.get("newBudgets") else number(carried, "state", "count")
        self.handed = last_checkpoint(carried)
        attempt = int(options["--attempt"])
        well, refused = not self.fails, self.refuses
        work = self.work * (0.3 + 0.7 * self.rng.random())
        saves, step = bool(part(self.job, "spec", "checkpoint")), int((self.handed or [0, 0, 0])[2])
        master = None if refused else SimulatedMaster(id_, attempt, work, well, count, self.handed, saves, step=step)
        if head.take(id_, posted["metadata"], master):
            self.note(f"operator {operator.number}: {head.session} takes {id_}")
            self.refuses = False
            self.taken_by(head, id_)
            self.happened()

    @abstractmethod
    def taken_by(self, head: HeadProcess, id_: str) -> None:
        """Record that a head accepted a submission."""

    def broken(self, problem: str) -> None:
        """Record that an invariant does not hold."""
        self.note(f"broken: {problem}")
        self.problems.append(problem)

    # -- what happens

    def happened(self) -> None:
        """Record an event from outside, which gives operators a reason to write."""
        self.unprovoked = 0

    def note(self, line: str) -> None:
        """Add a line to the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.agenda.now - EPOCH_S:10.3f} {line}")

    def _on_head_news(self, head: HeadProcess) -> None:
        self.happened()
        for operator in self.alive:
            operator.tell()
        if self.trace is not None:
            masters = ", ".join(f"{m.submission} {m.phase}" for m in head.masters.values())
            self.note(f"{head.session} {'lives' if head.alive else 'is gone'}: {masters}")

    def silence(self, seconds: float) -> None:
        """Cut operators off from all heads for a while."""
        self.silent_until = self.agenda.now + seconds
        # Long polls wake up, and find that no head answers.
        for operator in self.alive:
            operator.tell()

    def changed(self, kind: str, _name: str, body: Body, is_deleted: bool) -> None:  # noqa: FBT001 - as the server tells
        """Bring a change of an object to the operators."""
        self.log.append((kind, body, is_deleted))
        # Pods change mostly by themselves, which gives operators a reason to write.
        if kind == "Pod":
            self.happened()
        for operator in self.alive:
            operator.hear(kind, body, is_deleted=is_deleted)

    @property
    def job(self) -> Body | None:
        """The DLJob."""
        return self.server.find("DLJob", NAME)

    @property
    def phase(self) -> str:
        """The phase in the DLJob's status, or its last one."""
        return text(self.job or self.last, "status", "phase")
