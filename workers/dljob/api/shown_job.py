"""Protocol and data of a job as the `dljob` command shows it, on a Ray and on Kubernetes.

Each place of jobs (Ray, Kubernetes) fills the data classes, and the command draws them.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from dljob.api.any_job import AnyJob
from dljob.errors import JobFailedError, JobStoppedError

if TYPE_CHECKING:
    from dljob.api.views import JobEvent, JobStatus

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobSummary:
    """One job in a list."""

    name: str
    uid: str
    phase: str
    ready: str
    """Ready and succeeded ranks out of all: 7/9."""
    restarts: int
    progress: Mapping[str, Any]
    """Its step and, where a list tells how long that has stood still, the step's time."""
    started: str
    """RFC 3339, or "-"."""
    data: Mapping[str, Any]
    """The whole status, for programs."""
    listed: Mapping[str, Any]
    """The fields of the job in a list of all jobs, for programs."""
    namespace: str = ""
    """Empty for a job with a folder here."""
    host: str = ""
    """The host on which it may run, which cannot be seen from here; else empty."""

    @property
    def shown_phase(self) -> str:
        """The phase for people, with the host where that is another one."""
        return _on_host(self.phase, self.host)


@dataclass(frozen=True, slots=True)
class Overview:
    """One job in detail."""

    title: str
    """Name and short uid, on Kubernetes with the namespace."""
    phase: str
    status: Mapping[str, Any]
    """The status in the shape of a job on a Ray; its metrics are numbers or texts."""
    data: Mapping[str, Any]
    """The same for programs."""
    folder: str = ""
    unseen: str = ""
    """Why there is no status at all; empty when there is one."""
    host: str = ""
    """The host on which it may run, which cannot be seen from here; else empty."""

    @property
    def shown_phase(self) -> str:
        """The phase for people, with the host where that is another one."""
        return _on_host(self.phase, self.host)


def _on_host(phase: str, host: str) -> str:
    return f"{phase} on {host}" if host else phase


@dataclass(frozen=True, slots=True)
class JobAccounts:
    """A job whose status has a ledger, and its spec, by which its devices are counted."""

    overview: Overview
    spec: Mapping[str, Any]
    """Empty when unknown."""


@dataclass(frozen=True, slots=True)
class Page:
    """The page of `dljob describe`."""

    overview: Overview
    facts: Sequence[str]
    spec: Mapping[str, Any]
    """Empty when unknown."""
    events: Sequence[JobEvent]
    event_remarks: Sequence[str]
    """Why there are no events, or not all of them."""
    more_events: str
    """Command that shows all events."""
    logs: Sequence[str]
    """Places of the logs, and commands that show them."""
    pods: Sequence[Row] = ()
    """Node, name, kind and phase of each pod."""
    pods_remarks: Sequence[str] = ()
    """Why no pods are shown."""
    dashboard: Sequence[str] = ()
    """Commands that reach Ray's dashboard."""


class JobListing(ABC):
    """All jobs of a place."""

    namespaced: bool = False
    """Whether the jobs are of several namespaces."""

    @property
    @abstractmethod
    def empty(self) -> str:
        """Message for no jobs."""

    @abstractmethod
    def all(self) -> list[JobSummary]:
        """Return the jobs, also ended ones, oldest first."""

    @abstractmethod
    def watch(self, show: Callable[[Sequence[JobSummary]], None]) -> None:
        """Show jobs whenever some may have changed, without end."""


class ShownJob(AnyJob):
    """Handle with one connection for a `with` block, words for messages, and remarks for the user.

    Each place of jobs implements it once; a command finds the job by `JobTarget.job` and knows no place.
    """

    @abstractmethod
    def __enter__(self) -> Self:
        """Use one connection for all calls in the block; it is opened by the first of them."""

    @abstractmethod
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the connection."""

    @property
    @abstractmethod
    def place(self) -> str:
        """The job in a message: its name, on Kubernetes with its namespace."""

    @property
    @abstractmethod
    def flags(self) -> str:
        """Flags by which a later command finds the job, after a blank; empty for a job with a folder here."""

    @property
    @abstractmethod
    def remains(self) -> str:
        """Remains of a stopped job, for a message: its folder, or the command for its logs."""

    @property
    @abstractmethod
    def started(self) -> float:
        """Time from which a timeline counts, in unix seconds: the job's submission."""

    @abstractmethod
    def tell_events(self, show: Callable[[JobEvent], None], *, follow: bool, tail: int | None = None) -> None:
        """Show the entries of the timeline, or the last `tail` of them; with `follow`, continue until its end."""

    @property
    def result(self) -> object:
        """The value that rank 0 of the first driver role returned; waits for the end.

        Raises:
            JobFailedError: the job failed; the message is the first cause.
            JobStoppedError: the job was stopped.
            NotFoundError: the job was deleted, or its head on Kubernetes, which held the result, is gone.
        """
        status = self.wait()
        if status["phase"] != "Succeeded":
            stopped = status["phase"] == "Stopped"
            # A stop was wanted by somebody, a failure was not: callers catch them apart (ADR 60).
            how, kind = ("was stopped", JobStoppedError) if stopped else ("failed", JobFailedError)
            reason = f"{status.get('reason')}: {status.get('message')}"
            raise kind(
                f"job {self.name} {how}: {reason}", hint=f"see dljob status {self.name}{self.flags}; {self.remains}"
            )
        encoded_result = self._result(status)
        return json.loads(encoded_result) if encoded_result else None

    @abstractmethod
    def _result(self, status: JobStatus) -> str | None:
        """Return the result of a job that succeeded, as JSON; None when it returned nothing."""

    @abstractmethod
    def overview(self) -> Overview:
        """Return the job in detail."""

    @abstractmethod
    def ranks(self) -> Overview:
        """Return the job in detail, with each rank where PrimeMaster tells them."""

    @abstractmethod
    def evidence(self) -> Overview:
        """Return the job in detail, with the evidence of its failures as far as it can be had."""

    @abstractmethod
    def accounts(self) -> JobAccounts:
        """Return where the time of the job's ranks went.

        Raises:
            NotFoundError: nothing of the job has run, or its ledger was not kept.
        """

    @abstractmethod
    def page(self) -> Page:
        """Return the job in detail, with its spec, nodes and last events."""

    @abstractmethod
    def watch(self, show: Callable[[Sequence[JobSummary]], None]) -> None:
        """Show the job at every change, or more often, until it has ended."""
