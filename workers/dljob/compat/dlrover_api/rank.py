"""The worker of a role whose entrypoint is a class or a function of DLRover's form."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

from dljob.compat.dlrover_api import calls, payload
from dljob.compat.dlrover_api.process import install_everywhere
from dljob.runtime.process.context import current_worker
from dljob.runtime.process.entrypoint import resolve
from dljob.runtime.rpc.rpc import rpc
from dljob.runtime.worker.worker import Worker


class DLRoverRank(Worker):
    """Imports the user's entrypoint, offers its `@rpc` methods and functions, and runs it."""

    serves_after_run = True
    """As DLRover's actor, which lives until the job ends."""

    def __init__(self) -> None:
        self._body: Callable[[], Any] | None = None

    def setup(self) -> None:
        """Import the entrypoint, make its object, and export what others may call."""
        # On a Ray that was there before, nothing of the submitting process's environment is inherited.
        install_everywhere(os.environ)
        role = current_worker().role
        workload = payload.own_payload().workload(role)
        target: Any = resolve(workload.entry_point)
        if (module := inspect.getmodule(target)) is not None:
            calls.export_rpc_instance(None, module)
        self._body = target
        if inspect.isclass(target):
            user_object = target()
            calls.export_rpc_instance(None, user_object)
            self._body = getattr(user_object, "run", None)
        if self._body is None and workload.is_driver:
            raise TypeError(
                f"{workload.entry_point} has no run(), and role {role} is a driver: the job would never end; "
                "call .not_driver() on a role that only serves calls"
            )

    def run(self) -> None:
        """Run the user's function, or the object's `run`; a role without one serves calls."""
        if self._body is None:
            self.context.stopping.wait()
            return
        self._body()

    @rpc(timeout=None)
    def user_rpc(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> calls.RpcAnswer:
        """Call an exported function; an exception is a part of the answer, so that the caller gets its own type."""
        return calls.answered(name, args, kwargs)
