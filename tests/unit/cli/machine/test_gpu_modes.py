"""doctor on GPUs that MIG or MPS divides.

The answers of nvidia-smi in the folder beside this file have its form, shortened, and are no recordings: a GPU with MIG
on was not there. Held against published ones: MIG in XML of driver 535 (influxdata/telegraf, a100-sxm4-v12.xml), and
its list in NVIDIA's documentation of the GPU operator.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dljob.cli.machine import checks, gpu_modes
from dljob.cli.machine.facts import VisibleGpus
from dljob.cli.machine.gpu_modes import GpuMode, MigInstance

ANSWERS = Path(__file__).parent / "nvidia_smi"
UUIDS = ("MIG-8f3a4c1d-2b6e-5f70-91a2-b3c4d5e6f708", "MIG-0a1b2c3d-4e5f-5061-8273-94a5b6c7d8e9")
MIG = GpuMode(1, mig=True, instances=tuple(MigInstance("3g.40gb", uuid) for uuid in UUIDS), mps=False)
MPS = GpuMode(0, mig=False, instances=(), mps=True)


@pytest.mark.parametrize(("name", "modes"), [("off", ()), ("mig", (MIG,)), ("mps", (MPS,))])
def test_divided_gpus_are_named_by_the_drivers_answers(name, modes):
    log, listing = ((ANSWERS / f"{name}.{kind}").read_text() for kind in ("xml", "list"))
    assert gpu_modes.parsed(log, listing) == modes


def test_a_client_of_mps_shows_a_server_in_another_container():
    log = (ANSWERS / "mps.xml").read_text().replace("nvidia-cuda-mps-server", "python3")
    assert gpu_modes.parsed(log, "") == (MPS,)
    assert gpu_modes.parsed(log.replace("M+C", "C"), "") == ()


@pytest.mark.parametrize("log", ["", "No devices were found"])
def test_a_driver_that_says_nothing_divides_nothing(log):
    assert gpu_modes.parsed(log, "") == ()


@pytest.mark.parametrize("works", [True, False])
def test_the_program_of_the_driver_is_asked_if_there_is_one(tmp_path, monkeypatch, works):
    monkeypatch.setattr(gpu_modes, "SMI", str(tmp_path / "nvidia-smi"))
    assert gpu_modes.gather() == ()
    script = (
        f"#!/bin/sh\ncase $1 in -q) cat {ANSWERS}/mig.xml;; -L) cat {ANSWERS}/mig.list;; esac\nexit {int(not works)}\n"
    )
    (tmp_path / "nvidia-smi").write_text(script)
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert gpu_modes.gather() == ((MIG,) if works else ())


def judged(*modes: GpuMode, **more: Any) -> Any:
    seen = {"devices": {"GPU": 8}, "torch": VisibleGpus(8, "12.6"), "ray": VisibleGpus(8), "hiding": {}}
    return checks.devices(SimpleNamespace(**{**seen, **more}, modes=modes))  # type: ignore[arg-type] - what it reads


def test_doctor_names_the_instances_of_mig_and_what_a_share_is_of():
    said = judged(MIG)
    assert said.state == "warn"
    assert f"GPU 1 has MIG on (3g.40gb {UUIDS[0]}, 3g.40gb {UUIDS[1]})" in said.message
    assert "an accelerator.count below 1 is a share of one instance" in said.message
    assert said.fix == f"export CUDA_VISIBLE_DEVICES={UUIDS[0]}; or sudo nvidia-smi -i 1 -mig 0"


def test_mig_without_an_instance_leaves_no_device():
    said = judged(replace(MIG, instances=()))
    assert "GPU 1 has MIG on and no instance, so CUDA finds no device" in said.message
    assert said.fix == "sudo nvidia-smi mig -i 1 -cgi 0 -C; or sudo nvidia-smi -i 1 -mig 0"


def test_a_server_of_mps_is_named_and_is_no_trouble():
    said = judged(MPS)
    assert (said.state, said.fix) == ("ok", "")
    assert "torch and Ray see as many; a server of MPS runs on GPU 0: kernels of several ranks" in said.message


def test_other_trouble_with_devices_stands_first():
    said = judged(MIG, hiding={"CUDA_VISIBLE_DEVICES": "0"}, torch=VisibleGpus(1, "12.6"))
    assert said.state == "warn"
    assert said.message.startswith("8 GPU; torch sees 1, Ray sees 8; CUDA_VISIBLE_DEVICES=0; GPU 1 has MIG on")
    assert said.fix.startswith("nvidia-smi; for AMD rocm-smi; export CUDA_VISIBLE_DEVICES=MIG-")
