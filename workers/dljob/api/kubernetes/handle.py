"""Handle of a job on Kubernetes for scripts: every call asks the cluster and blocks until it answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TextIO, TypeVar, Unpack, cast

from dljob.api.any_job import LogSelection
from dljob.api.kubernetes import (
    gateway,
    jobs,
    last_status,
    logs,
    master_log,
    orders,
    scaling,
    suspension,
    timeline,
    views,
    whole_logs,
)
from dljob.api.kubernetes.connect import Cluster, ask
from dljob.api.shown_job import JobAccounts, JobSummary, Overview, Page, ShownJob
from dljob.api.views import Suspension
from dljob.errors import NotFoundError, UnreachableError
from dljob.telemetry.wording import unix

if TYPE_CHECKING:
    from dljob.api.kubernetes.submit import GivenJob
    from dljob.api.views import JobEvent, JobStatus
    from dljob.kube.api import Kube

Json = dict[str, Any]
T = TypeVar("T")

KEPT = "Kubernetes keeps them for an hour"
WITHOUT = "without PrimeMaster's own notes: "


class RecordAnswer(NamedTuple):
    """One look at a job and at its record."""

    overview: Overview
    attempt: int
    """The attempt of the record; 0: none has begun, or is between two."""
    events: Sequence[Json]
    news: Json | None = None
    """Answer of the gateway; None where there is none."""
    silent: str = ""
    """Why the gateway does not answer, although the job has begun."""


class KubernetesJob(ShownJob):
    """A DLJob in a namespace."""

    def __init__(self, body: Json, context: str | None = None) -> None:
        self._body = body
        self._cluster = Cluster(context)
        self._which, self._where = "", ""

    @classmethod
    def named(cls, which: str, namespace: str | None = None, context: str | None = None) -> Self:
        """Return a handle of a job by name or uid, which its first call finds.

        Args:
            which: name, uid, or the first 8 digits of the uid.
            namespace: by default the kubeconfig's current one.
            context: of the kubeconfig; by default the current one.
        """
        job = cls({}, context)
        job._which, job._where = which, namespace or ""
        return job

    def __enter__(self) -> Self:
        """Use one connection for all calls in the block."""
        self._cluster.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the connection."""
        self._cluster.__exit__(kind, error, at)

    @property
    def name(self) -> str:
        """The job's name."""
        return str(self._meta["name"])

    @property
    def namespace(self) -> str:
        """The job's namespace."""
        return str(self._meta["namespace"])

    @property
    def uid(self) -> str:
        """The DLJob's uid in Kubernetes."""
        return str(self._meta["uid"])

    @property
    def place(self) -> str:
        """The job in a message: `hello in namespace team`."""
        return f"{self.name} in namespace {self.namespace}"

    @property
    def flags(self) -> str:
        """Flags by which a later command finds the job, after a blank."""
        context = f" --context {self._cluster.context}" if self._cluster.context else ""
        return f" -n {self.namespace}{context}"

    @property
    def remains(self) -> str:
        """Remains of a stopped job, for a message: the command for its logs."""
        return f"its logs: dljob logs {self.name}{self.flags}"

    @property
    def body(self) -> Json:
        """The DLJob object as it was when first looked up."""
        if not self._body:
            self._about(_itself)
        return self._body

    @property
    def _meta(self) -> Json:
        return self.body["metadata"]

    def status(self) -> JobStatus:
        """Return the DLJob's `.status`: phase, conditions, roles, restarts, progress."""
        return _status(self._about(_itself))

    def events(self, after: int = 0) -> list[JobEvent]:
        """Return the timeline by time: Events about the job and, while it runs, PrimeMaster's notes.

        Args:
            after: omit PrimeMaster's notes up to that number, and all Events.
        """
        notes = self._about(timeline.EventFeed().new_entries)
        return cast("list[JobEvent]", [n for n in notes if not after or n.get("seq", 0) > after])

    @property
    def started(self) -> float:
        """Time of the DLJob's creation, in unix seconds."""
        return unix(self._meta.get("creationTimestamp")) or 0.0

    def tell_events(self, show: Callable[[JobEvent], None], *, follow: bool, tail: int | None = None) -> None:
        """Show the entries of the timeline, or the last `tail` of them; with `follow`, continue until its end."""

        async def tell(kube: Kube, job: Json) -> None:
            if follow:
                async with aclosing(timeline.follow(kube, job, tail)) as notes:
                    async for note in notes:
                        show(cast("JobEvent", note))
                return
            feed = timeline.EventFeed()
            entries = await feed.new_entries(kube, job)
            for note in timeline.last(entries, tail):
                show(cast("JobEvent", note))
            if not entries:
                self._remark(f"no events; {KEPT}")
            # PrimeMaster of an ended job is gone, so its silence says nothing.
            if feed.silent and not jobs.ended(job):
                self._remark(f"{WITHOUT}{feed.silent}")

        self._about(tell)

    def overview(self) -> Overview:
        """Return the job in detail, by its DLJob alone."""
        return views.overview(self._about(_itself))

    def ranks(self) -> Overview:
        """Return the job in detail, with each rank while PrimeMaster answers."""

        async def look(kube: Kube, job: Json) -> Overview:
            overview = views.overview(job)
            with suppress(UnreachableError):  # the DLJob's own status has the counts of its roles
                status = await (await gateway.reach(kube, job)).status(ranks=True)
                return replace(overview, status={**status, "phase": overview.phase})
            return overview

        return self._about(look)

    def evidence(self) -> Overview:
        """Return the job in detail, with the evidence of its failures where PrimeMaster or what it left tells it."""

        async def look(kube: Kube, job: Json) -> Overview:
            overview = views.overview(job)
            faults = jobs.entries(overview.status, "recentFaults")
            last_known = await last_status.find_if_any(kube, job) if faults else {}
            faults_with_evidence = views.with_evidence(faults, jobs.entries(last_known, "recentFaults"))
            return replace(overview, status={**overview.status, "recentFaults": faults_with_evidence})

        return self._about(look)

    def accounts(self) -> JobAccounts:
        """Return where the time of the job's ranks went, by its PrimeMaster, or what that left behind."""

        async def look(kube: Kube, job: Json) -> JobAccounts:
            overview = views.overview(job)
            status = await last_status.find(kube, job)
            return JobAccounts(replace(overview, status={**status, "phase": overview.phase}), job["spec"])

        return self._about(look)

    def page(self) -> Page:
        """Return the job in detail, with its spec, pods and last events."""

        async def gather(kube: Kube, job: Json) -> Page:
            feed = timeline.EventFeed()
            events = await feed.new_entries(kube, job)
            pods, pods_remarks = await views.pods(kube, job)
            remarks = [] if events else [f"none; {KEPT}"]
            remarks += [f"{WITHOUT}{feed.silent}"] if feed.silent and not jobs.ended(job) else []
            log_hint = whole_logs.whereabouts(job)
            return Page(
                views.overview(job),
                facts=views.facts(job),
                spec=job["spec"],
                events=cast("list[JobEvent]", events),
                event_remarks=remarks,
                more_events=f"dljob events {self.name}{self.flags}",
                logs=[f"dljob logs {self.name} --follow{self.flags}", *([log_hint] if log_hint else [])],
                pods=pods,
                pods_remarks=pods_remarks,
                dashboard=views.dashboard(job, self._cluster.context),
            )

        return self._about(gather)

    def record(self, events: timeline.EventFeed, have: Mapping[str, int]) -> RecordAnswer:
        """Return the job by its DLJob, new Events about it, and news of its record from the node of its PrimeMaster."""

        async def look(kube: Kube, job: Json) -> RecordAnswer:
            overview, attempt = views.overview(job), jobs.begun(job)
            fresh = await events.new_entries(kube, job)
            try:
                return RecordAnswer(overview, attempt, fresh, await (await gateway.reach(kube, job)).record(have))
            except (gateway.NotYetError, NotFoundError):
                # Nothing runs yet, PrimeMaster has only begun, or the gateway is of a dljob that gives no record.
                return RecordAnswer(overview, attempt, fresh)
            except UnreachableError as error:
                return RecordAnswer(overview, attempt, fresh, silent=error.message)

        return self._about(look)

    def watch(self, show: Callable[[Sequence[JobSummary]], None]) -> None:
        """Show the job at every change until it has ended."""

        async def follow(kube: Kube, job: Json) -> None:
            async with aclosing(jobs.changes(kube, job)) as changed:
                async for now in changed:
                    show([views.summary(now)])

        self._about(follow)

    def wait(self, timeout: float | None = None) -> JobStatus:
        """Wait for the end and return the final status.

        Args:
            timeout: seconds; None: without limit.

        Raises:
            DeadlineError: the job had not ended in time.
            NotFoundError: the job was deleted.
        """

        async def end(kube: Kube) -> Json:
            # Of the job that the handle was made for: one made of its name since then is another.
            return await jobs.wait(kube, self._body or await self._now(kube), timeout)

        return _status(self._cluster.ask(end))

    def _result(self, status: JobStatus) -> str | None:
        del status  # PrimeMaster alone has the result: the status of a DLJob does not contain it

        async def look(kube: Kube, job: Json) -> str | None:
            try:
                return await (await gateway.reach(kube, job)).result()
            except UnreachableError as error:
                raise NotFoundError(
                    f"the result of job {self.name} went with its RayCluster: {error.message}",
                    hint="cleanupPolicy: Retain keeps the cluster; or let the job write its result to a volume",
                ) from error

        return self._about(look)

    def _write_logs(self, to: TextIO, *, follow: bool, **which: Unpack[LogSelection]) -> None:
        async def write(kube: Kube, job: Json) -> None:
            if follow:
                await _follow(to, logs.follow(kube, job, **which))
                return
            async with aclosing(logs.read(kube, job, **which)) as pieces:
                async for lines in pieces:
                    # In a thread: a pager stops the writing while its user reads, and requests must not time out.
                    await asyncio.to_thread(to.writelines, [f"{line}\n" for line in lines])
            # The ConfigMap keeps only the ends of an ended job's logs.
            if (log_hint := whole_logs.whereabouts(job)) and jobs.ended(job):
                self._remark(log_hint)

        self._about(write)

    def _write_master_log(self, to: TextIO, *, follow: bool, tail: int | None, since: float | None) -> None:
        async def write(kube: Kube, job: Json) -> None:
            if follow:
                await _follow(to, master_log.follow(kube, job, tail=tail, since=since))
            else:
                to.writelines(f"{line}\n" for line in await master_log.read(kube, job, tail=tail, since=since))

        self._about(write)

    def restart(self, target: str = "job") -> None:
        """Restart the job, a role ("rollout") or a rank ("rollout/2"); returns once the operator has accepted it."""
        self._order("restart", target)

    def scale(self, role: str, ranks: int) -> None:
        """Resize a role within its bounds; returns once the DLJob has the new size.

        Raises:
            NotFoundError: the job has ended, or has no such role.
            UsageError: the role cannot have this size.
        """
        self._about(lambda kube, job: scaling.scale(kube, job, role, ranks))

    def stop(self, *, wait: bool = False) -> None:
        """End the job; returns once the operator has accepted the order.

        Args:
            wait: return only when the job has ended.
        """
        self._order("stop", "job")
        if wait:
            self.wait()

    def stacks(self, target: str = "job") -> dict[str, str]:
        """Return the stacks of all threads of each rank ("rollout/2"), as text, without stopping the ranks.

        Raises:
            NotFoundError: there is no such target, or nothing of the job runs.
            UnreachableError: the job's head does not answer.
        """

        async def look(kube: Kube, job: Json) -> dict[str, str]:
            return dict(await (await gateway.reach(kube, job)).stacks(target))

        return self._about(look)

    def dashboard(self, target: str) -> tuple[int, bytes]:
        """Return status and body of a path of Ray's dashboard on the job's head.

        Raises:
            UnreachableError: nothing of the job runs, or its head does not answer.
        """

        async def look(kube: Kube, job: Json) -> tuple[int, bytes]:
            return await gateway.dashboard(kube, job, target)

        return self._about(look)

    def suspend(self, *, wait: bool = False) -> Suspension:
        """Release the job's machines: checkpoints in memory are saved, and only the DLJob is kept.

        Args:
            wait: return only when all its pods are gone.
        """
        return self._switch(suspension.halted if wait else None, on=True)

    def resume(self, *, wait: bool = False) -> Suspension:
        """Resume a job that is suspended, was stopped or failed, from its last checkpoint, with its spec as it is now.

        Args:
            wait: return only when it runs or has ended.
        """
        return self._switch(suspension.runs if wait else None, on=False)

    def _switch(self, until: Callable[[Kube, Json], Awaitable[Json]] | None, *, on: bool) -> Suspension:
        async def give(kube: Kube, job: Json) -> Suspension:
            was_halted = suspension.is_suspended(job)
            if not on and jobs.phase_of(job) in ("Stopped", "Failed"):
                await orders.order(kube, job, "resume", say=self._remark)
                new_job, was_halted = await self._now(kube), True
            else:
                new_job = await suspension.suspend(kube, job, on=on)
            if until is not None:
                new_job = await until(kube, new_job)
            # By the DLJob of the look-up, which shows the state before this call.
            return Suspension(was_halted, _status(new_job))

        return self._about(give)

    def _order(self, kind: orders.Kind, target: str) -> None:
        self._about(lambda kube, job: orders.order(kube, job, kind, target, say=self._remark))

    async def _now(self, kube: Kube) -> Json:
        """Return the present job of that name."""
        if not self._body:
            self._body = await jobs.find(kube, self._which, self._where or kube.namespace)
            return self._body
        return await jobs.find(kube, self.name, self.namespace)

    def _about(self, question: Callable[[Kube, Json], Awaitable[T]]) -> T:
        """Find the present job of that name and await `question` about it, over one connection."""

        async def main(kube: Kube) -> T:
            return await question(kube, await self._now(kube))

        return self._cluster.ask(main)


async def _itself(_kube: Kube, job: Json) -> Json:
    return job


async def _follow(to: TextIO, lines: AsyncGenerator[object]) -> None:
    async with aclosing(lines):
        async for line in lines:
            to.write(f"{line}\n")
            to.flush()


def _status(body: Json) -> JobStatus:
    """Return the status in the handle's shape; Pending before the operator has seen the job."""
    return cast("JobStatus", {"phase": jobs.phase_of(body), **jobs.status_of(body)})


def submit_job(
    given_job: GivenJob,
    *,
    namespace: str | None = None,
    context: str | None = None,
    say: Callable[[str], object] = lambda _: None,
) -> KubernetesJob:
    """Create a DLJob on Kubernetes, with its code.

    Args:
        given_job: the job.
        namespace: the job's namespace; by default that of the manifest, else the current one.
        context: of the kubeconfig; by default the current one, or the cluster that this process runs in.
        say: receives remarks about the upload.

    Raises:
        SpecError: the server refused the spec.
        UsageError: a job of that name exists; the code is too large; the Kubernetes client is not installed.
        UnreachableError: the cluster cannot be reached, or refuses.
    """
    from dljob.api.kubernetes.submit import send

    return KubernetesJob(ask(lambda kube: send(kube, given_job, namespace, say), context), context)
