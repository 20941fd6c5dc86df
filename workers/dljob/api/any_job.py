"""What a job that was submitted has in common, wherever it runs."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import Any, TextIO, TypedDict, Unpack

from dljob.errors import ExitCode


class Which(TypedDict):
    """Whose output, and how much of it."""

    role: str | None
    rank: int | None
    tail: int | None


class AnyJob(ABC):
    """A job, on a Ray or on Kubernetes."""

    @abstractmethod
    def wait(self, timeout: float | None = None) -> dict[str, Any]:
        """The final status; DeadlineError when it was not over within `timeout` seconds."""

    def wait_code(self) -> int:
        """Wait for the end: 0 for success, 1 for failure."""
        return int(ExitCode.OK if self.wait()["phase"] == "Succeeded" else ExitCode.JOB_FAILED)

    def logs(
        self,
        *,
        role: str | None = None,
        rank: int | None = None,
        tail: int | None = None,
        follow: bool = False,
        out: TextIO | None = None,
    ) -> None:
        """Write the ranks' output to `out` (sys.stdout), each line after "[role/rank] ".

        Args:
            role: only of this role.
            rank: only of this rank.
            tail: only the last so many lines of each rank.
            follow: go on until the job is over.
            out: where to write.

        Raises:
            NotFoundError: no such output, and not following.
            UnreachableError: the job's head on Kubernetes cannot be asked, and not following.
        """
        self._write_logs(sys.stdout if out is None else out, follow=follow, role=role, rank=rank, tail=tail)

    @abstractmethod
    def _write_logs(self, to: TextIO, *, follow: bool, **which: Unpack[Which]) -> None:
        """As `logs`."""
