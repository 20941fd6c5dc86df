"""One real Ray for all Ray tests of a run: a head without CPUs, two raylets, token authentication, its own temp folder.

Destructive tests add a node of their own (`ray_here.add_node()`) and kill that one.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

HERE = Path(__file__).parent
FOLDERS = [str(HERE / "kits"), str(HERE / "users"), str(HERE.parent / "kits")]
LEAN = os.pathsep.join(str(HERE / "kits" / folder) for folder in ("as_in_images", "late"))
ENV = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "OMP_NUM_THREADS": "1",
    # Each node's agent scans all processes every 5 s for a dashboard that no test uses.
    "REPORTER_UPDATE_INTERVAL_MS": "60000",
    # The GCS notices a dead raylet in 1 s instead of 14, because its port refuses connections. A slow raylet has 10 s:
    # otherwise a machine that is fully loaded for 4 s would lose all its nodes.
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "250",
    "RAY_health_check_timeout_ms": "2500",
    "RAY_health_check_failure_threshold": "4",
}

# Ray reads these when its library is loaded, which is when the first test module is collected.
os.environ.update({**ENV, "RAY_AUTH_TOKEN": os.urandom(16).hex()})
if LEAN not in os.environ.get("PYTHONPATH", ""):
    os.environ["PYTHONPATH"] = os.pathsep.join([LEAN, *filter(None, [os.environ.get("PYTHONPATH")])])

# Helper modules beside the tests, importable here and by Ray's workers.
sys.path[:0] = FOLDERS
pytest.register_assert_rewrite("backend_contract", "mortal_scene", "prime_help")

from raylets import RayHere  # noqa: E402 - found by the path above

TORCH = ("accelerators", "checkpoint_jobs", "checkpoint_peers", "collectives", "elastic_nodes", "ends_that_repeat")
TORCH += ("converted", "examples", "hangs", "break_off", "host_torch", "in_process", "resize", "torchrun", "verl")
"""Test files whose jobs have several torch ranks: half of a run's time, and each uses both cores fully."""


class Lanes(LoadScopeScheduling):
    """A scheduler that keeps files whole and runs the torch files one after another: in parallel they starve Ray."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return "torch" if Path(file).stem.removeprefix("test_") in TORCH else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Lanes:
    """Return the scheduler that distributes tests over xdist workers."""
    return Lanes(config, log)


@pytest.fixture(scope="session")
def ray_here() -> Iterator[RayHere]:
    """Return a Ray with several raylets, to which this process is connected."""
    temp = tempfile.mkdtemp(prefix="dlj-", dir="/tmp")
    path = os.pathsep.join([*FOLDERS, *filter(None, [os.environ.get("PYTHONPATH")])])
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
    """Yield a job to start on `ray_here`; everything of it is removed afterwards."""
    from prime_help import Job

    made = Job(tmp_path)
    yield made
    made.close()
