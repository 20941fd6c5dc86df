"""The base class of roles written as classes: lifecycle hooks, and shortcuts to the worker's context.

Deriving from it is optional: any class with a `run` method, and any function, is an entrypoint too.
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
    With `restartPolicy.level: InProcess`, a rank whose torch group lost a member is interrupted in `run`, and its
    process goes on with `on_restart` and `run` once the group has formed again.
    Hooks run in a thread, beside Ray's: `signal.signal` raises ValueError in them; `current_worker().stopping` is set
    when the rank is to end. A script (`entrypoint.module`) has the main thread.
    Calls from other roles (`@rpc`) wait until `setup` and `on_restart` have returned.
    """

    mesh: Any = None
    """The mesh of the role: axis -> size, as in {"dp": -1, "tp": 2}. The last axis varies fastest; one size may be -1
    and is then inferred from the world size. A torch DeviceMesh with named axes works too. `@rpc(mesh=)` names axes;
    `setup` may set the mesh."""
    serves_after_run: bool = False
    """Whether calls of other ranks are served after `run` has returned, until the job ends or the process does. The
    rank has succeeded then: the job does not wait for it, and a lost process is not replaced."""

    def self_check(self) -> bool:
        """Return whether this process is fit for work. False or an exception ends it, and the rank restarts."""
        return True

    def setup(self) -> None:
        """Build what the worker needs. An exception here ends the job: a restart would meet it again."""

    def on_restart(self, reason: str) -> None:
        """Restore what a restart lost; called after `setup` when this process replaces one that ended for `reason`.

        After a restart in process it is called in the survivors as well, without `setup`. Their torch group is a new
        one: whatever holds the old one (DDP, FSDP, groups of your own) must be built again here or in `run`.
        """

    def run(self) -> Any:
        """Do the worker's work. The default serves calls until the job stops.

        The job's result is what rank 0 of the first driver role returns: JSON of at most 8 KiB.
        """
        self.context.stopping.wait()

    def shutdown(self) -> None:
        """Clean up. Called once: after `run` returned, or in another thread when the rank is to stop.

        An error here is told (`ShutdownFailed` in events, status and why), and changes neither result nor exit code:
        what must not fail, such as the save of the final model, belongs at the end of `run`.
        """

    @property
    def context(self) -> WorkerContext:
        """The context of this process, as `current_worker()` returns it."""
        return current_worker()

    @property
    def config(self) -> Mapping[str, Any]:
        """The job's config, overridden by the role's."""
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
        """The number of ranks of the role."""
        return self.context.world_size

    @property
    def stopping(self) -> bool:
        """Whether the rank has been asked to end."""
        return self.context.stopping.is_set()

    @property
    def log(self) -> logging.Logger:
        """A logger that writes to the rank's log file."""
        return self.context.log

    @property
    def device(self) -> torch.device:
        """The torch device of this rank: its own GPU or NPU if it has one, else the CPU. Imports torch."""
        from dljob.runtime.worker.torch_group import own_device

        return own_device(self.context)
