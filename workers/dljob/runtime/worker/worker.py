"""The base class of roles written as classes: hooks that are called in a known order, and what a worker knows.

A class need not derive from it: any class with a `run` method, and any function, is an entrypoint too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dljob.runtime.process.context import current_worker
from dljob.runtime.process.worker_context import WorkerContext

if TYPE_CHECKING:
    import torch


class Worker:
    """A rank of a role.

    Each hook is called once per process and may be `async`, in this order:
    `__init__`, `self_check`, `setup`, `on_restart(reason)` in a restarted process, `run`, `shutdown`.
    With `restartPolicy.level: InProcess` a rank whose torch group lost another one is taken out of `run`, wherever it
    is, and its process goes on with `on_restart` and `run` once the group has met again.
    Calls from other roles (`@rpc`) wait until `setup` and `on_restart` have returned.
    """

    mesh: Any = None
    """The mesh of the role: axis -> size, as in {"dp": -1, "tp": 2}; the last varies fastest, `@rpc(mesh=)` names them;
    one size may be -1: what is left. A torch DeviceMesh with names is one too. It may be set in `setup`."""

    def self_check(self) -> bool:
        """Whether this process is fit for its work; False, or an exception, ends it, and it is restarted."""
        return True

    def setup(self) -> None:
        """Build what the worker needs. An exception here ends the job: it would happen again."""

    def on_restart(self, reason: str) -> None:
        """Called after `setup` in a process that takes the place of one that ended; `reason` says why it did.

        After a restart in process it is called in those who live on as well, without `setup`: the torch group is
        another one, and what holds the old one (DDP, FSDP, groups of one's own) is to be made again here or in `run`.
        """

    def run(self) -> Any:
        """The worker's work. The default serves calls until the job stops.

        What rank 0 of the first driver role returns is the job's result: JSON of at most 8 KiB.
        """
        self.context.stopping.wait()

    def shutdown(self) -> None:
        """Called once at the end: after `run` returned, or, in another thread, when the rank is to stop."""

    @property
    def context(self) -> WorkerContext:
        """What `current_worker()` gives."""
        return current_worker()

    @property
    def config(self) -> Mapping[str, Any]:
        """The job's config with the role's own laid over it."""
        return self.context.config

    @property
    def rank(self) -> int:
        """This rank's number in its role, from 0."""
        return self.context.rank

    @property
    def local_rank(self) -> int:
        """This rank's number on its host, from 0."""
        return self.context.local_rank

    @property
    def world_size(self) -> int:
        """How many ranks the role has."""
        return self.context.world_size

    @property
    def stopping(self) -> bool:
        """Whether the rank is to end."""
        return self.context.stopping.is_set()

    @property
    def log(self) -> logging.Logger:
        """A logger into the rank's log file."""
        return self.context.log

    @property
    def device(self) -> torch.device:
        """The torch device of this rank: its own GPU or NPU when it has one, else the CPU. Imports torch."""
        from dljob.runtime.worker.torch_group import own_device

        return own_device(self.context)
