"""What keeps a process from a CPU: quotas of both versions of control groups, threads that wait, the machine's load."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dljob.linux.cpu_time import CpuUse, Throttling, cpu_use, cpus, load, throttling

STAT_2 = "usage_usec 9\nuser_usec 9\nnr_periods 100\nnr_throttled 90\nthrottled_usec 8500000\nnr_bursts 0\n"
STAT_1 = "nr_periods 100\nnr_throttled 90\nthrottled_time 8500000000\nnr_bursts 0\nburst_time 0\n"


def write(root: Path, files: dict[str, str]) -> tuple[Path, Path]:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "cgroup").mkdir(exist_ok=True)
    return root / "cgroup", root / "proc"


@pytest.mark.parametrize(
    ("row", "files", "found"),
    [
        ("0::/a\n", {"a/cpu.max": "6000 100000\n", "a/cpu.stat": STAT_2}, Throttling(100, 90, 8500, 6)),
        ("0::/a/b\n", {"a/cpu.max": "150000 100000\n", "a/cpu.stat": STAT_2}, Throttling(100, 90, 8500, 150)),
        # Inside a container the path is that of the host.
        ("0::/of/the/host\n", {"cpu.max": "6000 100000\n", "cpu.stat": STAT_2}, Throttling(100, 90, 8500, 6)),
        ("0::/a\n", {"a/cpu.max": "max 100000\n", "a/cpu.stat": STAT_2}, None),
        (
            "3:cpu,cpuacct:/a\n0::/\n",
            {"cpu/a/cpu.cfs_quota_us": "6000", "cpu/a/cpu.cfs_period_us": "100000", "cpu/a/cpu.stat": STAT_1},
            Throttling(100, 90, 8500, 6),
        ),
        (
            "3:cpu:/a\n",
            {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000", "cpu/a/cpu.stat": STAT_1},
            None,
        ),
        ("0::/a\n", {"a/cpu.max": "6000 100000\n", "a/cpu.stat": "usage_usec 9\n"}, None),
        ("nonsense\n", {"cpu.max": "6000 100000\n", "cpu.stat": STAT_2}, None),
    ],
)
def test_throttling_by_a_control_group(
    tmp_path: Path, row: str, files: dict[str, str], found: Throttling | None
) -> None:
    places = {"proc/7/cgroup": row, **{f"cgroup/{name}": text for name, text in files.items()}}
    assert throttling(7, *write(tmp_path, places)) == found


def test_the_tightest_of_several_quotas_counts(tmp_path: Path) -> None:
    places = {"proc/7/cgroup": "0::/a/b\n"}
    for folder, quota in (("a/b", 200000), ("a", 50000)):
        places |= {f"cgroup/{folder}/cpu.max": f"{quota} 100000", f"cgroup/{folder}/cpu.stat": STAT_2}
    assert throttling(7, *write(tmp_path, places)) == Throttling(100, 90, 8500, 50)
    assert throttling(8, tmp_path / "cgroup", tmp_path / "proc") is None


def test_times_of_all_threads_count(tmp_path: Path) -> None:
    places = {"proc/7/task/7/schedstat": "2000000 1000000 5\n", "proc/7/task/9/schedstat": "1000000 4000000 1\n"}
    _, proc = write(tmp_path, {**places, "proc/8/task/8/schedstat": ""})
    assert cpu_use(7, proc) == CpuUse(ran=3, waited=5)
    assert cpu_use(8, proc) is None
    own = cpu_use(os.getpid())
    assert own is None or own.ran > 0


@pytest.mark.parametrize(
    ("text", "found"), [("1.50 2.0 2.5 22/300 9\n", 21), ("19.5 9 3 2/300 9\n", 19.5), ("nonsense", None)]
)
def test_load_is_that_of_now_or_of_the_last_minute(tmp_path: Path, text: str, found: float | None) -> None:
    _, proc = write(tmp_path, {"proc/loadavg": text})
    assert load(proc) == found
    assert cpus() >= 1
