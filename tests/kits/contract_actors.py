"""Actors of the contract suite, importable by a backend's worker processes."""

from __future__ import annotations

import os
import sys
import threading
from typing import ClassVar

from dljob.master.state.views import Outcome, Reason
from dljob.runtime.process.messages import OutcomeError


class Probe:
    """An actor that describes its process, waits, raises and exits on request."""

    concurrency_groups: ClassVar[dict[str, int]] = {"ctl": 4}

    def __init__(self, tag: str = "") -> None:
        self.tag = tag
        self.closed = threading.Event()

    def about(self) -> tuple[int, str, dict[str, str]]:
        return os.getpid(), self.tag, dict(os.environ)

    def devices(self) -> dict[str, list[str]]:
        import ray

        return {k: list(v) for k, v in ray.get_runtime_context().get_accelerator_ids().items()}

    def node(self) -> str:
        if "ray" in sys.modules and sys.modules["ray"].is_initialized():
            return sys.modules["ray"].get_runtime_context().get_node_id()
        from yr.runtime_holder import global_runtime

        return str(global_runtime.get_runtime().get_node_id())

    def wait_for_ever(self) -> None:
        self.closed.wait()

    def close(self) -> None:
        """Release what the actor holds, on backends where no process ends with an actor."""
        self.closed.set()

    def fail_in_user_code(self) -> None:
        raise OutcomeError(Outcome(False, Reason.USER_ERROR, error_type="KeyError", message="'ring'"))

    def fail(self) -> None:
        raise LookupError("nothing under that name")

    def end(self, code: int) -> None:
        threading.Timer(0.02, os._exit, (code,)).start()
