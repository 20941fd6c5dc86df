"""A first template is there before any job, for the environment that workers are going to have."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dljob.runtime.forked_workers import first_template, starter
from dljob.runtime.forked_workers.first_template import env_of_workers, environ_of, start_first, start_raylet
from dljob.runtime.forked_workers.processes import servers

WORDS = f"--python_worker_command={sys.executable} /ray/setup_worker.py /ray/default_worker.py"
WAIT_S = 30.0
WORKER = "import os, sys\nsys.exit(os.environ['RAY_JOB_ID'] == '01000000' and 'X_OF_RAYLET' in os.environ and 7)"


@pytest.fixture
def raylet() -> Iterator[subprocess.Popen[bytes]]:
    """A process with an environment of its own, whose end ends its servers."""
    env = {**os.environ, "X_OF_RAYLET": "1", "LD_PRELOAD": ""}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=env) as made:
        yield made
        made.kill()


def test_environment_is_the_raylets_with_what_ray_adds_and_without_its_allocator():
    assert env_of_workers({"A": "1", "LD_PRELOAD": "/ray/libjemalloc.so"}, 7) == {
        "A": "1",
        "RAY_RAYLET_PID": "7",
        "SPT_NOENV": "1",
    }


def test_environment_of_a_process_is_read_as_it_was_given(raylet):
    found = environ_of(raylet.pid)
    assert found["X_OF_RAYLET"] == "1"
    with pytest.raises(OSError, match="No such file"):
        environ_of(2**22 + 1)


def test_first_worker_of_the_first_job_finds_a_template(raylet, tmp_path, monkeypatch):
    monkeypatch.setattr("dljob.runtime.forked_workers.starter._start", lambda *_: pytest.fail("a second template"))
    (program := tmp_path / "worker.py").write_text(WORKER)
    start_first(tmp_path, raylet.pid)
    start_first(tmp_path, raylet.pid)  # a raylet has one: nothing happens
    (template,) = servers(raylet.pid)
    assert {os.readlink(f"/proc/{template}/fd/{fd}") for fd in range(3)} == {os.devnull}  # noqa: PTH115 - no file's link
    env = {**env_of_workers(environ_of(raylet.pid), raylet.pid), "RAY_JOB_ID": "01000000"}
    with starter.reach(str(tmp_path), ([str(program)], env), raylet.pid) as line:
        line.settimeout(WAIT_S)
        assert (line.recv(1), line.recv(1)) == (starter.YES, bytes([7]))


def test_template_is_there_where_a_standard_file_is_closed(raylet, tmp_path, monkeypatch):
    monkeypatch.setattr("dljob.runtime.forked_workers.starter._start", lambda *_: pytest.fail("a second template"))
    (program := tmp_path / "worker.py").write_text(WORKER)
    code = "import sys\nfrom pathlib import Path\nfrom dljob.runtime.forked_workers.first_template import start_first\n"
    code += "start_first(Path(sys.argv[1]), int(sys.argv[2]))"
    words = [sys.executable, "-c", code, str(tmp_path), str(raylet.pid)]
    subprocess.run(["sh", "-c", 'exec "$@" <&- >&-', "sh", *words], check=True)
    env = {**env_of_workers(environ_of(raylet.pid), raylet.pid), "RAY_JOB_ID": "01000000"}
    with starter.reach(str(tmp_path), ([str(program)], env), raylet.pid) as line:
        line.settimeout(WAIT_S)
        assert (line.recv(1), line.recv(1)) == (starter.YES, bytes([7]))


def test_raylet_that_forks_has_a_first_template_and_another_has_none(tmp_path, monkeypatch):
    begun: list[tuple[Path, int]] = []
    monkeypatch.setattr(first_template, "start_first", lambda *asked: begun.append(asked))

    def start(command: list[str]) -> Any:
        return SimpleNamespace(process=SimpleNamespace(pid=7), command=command)

    forking = start_raylet(start, ["raylet", WORDS], tmp_path)
    assert starter.__file__ in forking.command[1]
    assert start_raylet(start, ["raylet"], tmp_path).command == ["raylet"]
    assert begun == [(tmp_path, 7)]


def test_raylet_starts_where_no_template_can_be_made(tmp_path, monkeypatch):
    def fails(*_: object) -> None:
        raise FileNotFoundError(2, "the raylet has ended")

    monkeypatch.setattr(first_template, "start_first", fails)
    made = SimpleNamespace(process=SimpleNamespace(pid=7))
    assert start_raylet(lambda _: made, ["raylet", WORDS], tmp_path) is made
