"""Connection to a job of this user that another process started; opened and closed for each question."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dljob.api import registry
from dljob.api.reach import reach
from dljob.errors import NotFoundError
from dljob.runtime.control_socket.client import LocalConnection, SocketLine

if TYPE_CHECKING:
    from dljob.master.state.views import Clue


class RecordConnection:
    """Connection to a job with a folder on this machine: by its control socket, or by its Ray when that is elsewhere.

    An ended job answers from its folder and takes no commands.
    """

    def __init__(self, record: registry.RegistryEntry) -> None:
        self._record = record

    @property
    def name(self) -> str:
        """The job's name."""
        return self._record.name

    def status(self, after_version: int = 0, timeout_s: float = 0.0) -> dict[str, Any]:
        """Return the status; with a timeout, wait for a greater version. A job whose runner is gone has phase Lost."""
        if self._record.stale:
            return lost(self._record)
        with self._reached() as job:
            return job.status(after_version, timeout_s)

    def notes(self, after_seq: int = 0, timeout_s: float = 0.0) -> list[dict[str, Any]]:
        """Return the notes with a greater number; with a timeout, wait for some."""
        if self._record.stale:
            from dljob.runtime.journal.job_record import read_notes

            # Nothing will answer for a job whose runner is gone, but its journal is complete.
            return read_notes(self._record.folder, after_seq)
        with self._reached() as job:
            return job.notes(after_seq, timeout_s)

    def command(self, kind: str, target: str = "job", *, by: str = "", id: str = "") -> None:  # noqa: A002
        """Send a command, which takes effect once.

        Raises:
            NotFoundError: the job has ended.
        """
        if self._record.over:
            phase = self._record.status().get("phase")
            raise NotFoundError(f"job {self.name} has ended: {phase}", hint=f"its folder: {self._record.dir}")
        with self._reached() as job:
            job.command(kind, target, by=by, id=id)

    def learned(self, target: str, incarnation: int, clue: Clue) -> None:
        """Report evidence about the end of a rank's process."""
        with self._reached() as job:
            job.learned(target, incarnation, clue)

    def stacks(self, target: str = "job") -> dict[str, str]:
        """Return the stacks of each rank's process, as text."""
        with self._reached() as job:
            return job.stacks(target)

    def pids(self) -> dict[str, int]:
        """Return the pids of the processes `master` and `<role>/<rank>`."""
        with self._reached() as job:
            return job.pids()

    def wait(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Wait for the end and return the final status."""
        with self._reached() as job:
            return job.wait(timeout_s)

    @contextmanager
    def _reached(self) -> Generator[LocalConnection]:
        record = self._record
        if record.over:  # the folder has all answers, and the Ray may be gone
            yield LocalConnection(record.name, record.uid, record.folder, SocketLine(record.folder), gone=lambda: "")
            return
        with reach(record) as job:
            yield job


def lost(record: registry.RegistryEntry) -> dict[str, Any]:
    """Return the status of a job that ended without a final one: the last written status, with phase Lost."""
    message = f"its runner, pid {record.runner}, ended without a final status"
    return {"name": record.name, "uid": record.uid, **record.status(), "phase": "Lost", "message": message}
