"""Actors of the contract suite, importable by a backend's worker processes."""

from __future__ import annotations

import os
import threading
import time
from typing import ClassVar


class Probe:
    """Tells about its process, waits, raises and ends on request."""

    concurrency_groups: ClassVar[dict[str, int]] = {"ctl": 4}

    def __init__(self, tag: str = "") -> None:
        self.tag = tag

    def about(self) -> tuple[int, str, dict[str, str]]:
        return os.getpid(), self.tag, dict(os.environ)

    def devices(self) -> dict[str, list[str]]:
        import ray

        return {k: list(v) for k, v in ray.get_runtime_context().get_accelerator_ids().items()}

    def node(self) -> str:
        import ray

        return ray.get_runtime_context().get_node_id()

    def wait_for_ever(self) -> None:
        while True:
            time.sleep(60)

    def fail(self) -> None:
        raise LookupError("nothing under that name")

    def end(self, code: int) -> None:
        threading.Timer(0.02, os._exit, (code,)).start()
