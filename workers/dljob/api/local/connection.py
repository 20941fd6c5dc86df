"""Connection to a job of this user that another process started: for each question, or for those of a block."""

from __future__ import annotations

import shlex
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from dljob.api import registry
from dljob.api.local.final_status import lost_end, recorded_end, with_end
from dljob.api.reach import reach, why_unreached
from dljob.errors import NotFoundError, UnreachableError
from dljob.runtime.control_socket.client import LocalConnection, SocketLine
from dljob.runtime.journal.timeline import STATUS

if TYPE_CHECKING:
    from dljob.master.state.views import Clue


AGAIN_S = 1.0
"""Interval, in seconds, at which the journal of a job on another host is read; its status is written as often."""


class RecordConnection:
    """Connection to a job with a folder on this machine: by its control socket, or by its Ray when that is elsewhere.

    An ended job answers from its folder and takes no commands. Within a `with` block all questions share what the first
    one opened: on a Ray elsewhere that is a process of its own, which takes seconds to join it.
    """

    def __init__(self, record: registry.RegistryEntry) -> None:
        self._record = record
        self._block: ExitStack | None = None
        self._held: LocalConnection | None = None

    def __enter__(self) -> Self:
        """Begin to share a connection."""
        self._block = ExitStack()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the shared connection."""
        # Forgotten first: should closing fail, no later question uses a closed connection.
        block, self._block, self._held = self._block, None, None
        if block is not None:
            block.close()

    @property
    def name(self) -> str:
        """The job's name."""
        return self._record.name

    def status(self, after_version: int = 0, timeout_s: float = 0.0) -> dict[str, Any]:
        """Return the status; with a timeout, wait for a greater version. A job whose runner is gone has phase Lost."""
        # None of these answers: the question would only wait for its time limit.
        if self._record.stale or self._record.elsewhere or self._record.is_starting:
            return filed(self._record)
        with self.reached() as job:
            return job.status(after_version, timeout_s)

    def notes(self, after_seq: int = 0, timeout_s: float = 0.0) -> list[dict[str, Any]]:
        """Return the notes with a greater number; with a timeout, wait for some."""
        if self._record.stale or self._record.elsewhere:
            from dljob.runtime.journal.job_record import read_notes

            # Nothing will answer for a job whose runner is gone, but its journal is complete.
            notes_so_far = read_notes(self._record.folder, after_seq)
            if notes_so_far or not timeout_s or self._record.stale:
                return notes_so_far
            # Another host writes it, and tells nobody here.
            time.sleep(min(timeout_s, AGAIN_S))
            return read_notes(self._record.folder, after_seq)
        with self.reached() as job:
            return job.notes(after_seq, timeout_s)

    def command(self, kind: str, target: str = "job", *, by: str = "", id: str = "") -> None:  # noqa: A002
        """Send a command, which takes effect once.

        Raises:
            NotFoundError: the job has ended, or its runner is gone.
        """
        refuse_dead(self._record)
        with self.reached() as job:
            job.command(kind, target, by=by, id=id)

    def learned(self, target: str, incarnation: int, clue: Clue) -> None:
        """Report evidence about the end of a rank's process."""
        with self.reached() as job:
            job.learned(target, incarnation, clue)

    def stacks(self, target: str = "job") -> dict[str, str]:
        """Return the stacks of each rank's process, as text."""
        with self.reached() as job:
            return job.stacks(target)

    def pids(self) -> dict[str, int]:
        """Return the pids of the processes `master` and `<role>/<rank>`."""
        with self.reached() as job:
            return job.pids()

    def wait(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Wait for the end and return the final status."""
        with self.reached() as job:
            return job.wait(timeout_s)

    @contextmanager
    def reached(self) -> Generator[LocalConnection]:
        """Open a connection for several questions.

        Raises:
            UnreachableError: as from `reach`; or the job is still being started.
        """
        record = self._record
        refuse_starting(record)
        if record.over:  # the folder has all answers, and the Ray may be gone
            yield LocalConnection(
                record.name, record.uid, record.folder, SocketLine(record.folder), why_gone=lambda: ""
            )
            return
        if self._block is None:
            with reach(record) as job:
                yield job
            return
        # Opened by the first question, so that a block without one costs nothing.
        if self._held is None:
            self._held = self._block.enter_context(reach(record))
        yield self._held


def refuse_dead(record: registry.RegistryEntry) -> None:
    """Refuse a job that can take no orders any more.

    Raises:
        NotFoundError: the job has ended, or its runner is gone.
        UnreachableError: the job is on another host.
    """
    if record.over or record.stale:
        end = filed(record)
        if end["phase"] == "Lost":
            hint = f"its journal and logs are in {record.dir}"
            raise NotFoundError(f"job {record.name} is lost: {end['message']}", hint=hint)
        raise NotFoundError(f"job {record.name} has ended: {end['phase']}", hint=f"see dljob status {record.uid[:8]}")
    if record.elsewhere:
        raise UnreachableError(why_unreached(record), hint=f"give the command on {record.elsewhere}")


def refuse_starting(record: registry.RegistryEntry) -> None:
    """Refuse what only a job has that has begun: events, output, a PrimeMaster.

    Raises:
        UnreachableError: the job is still being started.
    """
    if record.is_starting:
        hint = f"wait until it runs: dljob status {record.name}; or stop it: dljob stop {record.name}"
        raise UnreachableError(f"job {record.name} has not begun: {filed(record).get('message')}", hint=hint)


def filed(record: registry.RegistryEntry) -> dict[str, Any]:
    """Return the status in a job's folder; its phase is Lost when the runner is gone. `host` is another host's name."""
    if record.is_starting:
        return registry.starting_status(record)
    # No process is left to correct the last status, which may say Running for ever.
    if record.stale:
        return lost_status(record)
    host = {"host": record.elsewhere} if record.elsewhere else {}
    try:
        return {**record.read_status(), **host}
    except FileNotFoundError:
        return {"phase": "Pending", **host} if host else {}
    except (OSError, ValueError) as error:
        known = {"name": record.name, "uid": record.uid}
        if host and (end := recorded_end(record)):
            return with_end(known, end)
        damage = (isinstance(error, OSError) and error.strerror) or str(error)
        hint = f"dljob replay {shlex.quote(record.dir)} reads the journal instead"
        message = f"{record.folder / STATUS} is damaged: {damage}; {hint}"
        return {**known, "phase": "Unknown", "message": message, **host}


def lost_status(record: registry.RegistryEntry) -> dict[str, Any]:
    """Return the status of a job that ended without a final one: the last written status, with phase Lost."""
    return with_end({"name": record.name, "uid": record.uid, **record.status()}, lost_end(record))
