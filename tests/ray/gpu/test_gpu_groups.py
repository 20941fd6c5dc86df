"""Ranks in groups on a GPU: how its devices are numbered, a kernel that does not end, NCCL's abort."""

from __future__ import annotations

import socket
import subprocess

import pytest
from gpu_kit import GPU, HALF, Place, ran, role

from dljob.cli.machine import gpu_modes

pytestmark = [pytest.mark.ray, pytest.mark.gpu, pytest.mark.timeout(200)]


def asked(query: str) -> list[str]:
    """Return what nvidia-smi says of each GPU."""
    words = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]


def test_two_ranks_on_one_gpu_have_two_local_ranks_and_one_device(place: Place) -> None:
    more = ("type: Elastic", "replicas: 2", HALF, "comm: {backend: gloo}")
    told = ran(place, role("trainer", "numbers", *more))
    assert told["result"] == [["0", 0, "cuda:0", "0"], ["1", 0, "cuda:0", "0"]]


def test_a_gpu_that_is_named_by_its_uuid_is_computed_on(place: Place) -> None:
    (uuid, *_) = asked("uuid")
    place.env["CUDA_VISIBLE_DEVICES"] = uuid
    told = ran(place, role("trainer", "has_a_uuid", GPU))
    assert told["result"] == {"visible": uuid, "sum": 4.0, "count": 1}


def test_a_kernel_that_does_not_end_is_a_hang_with_stacks_and_the_flight_recorder(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    variables = {"RECORDER": port, "TORCH_FR_BUFFER_SIZE": 64, "TORCH_NCCL_TRACE_BUFFER_SIZE": 64}
    env = ", ".join(f"{{name: {name}, value: '{value}'}}" for name, value in variables.items())
    more = ("type: Elastic", "replicas: 1", GPU, "comm: {backend: nccl, preCheck: false}", f"env: [{env}]")
    dump = f"{{port: {port}, urlPath: /handler/dump_nccl_trace_json, body: '{{}}'}}"
    tolerance = (
        f"backoff: {{initialSeconds: 0}}, hang: {{idleSeconds: 1, busySeconds: 1}}, "
        f"witnesses: [{{name: recorder, dump: {dump}}}]"
    )
    extra = f"  faultTolerance: {{{tolerance}}}\n"
    told = ran(place, role("trainer", "hangs_in_a_kernel", *more), extra=extra, timeout=110)
    assert told["result"] == 2
    (hang,) = [note for note in told["notes"] if note["reason"] == "HangFound"]
    assert hang["target"].partition("/")[0] == "trainer"
    folder = place.entry()["folder"] / "stacks"
    stacks = (folder / "trainer-0-1.txt").read_text()
    assert "hangs_in_a_kernel (" in stacks
    assert "synchronize (" in stacks
    (trace,) = folder.glob("trainer-0-1.recorder-*.dump")
    assert "nccl:all_reduce" in trace.read_text()


def test_an_abort_of_nccl_ends_and_its_process_forms_a_group_again(place: Place) -> None:
    more = ("type: Elastic", "replicas: 1", GPU, "comm: {backend: nccl, preCheck: false}")
    told = ran(place, role("trainer", "breaks_off_its_group", *more))
    result = told["result"]
    assert (result["ended"], result["gone"], result["sum"], result["kept"]) == (True, True, 8.0, True), result
    assert result["seconds"] < 30


def test_the_driver_says_which_gpus_are_divided(place: Place) -> None:
    on = [index for index, mode in enumerate(asked("mig.mode.current")) if mode.strip() == "Enabled"]
    assert [mode.index for mode in gpu_modes.gather() if mode.mig] == on
    assert ("has MIG on" in place.dljob("doctor").stdout) == bool(on)
