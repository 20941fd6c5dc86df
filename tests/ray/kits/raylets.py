"""The Ray of the tests: a head without CPUs and two raylets."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from patience import patience

from dljob.runtime.backend.embedded import without_agent
from dljob.runtime.forked_workers.first_template import start_raylet


class RayHere:
    """The Ray of the tests: its address and nodes, and ways to end a node."""

    def __init__(self, temp: str) -> None:
        from ray.cluster_utils import Cluster

        self.temp = temp
        # Not below `temp`, whose path may be too long for a socket.
        self._forks = Path(tempfile.mkdtemp(prefix="forks-"))
        self._cluster = Cluster(shutdown_at_exit=True)
        # No test reads the output of Ray's log monitors, which use as much CPU as a raylet.
        with _without_agents(self._forks):
            self._cluster.add_node(
                num_cpus=0, include_dashboard=False, include_log_monitor=False, object_store_memory=80 << 20
            )
        self.nodes = [self.add_node(resources={"NPU": 4}), self.add_node()]

    @property
    def address(self) -> str:
        return self._cluster.address

    @property
    def head(self) -> str:
        """Return the id of the head's node."""
        return self._cluster.head_node.node_id

    def add_node(self, **options: Any) -> Any:
        """Add a raylet of 4 CPUs; `node_id` of the result is its id."""
        node = {"num_cpus": 4, "object_store_memory": 80 << 20, "include_log_monitor": False}
        with _without_agents(self._forks):
            return self._cluster.add_node(**{**node, **options})

    def kill_raylet(self, node: Any) -> None:
        """Send SIGKILL to a raylet, as when a machine is lost; its other processes are cleaned up at the end."""
        os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)

    def remove_node(self, node: Any) -> None:
        """End a node and wait until Ray knows, or Ray could still place an actor of the next test there."""
        with suppress(Exception):
            self._cluster.remove_node(node, allow_graceful=False)
        end = time.monotonic() + patience(60)
        while time.monotonic() < end and self._lives(node.node_id):
            time.sleep(0.05)

    @staticmethod
    def _lives(node_id: str) -> bool:
        import ray

        return ray.is_initialized() and any(row["NodeID"] == node_id and row["Alive"] for row in ray.nodes())

    def close(self) -> None:
        import ray

        with suppress(Exception):
            ray.shutdown()
        with suppress(Exception):
            self._cluster.shutdown()
        shutil.rmtree(self._forks, ignore_errors=True)


@contextmanager
def _without_agents(forks: Path) -> Generator[None]:
    """Start nodes as `dljob run` does: without Ray's dashboard agents, and with workers that are forked.

    Tests that need an agent have a Ray of their own (head_kit.py, gateway_kit.py).
    """
    from ray._private import services

    start = services.start_ray_process

    def lighter(command: list[str], process_type: str, *args: Any, **more: Any) -> Any:
        if process_type != "raylet":
            return start(command, process_type, *args, **more)
        alone = without_agent(command)
        return start_raylet(lambda forking: start(forking, process_type, *args, **more), alone, forks)

    services.start_ray_process = lighter
    try:
        yield
    finally:
        services.start_ray_process = start
