"""The one reader of memory limits, which checkpoints, node checks and the evidence of a kill use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dljob.errors import UsageError
from dljob.linux import memory_limit
from dljob.runtime.checkpoint.slot import check_room
from dljob.runtime.process.evidence import MemoryKills

GIB = 2**30
POD = "kubepods.slice/pod1.slice"
NO_LIMIT = 0x7FFFFFFFFFFFF000


def machine(root: Path, row: str, files: dict[str, Any]) -> tuple[Path, Path]:
    """A /sys/fs/cgroup with these files and a /proc with 64 GiB free; `row` is a process's /proc/self/cgroup."""
    cgroups, proc = root / "cgroup", root / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text(row)
    (proc / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {64 * GIB // 1024} kB\n")
    cgroups.mkdir()
    for name, text in files.items():
        (cgroups / name).parent.mkdir(parents=True, exist_ok=True)
        (cgroups / name).write_text(str(text))
    return cgroups, proc


VERSION_1 = {
    "memory/docker/c/memory.limit_in_bytes": 4 * GIB,
    "memory/docker/c/memory.usage_in_bytes": GIB,
    "memory/memory.limit_in_bytes": NO_LIMIT,
    "memory/memory.usage_in_bytes": 9 * GIB,
}


@pytest.mark.parametrize(
    ("row", "files", "free"),
    [
        ("0::/\n", {}, 64 * GIB),
        ("0::/\n", {"memory.max": "max", "memory.current": 5}, 64 * GIB),
        ("0::/\n", {"memory.max": 4 * GIB, "memory.current": GIB}, 3 * GIB),
        ("", {"memory.max": 4 * GIB, "memory.current": GIB}, 3 * GIB),
        (
            "0::/\n",
            {
                "memory.max": 4 * GIB,
                "memory.current": 3 * GIB,
                "memory.stat": f"anon 1\ninactive_file {GIB}\nactive_file {GIB}\n",
            },
            3 * GIB,
        ),
        ("4:memory:/docker/c\n0::/\n", VERSION_1, 3 * GIB),
        (
            "4:memory:/of/the/host\n",
            {"memory/memory.limit_in_bytes": 2 * GIB, "memory/memory.usage_in_bytes": 0},
            2 * GIB,
        ),
        (
            "4:memory:/\n",
            {
                "memory/memory.limit_in_bytes": 2 * GIB,
                "memory/memory.usage_in_bytes": 2 * GIB,
                "memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}\ntotal_active_file 0\n",
            },
            GIB,
        ),
        (
            "0::/user.slice/job.scope\n",
            {"user.slice/job.scope/memory.max": 4 * GIB, "user.slice/job.scope/memory.current": GIB},
            3 * GIB,
        ),
        (
            f"0::/{POD}/c\n",
            {
                f"{POD}/c/memory.max": "max",
                f"{POD}/c/memory.current": GIB,
                f"{POD}/memory.max": 6 * GIB,
                f"{POD}/memory.current": 2 * GIB,
                "kubepods.slice/memory.max": 32 * GIB,
                "kubepods.slice/memory.current": 30 * GIB,
            },
            2 * GIB,
        ),
    ],
    ids=["none", "no limit", "v2", "no proc", "cache", "v1", "v1 container", "v1 cache", "slice", "nested"],
)  # fmt: skip
def test_the_tightest_memory_limit_holds(row: str, files: dict[str, Any], free: int, tmp_path: Path) -> None:
    cgroups, proc = machine(tmp_path, row, files)
    assert memory_limit.free(cgroups, proc)[0] == free


def test_the_place_of_the_memory_limit_is_named(tmp_path: Path) -> None:
    assert memory_limit.free(*machine(tmp_path, "", {}))[1] == "on this machine"
    assert memory_limit.free(tmp_path / "none", tmp_path / "none") == (None, "")


def test_a_checkpoint_and_a_kill_read_the_same_limit(tmp_path: Path) -> None:
    cgroups, proc = machine(tmp_path, "4:memory:/docker/c\n", VERSION_1)
    folder = cgroups / "memory/docker/c"
    (folder / "memory.max_usage_in_bytes").write_text(str(4 * GIB))
    (folder / "memory.oom_control").write_text("oom_kill 0\n")
    kills = MemoryKills(cgroups, proc)
    (folder / "memory.oom_control").write_text("oom_kill 1\n")
    clue = kills.clue()
    assert clue is not None
    assert clue.text == f"oom_kill +1, peak {4 * GIB} of {4 * GIB} bytes"
    assert memory_limit.own_group(cgroups, proc) == folder


def test_a_container_of_version_1_takes_no_checkpoint_that_it_cannot_hold(tmp_path: Path) -> None:
    used = {"memory/memory.limit_in_bytes": 4 << 20, "memory/memory.usage_in_bytes": 1 << 20}
    cgroups, _ = machine(tmp_path, "", used)
    check_room("trainer/0", 1 << 20, cgroups=cgroups)
    with pytest.raises(UsageError, match=r"a checkpoint of 2 MiB needs 4 MiB .* 3 MiB are left in this container"):
        check_room("trainer/0", 2 << 20, cgroups=cgroups)
