"""Submission of DLRover's jobs: `job.submit`, `driver.main`, and `PrimeMaster.create`."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dljob.compat.dlrover_api.config import read_dict_from_envs
from dljob.compat.dlrover_api.draft import manifest_of, notes
from dljob.compat.dlrover_api.models import (
    JOB_OPTIONS_ENV_PREFIX,
    DLConfig,
    DLWorkloadEnv,
    JobConfig,
    MasterStage,
    MasterStatus,
)
from dljob.compat.dlrover_api.notes import tell_once
from dljob.compat.dlrover_api.wrong_job import WrongJobError
from dljob.errors import UsageError

if TYPE_CHECKING:
    from dljob.api.handle import JobHandle

STAGES = {
    "Pending": MasterStage.INIT,
    "Starting": MasterStage.READY,
    "Succeeded": MasterStage.STOPPED,
    "Failed": MasterStage.STOPPED,
    "Stopped": MasterStage.STOPPED,
    "Stopping": MasterStage.STOPPING,
}
"""DLRover's stage by phase; RUNNING in all others."""


def submit_job(job: DLConfig, options: dict[str, Any], *, blocking: bool) -> int:
    """Run a job with the options of its submission, over those of the environment; return its exit code."""
    given_options: dict[str, Any] = {**read_dict_from_envs(JOB_OPTIONS_ENV_PREFIX), **options}
    name = given_options.pop("job_name", None) or f"dlrover-{uuid.uuid4().hex[:6]}"
    return submit(JobConfig(job_name=name, dl_config=job, **given_options), blocking=blocking)


def submit(config: JobConfig, blocking: bool = True) -> int:  # noqa: FBT001, FBT002 - DLRover's signature
    """Run a job, and return its exit code; with blocking=False return 0 at once."""
    master = PrimeMaster.create(config)
    if not blocking:
        master.start()
        return 0
    return _run(config, blocking=True)


def main(args: Sequence[str] | None = None, blocking: bool = True) -> int:  # noqa: FBT001, FBT002
    """Run the job of one argument: a JobConfig as JSON.

    Raises:
        WrongJobError: there is no argument.
    """
    words = sys.argv[1:] if args is None else args
    if not words:
        raise WrongJobError("driver.main: an argument is required, a JobConfig as JSON")
    return submit(config=JobConfig.model_validate_json(words[0]), blocking=blocking)


class PrimeMaster:
    """A job that was created from a JobConfig: `start()`, `wait()`, `get_status()`, `stop()`."""

    def __init__(self, config: JobConfig) -> None:
        self._config = config
        self._handle: JobHandle | None = None

    @classmethod
    def create(cls, config: JobConfig) -> PrimeMaster:
        """Check a job, and return it; `start` runs it."""
        manifest_of(config)
        for name, reason in notes(config):
            tell_once(name, reason)
        return cls(config)

    def start(self) -> None:
        """Start the job."""
        if self._handle is None:
            self._handle = _run(self._config, blocking=False)

    def wait(self) -> None:
        """Wait for the job's end."""
        self._started().wait_code()

    def get_status(self) -> MasterStatus:
        """Return the job's stage and exit code."""
        if self._handle is None:
            return MasterStatus(MasterStage.INIT)
        return master_status(self._handle.status())

    def stop(self) -> None:
        """Stop the job."""
        self._started().stop()

    def shutdown(self) -> None:
        """Stop the job."""
        self.stop()

    def _started(self) -> JobHandle:
        if self._handle is None:
            raise UsageError("the job is created, but not started", hint="call start() first")
        return self._handle


def master_status(status: Any) -> MasterStatus:
    """Return a job's status in DLRover's terms."""
    phase = status["phase"]
    restarts: dict[str, Any] = status.get("restarts") or {}
    failed = phase in ("Failed", "Stopped")
    return MasterStatus(STAGES.get(phase, MasterStage.RUNNING), int(failed), int(restarts.get("job", 0)))


def _run(config: JobConfig, *, blocking: bool) -> Any:
    """Submit to a Ray that there is, or to one of its own; the code's folder is the current one, as DLRover's."""
    from dljob.api.place import submit_here

    folder = Path(config.dl_config.global_envs.get(DLWorkloadEnv.WORKING_DIR, os.fspath(Path.cwd())))
    manifest = manifest_of(config)
    return submit_here(manifest, address=None, code_dir=folder, blocking=blocking, detach=not blocking, replace=False)
