"""One real Ray for all Ray tests of a run: a head without CPUs and two raylets, token on, temp folder of its own.

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
LEAN = str(HERE / "kits" / "as_in_images")
ENV = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "OMP_NUM_THREADS": "1",
    # Each node's agent looks at all processes every 5 s, for a dashboard that nobody sees.
    "REPORTER_UPDATE_INTERVAL_MS": "60000",
    # The GCS notices a dead raylet in 1 s, not in 14, as nothing listens where it was; one that is there and slow has
    # 10 s, or a machine that is full for 4 s loses all its nodes.
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
TORCH += ("examples", "hangs", "break_off", "host_torch", "in_process", "resize", "torchrun", "verl")
"""Files whose jobs are of several ranks with torch: half of a run, which takes all of two cores."""


class Lanes(LoadScopeScheduling):
    """A file stays whole, and those with torch follow each other: beside each other they starve Ray itself."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return "torch" if Path(file).stem.removeprefix("test_") in TORCH else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Lanes:
    """How tests are dealt out where several processes run them."""
    return Lanes(config, log)


@pytest.fixture(scope="session")
def ray_here() -> Iterator[RayHere]:
    """A Ray of several raylets; this process is connected to it."""
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
    """A job to be started on it, of which nothing is left afterwards."""
    from prime_help import Job

    made = Job(tmp_path)
    yield made
    made.close()
