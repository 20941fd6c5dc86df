"""The tier `gpu`: why it is skipped, what it lacks and from where that comes, and the page of what the tests ran on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[2]
sys.path[:0] = [str(TESTS / "ray" / "gpu"), str(TESTS / "bench"), str(TESTS)]

import gpu_environment  # noqa: E402 - found by the path above
import gpu_tests  # noqa: E402

import tiers  # noqa: E402

BASE: str = getattr(sys, "_base_executable", sys.executable)
"""The Python beneath this environment: it has pip, and little else."""


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


def wheel(folder: Path, name: str, requires: str = "") -> None:
    """Write a wheel of one module."""
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}.py", "here = True\n")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{requires}")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")


@pytest.mark.slow
def test_an_environment_is_completed_from_wheels_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel(wheels, "some_wheel_of_ours")
    monkeypatch.setenv("DLJOB_CACHE", str(tmp_path))
    monkeypatch.setenv("DLJOB_WHEELS", str(wheels))
    own = gpu_environment.completed(BASE, ["some-wheel-of-ours"])
    asked = (
        "import some_wheel_of_ours, dljob, importlib.metadata as m; print(some_wheel_of_ours.here, dljob.__file__,"
        " *sorted(one.name for one in m.entry_points(group='dljob.backends')))"
    )
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    told = subprocess.run([own, "-c", asked], capture_output=True, text=True, check=True, env=env).stdout
    assert told.split() == ["True", str(TESTS.parent / "workers" / "dljob" / "__init__.py"), "ray", "yr"]
    assert gpu_environment.completed(BASE, ["some-wheel-of-ours"]) == own, "and the next run takes it"
    with pytest.raises(gpu_environment.NotToBeHadError, match="No matching distribution found for another-one"):
        gpu_environment.completed(BASE, ["some-wheel-of-ours", "another-one"])


@pytest.mark.slow
def test_a_package_that_no_test_imports_may_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel(tmp_path, "some_wheel_of_ours", requires="Requires-Dist: of-no-use\n")
    monkeypatch.setenv("DLJOB_CACHE", str(tmp_path))
    monkeypatch.setenv("DLJOB_WHEELS", str(tmp_path))
    monkeypatch.setenv("PATH", os.defpath)
    with pytest.raises(gpu_environment.NotToBeHadError, match=r"for of-no-use; each for itself: .*No module named"):
        gpu_environment.completed(BASE, ["some-wheel-of-ours"])
    monkeypatch.setattr(gpu_environment, "IMPORTS", ("some_wheel_of_ours", "dljob"))
    own = gpu_environment.completed(BASE, ["some-wheel-of-ours"])
    said = capsys.readouterr().err
    assert f"the tests run without of-no-use, which {tmp_path} does not have" in said
    assert "no py-spy" in said
    (own.parent / "of this one").touch()
    assert gpu_environment.completed(BASE, ["some-wheel-of-ours"]) == own
    assert (own.parent / "of this one").exists(), "it is not made again"


@pytest.mark.parametrize(("skips", "code", "said"), [(True, 0, "gpu: skipped: why"), (False, 1, "gpu: failed: why")])
def test_a_tier_without_a_gpu_is_no_failure_but_one_without_packages_is(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, *, skips: bool, code: int, said: str
) -> None:
    def make() -> Path:
        raise gpu_environment.NotToBeHadError("why", skips=skips)

    monkeypatch.setattr(gpu_environment, "make", make)
    assert tiers.main(["gpu"]) == code
    assert said in capsys.readouterr().out.splitlines()


def test_the_tier_runs_its_tests_one_by_one_in_its_own_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_environment, "make", lambda: Path("/of/the/gpu"))
    monkeypatch.setattr(tiers, "isolated", list)
    (command,) = tiers.commands("gpu", ["-k", "share"])
    assert command == ["/of/the/gpu", *["-m", "pytest", "-q", "-n0", "tests/ray/gpu", "-m", "gpu", "-k", "share"]]
    assert "gpu" not in tiers.TIERS


def test_the_page_says_of_each_test_on_what_it_ran() -> None:
    page, ran = gpu_tests.PAGE.read_text(), gpu_tests.known()
    assert gpu_tests.rendered(page, ran) == page, "run: python tests/bench/gpu_tests.py"
    assert set(ran) <= set(gpu_tests.names())
    for row in ran.values():
        assert {"gpu", "driver", "torch", "when", "outcome"} <= row.keys()


def test_a_test_that_never_ran_is_told_as_such_and_figures_stand_behind_the_outcome() -> None:
    facts = {"gpu": "H100", "driver": "580", "torch": "2.11", "when": "2026-11-26", "outcome": "passed"}
    assert gpu_tests.line("test_a_b", {}) == "| a b | not run | | |"
    row = gpu_tests.line("test_a_b", {"test_a_b": {**facts, "seconds": 9.5, "save": "1.02 x"}})
    assert row == "| a b | H100, driver 580, torch 2.11 | 2026-11-26 | passed, 9.5 s; save: 1.02 x |"


def test_what_ran_is_kept_beside_what_is_known_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, page = tmp_path / "kept.json", tmp_path / "page.md"
    kept.write_text(json.dumps({"test_a": {"gpu": "old"}, "test_gone": {"gpu": "old"}}))
    page.write_text(f"before {gpu_tests.BEGIN}{gpu_tests.END} after")
    for name, value in {"KEPT": kept, "PAGE": page, "names": lambda: ["test_a", "test_b"]}.items():
        monkeypatch.setattr(gpu_tests, name, value)
    facts = {"gpu": "H100", "driver": "580", "torch": "2.11", "when": "2026-11-26"}
    monkeypatch.setattr(gpu_tests, "line", lambda name, ran: f"{name} on {ran[name]['gpu']}")
    gpu_tests.keep({"test_b": {"outcome": "passed", "seconds": 3.0}}, facts)
    assert json.loads(kept.read_text()) == {
        "test_a": {"gpu": "old"},
        "test_b": {**facts, "outcome": "passed", "seconds": 3.0},
    }
    assert "test_a on old\ntest_b on H100" in page.read_text()


CONFTEST = """
import sys
from pathlib import Path
sys.path.insert(0, {folder!r})
from gpu_conftest import *
from gpu_conftest import _gpu, gpu_environment
import gpu_tests

gpu_environment.gpu = lambda: ("H100", "580")
gpu_environment.torch_of = lambda python: "2.11"
gpu_tests.KEPT, gpu_tests.PAGE = Path({folder!r}, "kept.json"), Path({folder!r}, "page.md")
gpu_tests.names = lambda: ["test_one", "test_two"]
"""
RUNS = """
import os

def test_one(record_property):
    record_property("save", "1.02 x")

def test_two():
    os._exit(9)
"""


def test_a_run_that_ends_early_has_kept_what_it_ran(tmp_path: Path) -> None:
    given = (TESTS / "ray" / "gpu" / "conftest.py").read_text()
    (tmp_path / "gpu_conftest.py").write_text(given.replace("Path(__file__)", f"Path({str(TESTS / 'ray/gpu/_')!r})"))
    (tmp_path / "conftest.py").write_text(CONFTEST.format(folder=str(tmp_path)))
    (tmp_path / "kept.json").write_text("{}")
    (tmp_path / "page.md").write_text(gpu_tests.BEGIN + gpu_tests.END)
    (tmp_path / "test_run.py").write_text(RUNS)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-c", os.devnull, "--keep", "test_run.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 9, done.stdout + done.stderr
    one = json.loads((tmp_path / "kept.json").read_text())["test_one"]
    assert (one["outcome"], one["save"], one["gpu"], one["torch"]) == ("passed", "1.02 x", "H100", "2.11")
    assert "| two | not run |" in (tmp_path / "page.md").read_text()
