"""A faults file on a job on Kubernetes: the job as the injector sees it, its rights, and the watch until it is well."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dljob.api.kubernetes import gateway, jobs
from dljob.api.kubernetes.cluster_thread import ClusterThread
from dljob.api.kubernetes.fault_means import PodMeans, Right, rights_for
from dljob.errors import NotFoundError, UnreachableError, UsageError
from dljob.plan.plan import plan
from dljob.plan.targets import MASTER, load_faults, target_of
from dljob.runtime.faults.injector import FaultInjector, describe
from dljob.spec.loading.load import parse
from dljob.spec.status import TERMINAL

if TYPE_CHECKING:
    from dljob.kube.api import Kube
    from dljob.master.state.views import Clue
    from dljob.plan.model import JobPlan
    from dljob.spec.loading.faults import FileFault

Json = dict[str, Any]
LOOK_S = 0.5
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class PodJob:
    """A running job of a cluster: its status, events and processes, asked through its gateway."""

    def __init__(self, cluster: ClusterThread, body: Json) -> None:
        self.body = body
        self.gateway: gateway.JobGateway = cluster.ask(lambda kube: gateway.reach(kube, body))
        self.last: Json = {}
        self._cluster = cluster
        self._patience = jobs.PATIENCE_S
        self._attempt, self._seq = jobs.begun(body), 0

    def status(self, wait: float = 0.0) -> Json:
        """Return the newest status, also while PrimeMaster or its head is replaced.

        Raises:
            UnreachableError: nobody has answered for PATIENCE_S; the message says what failed last.
            NotFoundError: the job was deleted.
        """
        end = time.monotonic() + self._patience
        while True:
            try:
                self.last = self._cluster.ask(lambda _: self._ask(wait))
            except UnreachableError as error:
                if time.monotonic() > end:
                    place = jobs.place_of(self.body)
                    message = f"job {place} has not answered for {self._patience:g} s, faults were injected no further"
                    raise UnreachableError(f"{message}: {error.message}", hint=error.hint) from error
                time.sleep(LOOK_S)
                self._look_again()
            else:
                return self.last
            if jobs.ended(self.body):
                return {**self.last, "phase": jobs.phase_of(self.body)}

    async def _ask(self, wait: float) -> Json:
        return await self.gateway.status(ranks=True, after=int(self.last.get("version", 0)), wait=wait)

    def _look_again(self) -> None:
        """Find the head again: the operator replaces one that is lost, with the job's next attempt."""
        meta = self.body["metadata"]
        try:
            self.body = self._cluster.ask(lambda kube: jobs.find(kube, meta["name"], meta["namespace"]))
            if jobs.begun(self.body) not in (0, self._attempt):
                # The next attempt has a PrimeMaster that counts from 1.
                self._attempt, self._seq, self.last = jobs.begun(self.body), 0, {}
            self.gateway = self._cluster.ask(lambda kube: gateway.reach(kube, self.body))
        except UnreachableError:
            # `status` waits, and says what failed last.
            return

    def notes(self) -> list[Json]:
        """Return PrimeMaster's new notes; none while it is away."""
        try:
            fresh = self._cluster.ask(lambda _: self.gateway.notes(self._seq))
        except UnreachableError:
            return []
        self._seq = int(fresh[-1]["seq"]) if fresh else self._seq
        return fresh

    def pids(self) -> dict[str, int]:
        """Return the processes in the last status, each in the namespace of its pod; PrimeMaster's is not known."""
        ranks = {f"{r['role']}/{r['rank']}": int(r["pid"]) for r in self.last.get("ranks", ()) if r["pid"]}
        return {MASTER: 0, **ranks}

    def learned(self, target: str, incarnation: int, clue: Clue) -> None:
        """Report evidence for the end of a rank's process."""
        self._cluster.ask(lambda _: self.gateway.learned(f"{target}.{incarnation}", clue.text))


def plan_of(body: Mapping[str, Any]) -> JobPlan:
    """Return the plan of a DLJob as the API server has it."""
    return plan(parse({**{k: body[k] for k in ("apiVersion", "kind", "spec")}, "metadata": _named(body["metadata"])}))


def _named(meta: Mapping[str, Any]) -> Json:
    return {key: meta[key] for key in ("name", "namespace", "labels", "annotations") if key in meta}


async def lacking(kube: Kube, rights: Iterable[Right], namespace: str) -> list[Right]:
    """Return the rights that the user does not have, by the API server's own answer."""
    missing_rights: list[Right] = []
    for right in rights:
        plural, _, sub = right.resource.partition("/")
        asked = {"verb": right.verb, "group": right.group, "resource": plural, "subresource": sub}
        scope = {} if right.everywhere else {"namespace": namespace}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        body = {**review, "spec": {"resourceAttributes": {**asked, **scope}}}
        answer = await kube.call("POST", REVIEWS, body)
        if not answer.get("status", {}).get("allowed"):
            missing_rights.append(right)
    return missing_rights


def require(cluster: ClusterThread, faults: Sequence[FileFault], job: JobPlan, namespace: str) -> None:
    """Refuse a file as a whole where the user lacks a right: half of a scenario would prove nothing.

    Raises:
        UnreachableError: the message names each right, and a fault that needs it.
    """
    needs: dict[Right, FileFault] = {}
    for fault in faults:
        for right in rights_for(fault, target_of(fault.target, job), job):
            needs.setdefault(right, fault)
    missing = cluster.ask(lambda kube: lacking(kube, needs, namespace))
    if missing:
        rows = "; ".join(
            f"{right.describe} {'in the cluster' if right.everywhere else f'in namespace {namespace}'}"
            f" (for {describe(needs[right])})"
            for right in missing
        )
        raise UnreachableError(
            f"you lack rights that the faults need (403): {rows}",
            hint="dljob has no rights of its own for this: ask for them, or use another account with --context",
        )


class ClusterFaults:
    """The faults of a file for one job on a cluster, ready to be injected."""

    def __init__(self, cluster: ClusterThread, which: str, namespace: str | None, file: Path) -> None:
        """Find the job, and check file and rights.

        Raises:
            NotFoundError: there is no such job, or it has ended.
            SpecError, UsageError: the file is wrong.
            UnreachableError: the job does not answer, or the user lacks a right.
        """
        self._cluster = cluster
        body = cluster.ask(lambda kube: jobs.find(kube, which, namespace or kube.namespace))
        self.place = jobs.place_of(body)
        if jobs.ended(body):
            raise NotFoundError(f"job {self.place} has ended: {jobs.phase_of(body)}", hint="faults need a running job")
        self._plan = plan_of(body)
        self._job = PodJob(cluster, body)
        self._job.status()
        job_namespace = body["metadata"]["namespace"]
        self.means = PodMeans(cluster, lambda: self._job.gateway, job_namespace, self._plan)
        nodes = tuple(cluster.ask(lambda _: self._job.gateway.pods()))
        self.faults = load_faults(file, self._plan, nodes)
        for fault in self.faults:
            if target_of(fault.target, self._plan).queue:
                raise UsageError(
                    f"{describe(fault)}: the keeper of a queue cannot be reached in a pod",
                    hint="dljob run --faults and dljob sim do it; on Kubernetes leave it out",
                )
        require(cluster, self.faults, self._plan, job_namespace)

    def inflict(self, say: Callable[[str], None]) -> Json:
        """Inject all faults, and watch until the job is as before, or over; return the report.

        Raises:
            UnreachableError: a fault could not be done, or the cluster is gone.
        """
        job = self._job
        skew = self._skew()
        shown_notes: list[str] = []

        def remarks() -> None:
            for note in self.means.notes[len(shown_notes) :]:
                shown_notes.append(note)
                say(note)

        injector = FaultInjector(
            self.faults, self._plan, job, begin=time.time() + skew, means=self.means, clock=lambda: time.time() + skew
        )
        # Earlier events are skipped: faults wait for events from now on.
        while job.notes():
            pass
        try:
            while True:
                status = job.status(max(0.05, min(LOOK_S, injector.patience(time.time() + skew))))
                for line in injector.observe(status, job.notes()):
                    say(f"fault: {line}")
                remarks()
                over = status.get("phase") in TERMINAL
                if over or (injector.done and injector.settled(status, time.time() + skew)):
                    break
        finally:
            # Also after Ctrl-C, and when the cluster is gone: what was stopped goes on, what was cordoned is released.
            injector.close()
            remarks()
        return injector.finish(status)

    def _skew(self) -> float:
        """Return how far the head's clock is ahead of this machine's: incidents have the head's time."""
        try:
            return self._cluster.ask(self.means.head_time) - time.time()
        except UnreachableError:
            # A file that needs no `exec` may come from a user who may not: the clocks are taken to agree.
            return 0.0
