"""The tier `gpu`: why it is skipped, what it lacks and from where that comes, and the page of what the tests ran on."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[2]
sys.path[:0] = [str(TESTS / "ray" / "gpu"), str(TESTS / "bench"), str(TESTS)]

import gpu_environment  # noqa: E402 - found by the path above
import gpu_tests  # noqa: E402

import tiers  # noqa: E402


def program(folder: Path, name: str, says: str, code: int = 0) -> Path:
    """Write a program that prints and ends; return its path."""
    file = folder / name
    file.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\nexit {code}\n")
    file.chmod(0o755)
    return file


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of programs, in front of all others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.defpath}")
    return folder


@pytest.mark.parametrize(
    ("says", "code", "why"),
    [
        ("NVIDIA-SMI has failed because it could not talk to the driver.", 9, "nvidia-smi says NVIDIA-SMI has failed"),
        ("No devices were found", 0, "nvidia-smi says No devices were found"),
    ],
)
def test_a_machine_without_a_gpu_skips_the_tier_with_the_reason(path: Path, says: str, code: int, why: str) -> None:
    program(path, "nvidia-smi", says, code)
    with pytest.raises(gpu_environment.NotToBeHadError, match=why) as refused:
        gpu_environment.gpu()
    assert refused.value.skips


def test_the_first_gpu_and_its_driver_are_read(path: Path) -> None:
    program(path, "nvidia-smi", "NVIDIA H100 80GB HBM3, 580.95.05\nNVIDIA H100 80GB HBM3, 580.95.05")
    assert gpu_environment.gpu() == ("NVIDIA H100 80GB HBM3", "580.95.05")


@pytest.mark.parametrize(
    ("says", "code", "why"),
    [
        ("", 1, "has no torch to use"),
        ('["2.6.0", "12.4", 1]', 0, "has torch 2.6.0; the oldest one supported is 2.7"),
        ('["2.11.0+cpu", "", 0]', 0, "is built without CUDA"),
        ('["2.11.0+cu130", "13.0", 0]', 0, "sees no GPU"),
    ],
)
def test_a_torch_that_cannot_use_the_gpu_skips_the_tier(path: Path, says: str, code: int, why: str) -> None:
    with pytest.raises(gpu_environment.NotToBeHadError, match=why) as refused:
        gpu_environment.torch_of(str(program(path, "python", says, code)))
    assert refused.value.skips


def test_a_torch_for_the_gpu_is_taken_as_it_is(path: Path) -> None:
    assert gpu_environment.torch_of(str(program(path, "python", '["2.7.1+cu126", "12.6", 1]'))) == "2.7.1+cu126"


def test_this_environment_lacks_nothing_that_the_tests_want() -> None:
    assert gpu_environment.lacking(gpu_environment.wanted()) == []
    assert any(line.startswith("ray[default]") for line in gpu_environment.wanted())
    assert gpu_environment.completed(sys.executable, ["pytest"]) == Path(sys.executable)


def test_what_is_missing_is_named_with_extras_and_versions() -> None:
    assert gpu_environment.lacking(["pytest>=9999", "no-such-package[a]>=1", "pytest"]) == [
        "pytest>=9999",
        "no-such-package[a]>=1",
    ]


@pytest.mark.parametrize("wheels", ["", "/no/such/folder"])
def test_missing_packages_come_with_the_command_that_downloads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wheels: str
) -> None:
    monkeypatch.setenv("DLJOB_CACHE", str(tmp_path))
    monkeypatch.setenv("DLJOB_WHEELS", wheels)
    with pytest.raises(gpu_environment.NotToBeHadError) as refused:
        gpu_environment.completed(sys.executable, ["no-such-package[a]>=1"])
    assert not refused.value.skips
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    command = f"pip download --dest wheels --python-version {python} --only-binary=:all: 'no-such-package[a]>=1'"
    assert command in str(refused.value)


@pytest.mark.parametrize(("skips", "code", "said"), [(True, 0, "gpu: skipped: why"), (False, 1, "gpu: failed: why")])
def test_a_tier_without_a_gpu_is_no_failure_but_one_without_packages_is(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, *, skips: bool, code: int, said: str
) -> None:
    def make() -> Path:
        raise gpu_environment.NotToBeHadError("why", skips=skips)

    monkeypatch.setattr(gpu_environment, "make", make)
    assert tiers.main(["gpu"]) == code
    assert said in capsys.readouterr().out.splitlines()


def test_the_page_says_of_each_test_on_what_it_ran() -> None:
    page, ran = gpu_tests.PAGE.read_text(), gpu_tests.known()
    assert gpu_tests.rendered(page, ran) == page, "run: python tests/bench/gpu_tests.py"
    assert set(ran) <= set(gpu_tests.names())
    for row in ran.values():
        assert {"gpu", "driver", "torch", "when", "outcome"} <= row.keys()
