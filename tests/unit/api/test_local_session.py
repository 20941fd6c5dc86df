"""`job.submit()` and `with dljob.local()` on this machine, with a host that starts no Ray."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib import util
from pathlib import Path
from typing import Any

import pytest

import dljob
from dljob.api import registry
from dljob.api.local import session
from dljob.api.registry import RegistryEntry
from dljob.errors import PlacementError, UnreachableError, UsageError

REAL = session.COMMAND
HOST = """
import json, os, sys
print("noise of a library", file=sys.stderr, flush=True)
for line in sys.stdin:
    order = json.loads(line)
    name = order["manifest"]["metadata"]["name"]
    if name == "dies":
        sys.exit("gcs_server: no space left")
    if name == "large":
        print(json.dumps({"error": "PlacementError", "message": "8 GPUs are missing", "hint": "--pretend"}), flush=True)
        continue
    print(json.dumps({"uid": {"a": "a" * 32, "b": "b" * 32}[name], "nodes": 1}), flush=True)
"""


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLJOB_HOME", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("DISTRIBUTED_BACKEND", raising=False)
    monkeypatch.setattr(session, "COMMAND", (sys.executable, "-S", "-c", HOST))
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "script.py"), raising=False)
    for name, phase in (("a", "Running"), ("b", "Succeeded")):
        folder = registry.folder_of(name, name * 32)
        me = os.getpid()
        record = RegistryEntry(
            name=name, uid=name * 32, dir=str(folder), runner=me, runner_started=registry.start_of(me)
        )
        registry.register(record)
        (folder / "status.json").write_text(json.dumps({"phase": phase, "result": "7"}))


def job() -> dljob.DLJob:
    return dljob.DLJobBuilder().role("w").run("user.work").end().build()


def test_a_job_goes_on_with_the_newest_or_a_named_one_and_not_on_a_running_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[Any] = []

    def ask(_ray: object, order: dict[str, Any]) -> dict[str, Any]:
        orders.append(order["resume"])
        return {"uid": "b" * 32}

    monkeypatch.setattr(session.LocalRay, "_ask", ask)
    for resume in (False, True, "b"):
        job().submit("b", blocking=False, resume=resume)
    assert orders == [None, "", "b"]
    with pytest.raises(UsageError, match="this one goes to a running Ray"):
        job().submit("b", address="h:1", resume=True)


def test_a_refusal_of_the_host_is_raised_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    with dljob.local(), pytest.raises(PlacementError, match="8 GPUs are missing") as refused:
        job().submit("large")
    assert refused.value.hint == "--pretend"


def test_a_host_that_dies_is_told_with_its_last_words() -> None:
    with pytest.raises(UnreachableError, match="did not start: gcs_server: no space left"):
        job().submit("dies")
    assert not session._hosts


def test_a_host_starts_where_no_temporary_folder_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host itself says which folder Ray needs, and why it has none."""

    def unusable() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", unusable)
    monkeypatch.setattr(tempfile, "_gettempdir", unusable)
    with pytest.raises(UnreachableError, match="did not start: gcs_server: no space left"):
        job().submit("dies")


def test_submit_without_ray_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find = util.find_spec
    monkeypatch.setattr(session, "find_spec", lambda name: None if name == "ray" else find(name))
    with pytest.raises(UsageError, match="Ray is not installed") as missing:
        job().submit("a")
    assert missing.value.hint == "pip install 'dljob[runtime]'"


def test_a_backend_that_only_runs_job_files_is_refused_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTRIBUTED_BACKEND", "yr")
    with pytest.raises(UsageError, match="embedded Ray"):
        job().submit("a")


@pytest.mark.parametrize("devices", [{"NPU": 0}, {"NPU": "8"}, {"CPU": 4}, {"NPU": True}])
def test_pretended_devices_are_devices_and_numbers(devices: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="not a device and a number"):
        dljob.local(pretend=devices)


def test_a_child_of_the_program_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with dljob.local() as ray:
        job().submit("a", blocking=False)
        process = ray._process
        ray._program = -1
        ray.close("this process")
        assert process is not None
        assert process.poll() is None
        ray._program = os.getpid()


def test_the_host_imports_nothing_from_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('a file of another user')")
    ended = subprocess.run(REAL, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
