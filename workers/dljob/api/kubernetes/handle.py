"""A job on Kubernetes for a script: every call asks the cluster and blocks until it has answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, Unpack

from dljob.api.any_job import AnyJob, Which
from dljob.api.kubernetes import jobs, logs, orders, scaling, submit, suspension
from dljob.api.kubernetes.connect import ask
from dljob.api.kubernetes.timeline import Timeline

if TYPE_CHECKING:
    from dljob.kube.api import Kube
    from dljob.spec.model import DLJobManifest

Json = dict[str, Any]
T = TypeVar("T")


class KubernetesJob(AnyJob):
    """A DLJob in a namespace."""

    def __init__(self, body: Json, context: str | None = None) -> None:
        self._body = body
        self._context = context

    @property
    def name(self) -> str:
        """The job's name."""
        return str(self._body["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """The namespace that it lives in."""
        return str(self._body["metadata"]["namespace"])

    @property
    def uid(self) -> str:
        """Kubernetes' uid."""
        return str(self._body["metadata"]["uid"])

    def status(self) -> Json:
        """The DLJob's `.status`: phase, conditions, roles, restarts, progress."""
        return jobs.status_of(self._asked(self._now))

    def events(self) -> list[Json]:
        """The timeline: Events about the job and, while it lives, PrimeMaster's notes, by time."""

        async def news(kube: Kube) -> list[Json]:
            return await Timeline().news(kube, await self._now(kube))

        return self._asked(news)

    def wait(self, timeout: float | None = None) -> Json:
        """The final status.

        Args:
            timeout: seconds.

        Raises:
            DeadlineError: it was not over in time.
            NotFoundError: it was deleted.
        """
        return jobs.status_of(self._asked(lambda kube: jobs.wait(kube, self._body, timeout)))

    def _write_logs(self, to: TextIO, *, follow: bool, **which: Unpack[Which]) -> None:
        async def write(kube: Kube) -> None:
            job = await self._now(kube)
            if not follow:
                to.writelines(f"{line}\n" for line in await logs.read(kube, job, **which))
                return
            async with aclosing(logs.follow(kube, job, **which)) as lines:
                async for line in lines:
                    to.write(f"{line}\n")
                    to.flush()

        self._asked(write)

    def restart(self, target: str = "job") -> None:
        """Restart the job, a role ("rollout") or a rank ("rollout/2"); returns when the operator has taken it."""
        self._order("restart", target)

    def scale(self, role: str, ranks: int) -> None:
        """Have an Elastic role get so many ranks, within its bounds; returns when the DLJob says so.

        Raises:
            NotFoundError: the job has ended, or has no such role.
            UsageError: the role cannot have so many.
        """

        async def give(kube: Kube) -> None:
            await scaling.scale(kube, await self._now(kube), role, ranks)

        self._asked(give)

    def stop(self) -> None:
        """End the job; returns when the operator has taken the order."""
        self._order("stop", "job")

    def suspend(self, *, wait: bool = False) -> None:
        """Give the job's machines back: what is in memory is saved, and nothing of it is left but the DLJob.

        Args:
            wait: return when nothing of it is left.
        """

        async def give(kube: Kube) -> None:
            made = await suspension.suspend(kube, await self._now(kube), on=True)
            if wait:
                await suspension.halted(kube, made)

        self._asked(give)

    def resume(self, *, wait: bool = False) -> None:
        """Let a suspended job go on, from its last checkpoint and with its spec as it is now.

        Args:
            wait: return when it runs, or has ended.
        """

        async def give(kube: Kube) -> None:
            made = await suspension.suspend(kube, await self._now(kube), on=False)
            if wait:
                await suspension.runs(kube, made)

        self._asked(give)

    def _order(self, kind: orders.Kind, target: str) -> None:
        async def give(kube: Kube) -> None:
            await orders.order(kube, await self._now(kube), kind, target)

        self._asked(give)

    async def _now(self, kube: Kube) -> Json:
        return await jobs.find(kube, self.name, self.namespace)

    def _asked(self, question: Callable[[Kube], Awaitable[T]]) -> T:
        return ask(question, self._context)


def submit_job(
    manifest: DLJobManifest,
    *,
    folder: Path,
    upload: bool | None = None,
    namespace: str | None = None,
    context: str | None = None,
) -> KubernetesJob:
    """Make a DLJob on Kubernetes, with the code of `folder`.

    Args:
        manifest: the job.
        folder: its code.
        upload: whether to send it; None: unless the spec says where the code is, and it is there.
        namespace: where it goes; left out: as the manifest says, else the current one.
        context: of the kubeconfig; left out: the current one, or the cluster that this process runs in.

    Raises:
        SpecError: the server refused the spec.
        UsageError: a job of that name is there; the code is too large; the Kubernetes client is not installed.
        UnreachableError: the cluster is not reached, or refuses.
    """

    async def make(kube: Kube) -> Json:
        place = submit.target_namespace(manifest, namespace, kube.namespace)
        package, _ = await submit.code_for(kube, manifest, place, folder, upload=upload)
        return (await submit.submit(kube, manifest, place, package)).body

    return KubernetesJob(ask(make, context), context)
