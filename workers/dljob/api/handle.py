"""A job that was submitted: ask it, order it about, wait for it; the same for one that has ended."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, Unpack

from dljob.api import logs, registry
from dljob.api.any_job import AnyJob, Which
from dljob.errors import JobFailedError, UsageError
from dljob.telemetry import reasons

if TYPE_CHECKING:
    from dljob.runtime.launch import JobConnection
    from dljob.spec.model import DLJobManifest


class JobHandle(AnyJob):
    """A job on a Ray that this process has joined."""

    def __init__(self, record: registry.JobRecord, connection: JobConnection) -> None:
        self.record = record
        self.connection = connection

    @property
    def name(self) -> str:
        """The job's name."""
        return self.record.name

    @property
    def uid(self) -> str:
        """32 hex digits."""
        return self.record.uid

    @property
    def dir(self) -> Path:
        """Journal, logs, status, and what user code keeps there."""
        return self.record.folder

    def status(self) -> dict[str, Any]:
        """The status now: phase, roles, ranks, restarts, progress, result."""
        return self.connection.status()

    def events(self, after: int = 0) -> list[dict[str, Any]]:
        """The timeline: notes with a number greater than `after`."""
        return self.connection.notes(after)

    def wait(self, timeout: float | None = None) -> dict[str, Any]:
        """The final status.

        Args:
            timeout: seconds.

        Raises:
            DeadlineError: it was not over in time.
        """
        return self.connection.wait(timeout)

    @property
    def result(self) -> object:
        """What rank 0 of the first driver role returned; waits for the end.

        Raises:
            JobFailedError: the job failed; the message is its first cause.
        """
        status = self.wait()
        if status["phase"] != "Succeeded":
            raise JobFailedError(
                f"job {self.name} failed: {status.get('reason')}: {status.get('message')}", hint=f"see {self.dir}"
            )
        return json.loads(status["result"]) if status.get("result") else None

    def _write_logs(self, to: TextIO, *, follow: bool, **which: Unpack[Which]) -> None:
        lines = logs.follow(self.dir, self._over, **which) if follow else logs.read(self.dir, **which)
        for line in lines:
            to.write(f"{line}\n")
            if follow:
                to.flush()

    def restart(self, target: str = "job") -> None:
        """Restart the job, a role ("rollout") or a rank ("rollout/2")."""
        self.connection.command("restart", target, by=_me())

    def scale(self, role: str, ranks: int) -> None:
        """Have an Elastic role get so many ranks, within minReplicas and maxReplicas, as far as there is room.

        Raises:
            UsageError: PrimeMaster refused it: there is no such role, or it cannot have so many.
        """
        before = max((note["seq"] for note in self.events()), default=0)
        self.connection.command("scale", f"{role}={ranks}", by=_me())
        for note in self.events(before):
            if (note["reason"], note["target"]) == (reasons.COMMAND_REFUSED, role):
                raise UsageError(note["message"])

    def stop(self) -> None:
        """End the job; what it had journaled and saved stays in its folder."""
        self.connection.command("stop", "job", by=_me())

    def _over(self) -> bool:
        return self.connection.status().get("phase") in registry.FINAL


def submit(
    manifest: DLJobManifest,
    *,
    address: str | None = None,
    code_dir: Path,
    backend: str | None = None,
    record: Callable[[registry.JobRecord], registry.JobRecord] = registry.register,
    environment: tuple[tuple[str, str], ...] = (),
    runner: int = 0,
) -> JobHandle:
    """Start a job on a Ray; see `DLJob.submit`.

    Args:
        manifest: the job.
        address: host:port of Ray's GCS; left out: RAY_ADDRESS, or the Ray that this process has joined.
        code_dir: first on the workers' path, and their working directory.
        backend: name of the backend, over that of the spec.
        record: puts the job where other terminals find it.
        environment: what other processes need to reach this Ray.
        runner: pid of the process with which that Ray ends; 0 for one that was there before.

    Raises:
        UnreachableError: no Ray, or no right to write to DLJOB_HOME.
        UsageError: the working directory is not there; the job is suspended.
    """
    from dljob.runtime.connect import connect
    from dljob.runtime.launch import launch, new_uid

    check_wanted(manifest)
    check_code_dir(code_dir)
    reached = connect(address, code_dir)
    uid, name = new_uid(), manifest.metadata.name
    entry = record(
        registry.JobRecord(
            name=name,
            uid=uid,
            dir=os.fspath(registry.folder_of(name, uid)),
            address=reached,
            environment=environment or _own_environment(),
            runner=runner,
            runner_started=registry.start_of(runner) if runner else 0,
        )
    )
    return JobHandle(entry, launch(manifest, job_dir=entry.folder, code_dir=code_dir, uid=uid, backend=backend))


def check_wanted(manifest: DLJobManifest) -> None:
    """Whether the job is to run: on a Ray nobody would come back to one that is to begin suspended.

    Raises:
        UsageError: it is not.
    """
    if manifest.spec.suspend:
        raise UsageError(
            f"job {manifest.metadata.name} is suspended (spec.suspend), and only Kubernetes holds a job back",
            hint="leave spec.suspend out to run it here",
        )


def check_code_dir(code_dir: Path) -> None:
    """Whether ranks can have it as their working directory.

    Raises:
        UsageError: it is not there.
    """
    if not code_dir.is_dir():
        raise UsageError(f"the working directory {code_dir} is not there", hint="see spec.code.workingDir")


def _own_environment() -> tuple[tuple[str, str], ...]:
    """How this process itself reached its Ray; the token's file, never the token."""
    names = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH")
    return tuple((name, os.environ[name]) for name in names if name in os.environ)


def _me() -> str:
    """Who gives an order, for the timeline."""
    return f"pid {os.getpid()}"
