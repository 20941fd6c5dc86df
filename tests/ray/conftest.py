"""One real Ray for all Ray tests of a run: a head without CPUs and two raylets, token on, temp folder of its own.

Destructive tests add a node of their own (`ray_here.add_node()`) and kill that one.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

HERE = Path(__file__).parent
ENV = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "OMP_NUM_THREADS": "1",
    # The GCS notices a dead raylet in 0.8 s, not in 14.
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "250",
    "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "4",
}

# Ray reads these when its library is loaded, which is when the first test module is collected.
os.environ.update({**ENV, "RAY_AUTH_TOKEN": os.urandom(16).hex()})

# Helper modules beside the tests, importable here and by Ray's workers.
sys.path[:0] = [str(HERE), str(HERE.parent / "kits")]
pytest.register_assert_rewrite("backend_contract", "mortal_scene", "prime_help")


TORCH = ("accelerators", "checkpoint_jobs", "checkpoint_peers", "collectives", "elastic_nodes", "examples", "hangs")
TORCH += ("host_torch", "in_process", "resize", "torchrun", "verl")
"""Files whose jobs are of several ranks with torch: half of a run, which takes all of two cores."""


class Lanes(LoadScopeScheduling):
    """A file stays whole, and those with torch follow each other: beside each other they starve Ray itself."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return "torch" if Path(file).stem.removeprefix("test_") in TORCH else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Lanes:
    """How tests are dealt out where several processes run them."""
    return Lanes(config, log)


class RayHere:
    """The Ray of the tests: its address, its nodes, and how to end one."""

    def __init__(self, temp: str) -> None:
        from ray.cluster_utils import Cluster

        self.temp = temp
        self._cluster = Cluster(shutdown_at_exit=True)
        # Nobody reads what its log monitors tell, and they take as much of a core as a raylet does.
        self._cluster.add_node(
            num_cpus=0, include_dashboard=False, include_log_monitor=False, object_store_memory=80 << 20
        )
        self.nodes = [self.add_node(resources={"NPU": 4}), self.add_node()]

    @property
    def address(self) -> str:
        return self._cluster.address

    @property
    def head(self) -> str:
        """The id of the head's node."""
        return self._cluster.head_node.node_id

    def add_node(self, **options: Any) -> Any:
        """A new raylet of 4 CPUs; `node_id` is its id."""
        node = {"num_cpus": 4, "object_store_memory": 80 << 20, "include_log_monitor": False}
        return self._cluster.add_node(**{**node, **options})

    def kill_raylet(self, node: Any) -> None:
        """SIGKILL, as a machine that vanishes; what is left of the node is cleaned up at the end."""
        os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)

    def remove_node(self, node: Any) -> None:
        """End a node, and wait until Ray knows: else it may yet place an actor of the next test there."""
        with suppress(Exception):
            self._cluster.remove_node(node, allow_graceful=False)
        end = time.monotonic() + 60
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


@pytest.fixture(scope="session")
def ray_here() -> Iterator[RayHere]:
    """A Ray of several raylets; this process is connected to it."""
    temp = tempfile.mkdtemp(prefix="dlj-", dir="/tmp")
    path = os.pathsep.join([str(HERE), str(HERE.parent / "kits"), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ.update({"RAY_TMPDIR": temp, "PYTHONPATH": path})
    os.environ.pop("RAY_ADDRESS", None)
    import ray

    here = RayHere(temp)
    try:
        ray.init(address=here.address, namespace="tests", log_to_driver=False, configure_logging=False)
        yield here
    finally:
        here.close()
        shutil.rmtree(temp, ignore_errors=True)


@pytest.fixture
def job(ray_here: RayHere, tmp_path: Path) -> Iterator[Any]:
    """A job to be started on it, of which nothing is left afterwards."""
    from prime_help import Job

    made = Job(tmp_path)
    yield made
    made.close()
