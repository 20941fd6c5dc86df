"""Protocol of a job as the `dljob` command shows it, on a Ray and on Kubernetes: a handle, and what people read."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Self

from dljob.api.any_job import AnyJob

log = logging.getLogger(__package__)


class ShownJob(AnyJob):
    """Handle with one connection for a `with` block, words for messages, and remarks for the user.

    Each place of jobs implements it once; a command finds the job by `JobTarget.job` and knows no place.
    """

    say: Callable[[str], None] | None = None
    """Receives remarks for the user, one line each; None: they go to the logger `dljob.api`."""

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
        """What stays of a stopped job, for a message: its folder, or the command for its logs."""

    def _remark(self, text: str, level: int = logging.INFO) -> None:
        """Tell the user something that is no error."""
        if self.say is None:
            log.log(level, "%s", text)
        else:
            self.say(text)
