"""Jobs on a real NVIDIA GPU, run by the command as its users do."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from gpu_kit import GPU, HALF, Place, ended, manifest, ran, role
from prime_help import eventually

from dljob.runtime.journal import samples
from dljob.telemetry.remedies import CauseKind

pytestmark = [pytest.mark.ray, pytest.mark.gpu, pytest.mark.timeout(200)]


def device_bytes(folder: Path) -> int:
    """Return the most device memory that a sample has of the trainer's rank, in bytes; 0 without any."""
    ranks = samples.read(folder).device.get("trainer", [[]])
    return max(filter(None, ranks[0]), default=0)


def reasons(told: dict[str, Any]) -> list[str]:
    return [note["reason"] for note in told["notes"]]


def test_the_check_of_the_machine_finds_the_gpu(place: Place) -> None:
    count = len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.splitlines())
    said = place.dljob("doctor").stdout
    assert f"{count} GPU, and torch and Ray see as many" in said


def test_a_rank_sees_its_gpu_and_others_see_none(place: Place) -> None:
    told = ran(place, role("trainer", "sees", GPU), role("judge", "sees_none", "driver: false"))
    result = told["result"]
    assert (result["count"], result["visible"], result["blind"]) == (1, "0", "'' False")


def test_the_memory_of_a_killed_rank_is_free_for_its_next_process(place: Place) -> None:
    file = manifest(place, role("trainer", "grows", GPU))
    with place.running("run", file) as run:
        run.until(lambda line: "Recovered trainer/0" in line)
        folder = place.entry()["folder"]
        eventually(lambda: device_bytes(folder), 60, lambda: samples.read(folder))
        (folder / "seen").touch()
        code, _, errors = run.end()
    assert code == 0, errors
    told = ended(folder)
    result = told["result"]
    assert told["restarts"]["process"] == 1
    assert result["first"] >= 5
    assert min(result["held"], device_bytes(folder)) > 0.69 * result["total"]
    assert any("ended by SIGKILL" in note["message"] for note in told["notes"])


def test_too_little_device_memory_is_told_as_such(place: Place) -> None:
    done = place.dljob("run", manifest(place, role("trainer", "asks_too_much", GPU)))
    assert done.returncode == 1
    why = place.dljob("why", "job")
    assert "CUDA out of memory" in why.stdout
    assert why.returncode == CauseKind.MEMORY


def test_a_broken_context_takes_a_new_process_and_no_more(place: Place) -> None:
    told = ran(place, role("trainer", "breaks_its_context", GPU))
    assert (told["result"], told["restarts"]["process"]) == (1, 1)
    restart = next(note for note in told["notes"] if note["reason"] == "Restarting")
    assert "device-side assert" in restart["message"]


def test_two_roles_share_a_gpu_and_pass_weights(place: Place) -> None:
    extra = "  collocations: [{name: both, roles: [trainer, rollout], level: Device}]\n"
    told = ran(
        place, role("trainer", "publishes", HALF), role("rollout", "receives", HALF, "driver: false"), extra=extra
    )
    assert told["result"]["sum"] == told["result"]["received"] > 0


def test_a_survivor_keeps_its_process_and_its_tensors(place: Place) -> None:
    more = ("type: Elastic", "replicas: 2", HALF, "comm: {backend: gloo}", "restartPolicy: {level: InProcess}")
    told = ran(place, role("trainer", "Survives", *more))
    assert told["restarts"]["inProcess"] == 1
    assert (told["result"]["sum"], told["result"]["kept"]) == (3.0, True)


def test_a_group_by_nccl_is_checked_formed_and_formed_again(place: Place) -> None:
    more = ("type: Elastic", "replicas: 1", GPU, "comm: {backend: nccl}")
    told = ran(place, role("trainer", "reduces_by_nccl", *more))
    assert told["result"] == {"backend": "nccl", "sum": 4.0, "incarnation": 2}
    assert "NodesChecked" in reasons(told)
    assert "CheckNotMade" not in reasons(told)
