"""Pages: built of a day of 1,000 ranks and 10,000 events, and followed by 50 readers on a job of 1,000 ranks."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE / "kits"), str(HERE.parent / "kits")]

from simulated_folder import written  # noqa: E402

from dljob.report import job_folder, page  # noqa: E402
from dljob.report.page_data import page_data  # noqa: E402
from dljob.testing.simulate import large  # noqa: E402
from dljob.testing.simulate.drive import Case, Driver, Durations  # noqa: E402
from dljob.testing.world.fault_schedule import Timed  # noqa: E402
from dljob.testing.world.model import FaultMove  # noqa: E402

SIZE = large.Size(nodes=125, days=1, world=63)
READERS = 50
PER_S = 10


def day(kills: int) -> tuple[Driver, Case]:
    """A day of a job of 1,001 ranks in which a rank is killed so often."""
    ranks = (SIZE.nodes - SIZE.world) * large.PER_NODE
    faults = [
        # Each hundredth kill restarts the world of 504 ranks, the others a group of 8.
        Timed(
            600 + i * 85_000 / kills,
            FaultMove("kill", 0, 0, "trainer/7" if i % 100 == 99 else f"rollout/{i * 37 % ranks}"),
        )
        for i in range(kills)
    ]
    case = Case(1, large.manifest(SIZE), tuple(faults))
    for role in case.manifest["spec"]["roles"]:
        role["restartPolicy"] = {**role.get("restartPolicy", {}), "maxRestarts": 100_000}
    case.manifest["spec"]["faultTolerance"]["maxRestarts"] = 100_000
    driver = Driver(case, pace=Durations(work=(86_400, 86_401), whole=86_400))
    driver.run()
    return driver, case


def build(folder: Path) -> tuple[float, int, int]:
    """Return seconds, bytes and events of a page."""
    begin = time.perf_counter()
    record = job_folder.load(folder)
    text = page.html(page_data(record, time.time()))
    return time.perf_counter() - begin, len(text.encode()), len(record.events)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=5_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temp:
        a = time.time()
        driver, case = day(args.kills)
        print("sim", time.time() - a, len(driver.world.journal))
        written(Path(temp) / "day", driver, case.manifest, 4)
        print("written", time.time() - a)
        print([build(Path(temp) / "day") for _ in range(3)])
