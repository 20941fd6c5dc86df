"""Common handle of a submitted job, with the same methods on a Ray and on Kubernetes."""

from __future__ import annotations

import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, TextIO, TypedDict, TypeVar, Unpack, cast

from dljob.api.logs import Since
from dljob.errors import UsageError, exit_code

if TYPE_CHECKING:
    from dljob.api.views import JobEvent, JobStatus, Suspension

log = logging.getLogger(__package__)
T = TypeVar("T")


class LogSelection(TypedDict):
    """Ranks whose output is shown, and how much of it."""

    role: str | None
    rank: int | None
    tail: int | None
    since: Since | None


class AnyJob(ABC):
    """A job on a Ray or on Kubernetes. Its methods block until they are answered; `aio` has them as awaitables."""

    say: Callable[[str], None] | None = None
    """Receives remarks for the user, one line each; None: they go to the logger `dljob.api`."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The job's name."""

    @property
    @abstractmethod
    def uid(self) -> str:
        """Unique id, which tells the job from others of its name."""

    @property
    def aio(self) -> AsyncJob:
        """The same methods for asyncio: `await handle.aio.wait()`."""
        return AsyncJob(self)

    @abstractmethod
    def status(self) -> JobStatus:
        """Return the present status: phase, roles, restarts, progress, faults."""

    @abstractmethod
    def events(self, after: int = 0) -> list[JobEvent]:
        """Return the timeline; with `after`, only PrimeMaster's notes with a greater number."""

    @abstractmethod
    def wait(self, timeout: float | None = None) -> JobStatus:
        """Wait for the end and return the final status; DeadlineError when it takes longer than `timeout` seconds."""

    @property
    @abstractmethod
    def result(self) -> object:
        """The value that rank 0 of the first driver role returned; waits for the end."""

    @abstractmethod
    def restart(self, target: str = "job") -> None:
        """Restart the job, a role ("rollout") or a rank ("rollout/2")."""

    @abstractmethod
    def scale(self, role: str, ranks: int) -> None:
        """Resize a role within minReplicas and maxReplicas, as far as there is capacity."""

    @abstractmethod
    def stop(self, *, wait: bool = False) -> None:
        """End the job; with `wait`, return only when it has ended."""

    @abstractmethod
    def suspend(self, *, wait: bool = False) -> Suspension:
        """Release the job's machines for a time; UsageError on a Ray, since only Kubernetes can."""

    @abstractmethod
    def resume(self, *, wait: bool = False) -> Suspension:
        """Resume a suspended job."""

    @abstractmethod
    def stacks(self, target: str = "job") -> dict[str, str]:
        """Return the stacks of all threads of each rank ("rollout/2"), as text, without stopping the ranks."""

    def wait_code(self) -> int:
        """Wait for the end and return an exit code: 0 for success, 1 for failure, 6 when a user stopped the job."""
        return int(exit_code(self.wait()["phase"]))

    def logs(
        self,
        *,
        role: str | None = None,
        rank: int | None = None,
        tail: int | None = None,
        since: float | datetime | None = None,
        follow: bool = False,
        master: bool = False,
        out: TextIO | None = None,
    ) -> None:
        """Write the ranks' output to `out` (sys.stdout), each line with the prefix "[role/rank] ".

        Args:
            role: only this role.
            rank: only this rank.
            tail: only the last `tail` lines of each rank.
            since: only output since that time: unix seconds, or a datetime (of this machine's zone if it names none). A
                log without known times is shown whole, and a warning on the logger `dljob.api` says so.
            follow: continue until the job is over.
            master: PrimeMaster's decisions and reasons instead of the ranks' output.
            out: stream to write to.

        Raises:
            NotFoundError: there is no such output, without `follow`.
            UnreachableError: the job's head on Kubernetes does not answer, without `follow`.
            UsageError: `master` beside a role or a rank, or of an image whose dljob is too old for it.
        """
        # Looked up at each call: a notebook or a test may have replaced `sys.stdout` since the import.
        to = sys.stdout if out is None else out
        at = since.timestamp() if isinstance(since, datetime) else since
        if not master:
            # Only ranks' logs may lack times, of which `Since` then warns; PrimeMaster's entries carry theirs.
            begin = None if at is None else Since(at, partial(self._remark, level=logging.WARNING))
            self._write_logs(to, follow=follow, role=role, rank=rank, tail=tail, since=begin)
            return
        if (role, rank) != (None, None):
            raise UsageError("master=True excludes a role or rank", hint="PrimeMaster belongs to the whole job")
        self._write_master_log(to, follow=follow, tail=tail, since=at)

    @abstractmethod
    def _write_logs(self, to: TextIO, *, follow: bool, **which: Unpack[LogSelection]) -> None:
        """Write the output for `logs`."""

    @abstractmethod
    def _write_master_log(self, to: TextIO, *, follow: bool, tail: int | None, since: float | None) -> None:
        """Write the log of PrimeMaster for `logs(master=True)`."""

    def _remark(self, text: str, level: int = logging.INFO) -> None:
        """Pass a remark (no error) to `say`, or to the logger `dljob.api`."""
        if self.say is None:
            log.log(level, "%s", text)
        else:
            self.say(text)


class AsyncJob:
    """Awaitable versions of a handle's methods.

    Cancelling a call does not undo it: the thread that makes it goes on, and its answer is dropped.
    """

    def __init__(self, job: AnyJob) -> None:
        self._job = job

    async def status(self) -> JobStatus:
        """Await `AnyJob.status`."""
        return await _in_thread(self._job.status)

    async def events(self, after: int = 0) -> list[JobEvent]:
        """Await `AnyJob.events`."""
        return await _in_thread(lambda: self._job.events(after))

    async def wait(self, timeout: float | None = None) -> JobStatus:  # noqa: ASYNC109 - as its blocking twin
        """Await `AnyJob.wait`."""
        return await _in_thread(lambda: self._job.wait(timeout))

    @property
    def result(self) -> Awaitable[object]:
        """Awaitable of `AnyJob.result`: `await handle.aio.result`."""
        return _in_thread(lambda: self._job.result)

    async def wait_code(self) -> int:
        """Await `AnyJob.wait_code`."""
        return await _in_thread(self._job.wait_code)

    async def restart(self, target: str = "job") -> None:
        """Await `AnyJob.restart`."""
        await _in_thread(lambda: self._job.restart(target))

    async def scale(self, role: str, ranks: int) -> None:
        """Await `AnyJob.scale`."""
        await _in_thread(lambda: self._job.scale(role, ranks))

    async def stop(self, *, wait: bool = False) -> None:
        """Await `AnyJob.stop`."""
        await _in_thread(lambda: self._job.stop(wait=wait))

    async def suspend(self, *, wait: bool = False) -> Suspension:
        """Await `AnyJob.suspend`."""
        return await _in_thread(lambda: self._job.suspend(wait=wait))

    async def resume(self, *, wait: bool = False) -> Suspension:
        """Await `AnyJob.resume`."""
        return await _in_thread(lambda: self._job.resume(wait=wait))

    async def stacks(self, target: str = "job") -> dict[str, str]:
        """Await `AnyJob.stacks`."""
        return await _in_thread(lambda: self._job.stacks(target))

    async def logs(
        self,
        *,
        role: str | None = None,
        rank: int | None = None,
        tail: int | None = None,
        since: float | datetime | None = None,
        follow: bool = False,
        master: bool = False,
        out: TextIO | None = None,
    ) -> None:
        """Await `AnyJob.logs`; after a cancellation nothing more is written."""
        to = _Outlet(sys.stdout if out is None else out)
        try:
            out = cast("TextIO", to)
            await _in_thread(
                lambda: self._job.logs(
                    role=role, rank=rank, tail=tail, since=since, follow=follow, master=master, out=out
                )
            )
        finally:
            # The thread cannot be cancelled; its next write raises and ends it.
            to.closed = True


async def _in_thread(call: Callable[[], T]) -> T:
    # Imported here: it needs asyncio, which a command about a job of this machine does not.
    from dljob.runtime.process.handover import in_thread

    return await in_thread(call)


class _Outlet:
    """Text stream that can be closed. A later write raises: so the thread of a cancelled `AsyncJob.logs` ends."""

    def __init__(self, to: TextIO) -> None:
        self._to = to
        self.closed = False

    def write(self, text: str) -> int:
        """Write a text."""
        self._check()
        return self._to.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each line."""
        # By `write`, so that a cancellation takes effect between two lines.
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush the stream."""
        self._check()
        self._to.flush()

    def _check(self) -> None:
        if self.closed:
            raise ValueError("the call that writes here was cancelled")
