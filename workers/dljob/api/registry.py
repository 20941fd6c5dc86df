"""The jobs of this user, as files: one folder each under DLJOB_HOME, found again by name from any terminal."""

from __future__ import annotations

import errno
import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dljob.api.values import suggestion
from dljob.errors import NotFoundError, UnreachableError

FINAL = ("Succeeded", "Failed")
_ENTRY = "job.json"
_UID8 = 8


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What job.json says of a job."""

    name: str
    uid: str
    dir: str
    address: str = ""
    """host:port of Ray's GCS."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables by which a process of this user reaches that Ray."""
    runner: int = 0
    """The pid of `dljob run`, with which an embedded Ray lives and dies; 0 on a Ray that was there before."""
    runner_started: int = 0
    """Its start, in clock ticks since the boot: another process of that pid is not it."""
    started: float = 0.0
    """Unix seconds."""

    @property
    def folder(self) -> Path:
        """Journal, logs, status, and what user code keeps there."""
        return Path(self.dir)

    def status(self) -> dict[str, Any]:
        """The status that the folder holds: the final one, or the last that was written."""
        with suppress(OSError, ValueError):
            return dict(json.loads((self.folder / "status.json").read_text(encoding="utf-8")))
        return {}

    @property
    def over(self) -> bool:
        """Whether it ended, and said so."""
        return self.status().get("phase") in FINAL

    @property
    def stale(self) -> bool:
        """Whether its runner is gone without a last word: nothing of the job can be alive."""
        return not self.over and self.runner != 0 and start_of(self.runner) != self.runner_started


def start_of(pid: int) -> int:
    """When a process started, in clock ticks since the boot; 0 when there is no such process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def home() -> Path:
    """DLJOB_HOME, else the user's state folder of dljob."""
    said = os.environ.get("DLJOB_HOME")
    if said:
        return Path(said).expanduser().absolute()
    from platformdirs import user_state_path

    return user_state_path("dljob")


def check_home() -> None:
    """Make the folder of all jobs.

    Raises:
        UnreachableError: it cannot be made or written.
    """
    folder = home() / "jobs"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise _refused(error) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _refused(PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def _refused(error: OSError) -> UnreachableError:
    return UnreachableError(
        f"cannot keep jobs in {home()}: {error.strerror or error}",
        hint="set DLJOB_HOME to a folder that you may write to",
    )


def register(record: JobRecord) -> JobRecord:
    """Make the job's folder, readable by this user only, and put its entry there.

    Raises:
        UnreachableError: the folder cannot be made or written.
    """
    record = replace(record, started=record.started or time.time())
    try:
        record.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = record.folder / f".{_ENTRY}.{os.getpid()}"
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            json.dump({**asdict(record), "environment": dict(record.environment)}, out, indent=1)
        part.replace(record.folder / _ENTRY)
    except OSError as error:
        raise _refused(error) from error
    return record


def folder_of(name: str, uid: str) -> Path:
    """Where a job lives."""
    return home() / "jobs" / f"{name}-{uid[:_UID8]}"


def records() -> list[JobRecord]:
    """All jobs of this user, oldest first; folders that hold no entry are not jobs."""
    found: list[JobRecord] = []
    for entry in (home() / "jobs").glob(f"*/{_ENTRY}"):
        with suppress(OSError, ValueError, TypeError):
            data: dict[str, Any] = json.loads(entry.read_text(encoding="utf-8"))
            data["environment"] = tuple(data["environment"].items())
            found.append(JobRecord(**data))
    return sorted(found, key=lambda r: r.started)


def find(job: str) -> JobRecord:
    """A job by name, uid or the uid's first 8 digits; of several with one name one that lives, else the latest.

    Raises:
        NotFoundError: there is none.
    """
    everything = records()
    named = [r for r in everything if job in (r.name, r.uid, r.uid[:_UID8], r.folder.name)]
    if not named:
        names = {r.name for r in everything}
        hint = suggestion(job, names) if names else f"there is no job in {home()}; is DLJOB_HOME another one?"
        raise NotFoundError(f"no job {job!r}", hint=hint)
    living = [r for r in named if not r.over and not r.stale]
    return (living or named)[-1]
