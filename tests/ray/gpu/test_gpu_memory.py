"""The memory of a GPU that ranks share, and that a killed one leaves."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpu_kit import GPU, HALF, Place, ran, role

pytestmark = [pytest.mark.ray, pytest.mark.gpu, pytest.mark.timeout(200)]
sys.path[:0] = [str(Path(__file__).parents[2] / "bench" / "data")]

QUARTER = "accelerator: {type: GPU, count: '0.25'}"
ON_ONE = "  collocations: [{name: one, roles: [%s], level: Device}]\n"
QUICK = "  faultTolerance: {backoff: {initialSeconds: 0}}\n"
MOST_TIMES = 1.5
"""A save of a state on the GPU, in bare copies to page-locked memory."""


def share_of(text: str) -> str:
    return f"accelerator: {{type: GPU, count: '0.5'{text}}}"


def test_a_role_over_its_share_is_out_of_memory_alone(place: Place) -> None:
    roles = [
        role("greedy", "needs_much", share_of(""), "env: [{name: AWAITS, value: script}]"),
        role("steady", "is_steady", QUARTER, "driver: false"),
        role("script", "", QUARTER, "driver: false", script="script_needs_much"),
    ]
    told = ran(place, *roles, extra=ON_ONE % "greedy, steady, script" + QUICK)
    assert told["result"]["first"] == 2
    assert told["result"]["steady"]["incarnation"] == 1, "the other one went on in its process"
    (restart,) = [note for note in told["notes"] if note["reason"] == "Restarting"]
    assert restart["target"].startswith("greedy")
    assert "CUDA out of memory" in restart["message"]
    folder = place.entry()["folder"]
    assert "CUDA out of memory" in (folder / "script").read_text()
    logs = "".join(path.read_text() for path in sorted((folder / "logs").rglob("*.log")))
    for share in ("0.5", "0.25"):
        assert f"torch is held to {share} of the memory of GPU 0 (accelerator.memoryLimit)" in logs


def test_a_role_with_the_limit_off_takes_what_is_free(place: Place) -> None:
    roles = [
        role("greedy", "needs_much", share_of(", memoryLimit: None")),
        role("steady", "is_steady", QUARTER, "driver: false"),
    ]
    told = ran(place, *roles, extra=ON_ONE % "greedy, steady" + QUICK)
    assert told["result"]["first"] == 1
    assert told["result"]["part"] == pytest.approx(0.6, abs=0.01)


def test_the_driver_has_a_killed_ranks_memory_back_before_the_next_start(
    place: Place, record_property: Callable[[str, object], None]
) -> None:
    told = ran(place, role("trainer", "finds_memory", GPU), extra=QUICK)
    assert told["restarts"]["process"] == 1
    result = told["result"]
    record_property("free at the next start", f"{result['free']:.0%}, most after {result['seconds']:.2f} s")
    assert result["free"] > 0.9, result


def test_a_reader_on_the_gpu_loads_each_version_of_weights(place: Place) -> None:
    roles = [role("trainer", "publishes_versions", HALF), role("rollout", "loads_versions", HALF, "driver: false")]
    told = ran(place, *roles, extra=ON_ONE % "trainer, rollout")
    assert len(told["result"]) == 3
    for own, theirs, where in told["result"]:
        assert (theirs, where) == (own, "cuda")


def test_a_save_from_the_gpu_takes_little_more_than_a_copy_to_locked_memory(
    record_property: Callable[[str, object], None],
) -> None:
    import gpu

    free = shutil.disk_usage("/dev/shm").free >> 30  # with less than 14 versions go over the disk
    run: dict[str, Any] = gpu.measured(0)
    assert run["restored right"]
    times = run["save in bare copies"]
    record_property("save", f"{times} x a copy to page-locked memory")
    record_property("publish", f"{run['publish']:.2f} s of {run['GiB']} GiB, with {free} free in /dev/shm")
    assert times <= MOST_TIMES, json.dumps(run)
