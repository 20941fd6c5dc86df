"""Processes without Ray from a template: what they are, which template they have, how their end is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dljob.linux import descendants
from dljob.runtime.backend import sweeper
from dljob.runtime.forked_workers import clean_process, starter
from dljob.runtime.forked_workers.clean_process import CleanProcess, forked
from dljob.runtime.forked_workers.server import FOLDER

WAIT_S = 30.0
PROGRAM = """
import json, os, sys
def main(fd, held_fd, began, code):
    told = {"pid": os.getpid(), "above": os.getppid(), "x": os.environ.get("X"), "set": os.environ.get("SET_BY_IMPORT")}
    told |= {"ray": "ray" in sys.modules, "there": "large" in sys.modules, "leads": os.getsid(0) == os.getpid()}
    told |= {"cwd": os.getcwd(), "name": open("/proc/self/comm").read().strip(), "began": began.get("SET_BY_IMPORT")}
    told |= {"main": hasattr(sys.modules["__main__"], "__file__"), "threads": os.environ.get("OMP_NUM_THREADS")}
    with os.fdopen(fd, "w") as out:
        out.write(json.dumps(told))
    sys.stdin.read()
    os._exit(code)
"""


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder with a short path, as a socket needs one."""
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def raylet(tmp_path: Path, sockets: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a raylet's place; templates beside it end with it. `large` is a module that sets a variable."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "program_of_test.py").write_text(PROGRAM)
    (tmp_path / "own" / "large.py").write_text("import os; os.environ['SET_BY_IMPORT'] = 'yes'; print('said by it')")
    (tmp_path / "own" / "threaded.py").write_text(
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    monkeypatch.syspath_prepend(tmp_path / "own")
    path = os.pathsep.join(filter(None, sys.path))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as made:
        monkeypatch.setenv("PYTHONPATH", path)
        monkeypatch.setenv(FOLDER, f"{made.pid}:{sockets}")
        monkeypatch.setenv(clean_process.RAYLET, str(made.pid))
        yield made
        made.kill()


class Asked:
    """A clean process that was asked for, and what it told of itself."""

    def __init__(self, *modules: str, code: int = 7, **env: str) -> None:
        reader, writer = os.pipe()
        waits, self.release = os.pipe()
        program = "program_of_test", {"code": code}
        made = forked(program, modules, {**os.environ, **env}, (waits, 1, 2, writer))
        os.close(writer)
        os.close(waits)
        with os.fdopen(reader) as out:
            text = out.read()
        assert isinstance(made, CleanProcess)
        self.process, self.told = made, json.loads(text)

    def end(self) -> int:
        os.close(self.release)
        return self.process.wait(WAIT_S)


def test_clean_process_has_what_it_would_have_had_as_a_child(raylet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told: dict[str, Any] = (asked := Asked("large", X="own", OMP_NUM_THREADS="3")).told
    assert (told["x"], told["cwd"], told["threads"]) == ("own", str(tmp_path), "3")
    assert told["there"]
    assert told["leads"]
    assert not told["ray"]
    assert not told["main"]
    # What the import has set is there; what the process has begun with is known, too.
    assert (told["set"], told["began"]) == ("yes", None)
    assert told["name"] == "dljob-clean"
    with pytest.raises(subprocess.TimeoutExpired):
        asked.process.wait(0.01)
    assert asked.end() == 7


def test_what_an_import_sets_stays_as_if_the_process_had_imported(raylet):
    asked = Asked("large", SET_BY_IMPORT="mine")
    assert asked.told["set"] == "yes"
    assert asked.told["began"] == "mine"
    assert asked.end() == 7


def test_jobs_of_one_environment_have_one_template_and_others_have_their_own(raylet):
    first = Asked("large", RAY_JOB_ID="01", DLJOB_X="1", CUDA_VISIBLE_DEVICES="1", OMP_NUM_THREADS="2")
    second = Asked("large", RAY_JOB_ID="02", CUDA_VISIBLE_DEVICES="0", OMP_NUM_THREADS="3")
    assert (first.told["threads"], second.told["threads"]) == ("2", "3")
    other, less = Asked("large", TORCH_X="1"), Asked("json")
    assert first.told["above"] == second.told["above"]
    assert len({each.told["above"] for each in (first, other, less)}) == 3
    assert not less.told["there"]
    assert [each.end() for each in (first, second, other, less)] == [7] * 4


def test_a_process_outlives_its_template_and_its_end_is_still_told(raylet):
    asked = Asked("large")
    os.kill(asked.told["above"], signal.SIGKILL)
    with pytest.raises(subprocess.TimeoutExpired):
        asked.process.wait(0.2)
    assert asked.end() == 1, "its code is not known any more"
    again = Asked("large")
    assert again.told["above"] != asked.told["above"]
    assert again.end() == 7


def test_a_process_that_was_killed_is_told_as_a_shell_does(raylet):
    asked = Asked("large")
    os.kill(asked.told["pid"], signal.SIGKILL)
    assert asked.process.wait(WAIT_S) == 128 + signal.SIGKILL


def test_template_is_no_descendant_of_who_started_it(raylet, monkeypatch):
    """The end of a host ends its descendants; other jobs have their processes from the same template."""
    monkeypatch.setattr(descendants, "_adopts", False)  # as it is put back behind this test
    descendants.adopt_orphans()
    try:
        asked = Asked("large")
        assert asked.told["above"] not in descendants.below(os.getpid())
        before = set(descendants.below(os.getpid()))
        subprocess.run([sys.executable, "-c", "import os; os.fork() or os.execlp('sleep', 'sleep', '600')"], check=True)
        (orphan,) = set(descendants.below(os.getpid())) - before
        os.kill(orphan, signal.SIGKILL)
        os.waitpid(orphan, 0)
    finally:
        descendants.prctl(descendants.PR_SET_CHILD_SUBREAPER, 0)
    assert asked.end() == 7


def test_a_request_that_nobody_waits_for_is_dropped(raylet, tmp_path, monkeypatch):
    (first := Asked("large")).end()
    os.kill(first.told["above"], signal.SIGSTOP)
    monkeypatch.setattr(starter, "IMPORT_S", 0.1)
    reader, writer = os.pipe()
    with Path(os.devnull).open() as null:
        assert forked(("program_of_test", {"code": 0}), ("large",), os.environ, (null.fileno(), 1, 2, writer)) is None
    os.close(writer)
    os.kill(first.told["above"], signal.SIGCONT)
    with os.fdopen(reader) as out:
        assert out.read() == "", "nothing was forked that would tell of itself"


def test_templates_of_an_embedded_ray_have_its_mark(raylet, monkeypatch):
    assert clean_process.MARK == sweeper.MARK
    monkeypatch.setenv(sweeper.MARK, "of-this-test")
    asked = Asked("large")
    assert {asked.told["pid"], asked.told["above"]} <= set(sweeper.marked("of-this-test"))
    assert asked.end() == 7


def test_modules_that_a_template_would_take_from_elsewhere_are_not_forked(raylet, tmp_path, monkeypatch):
    (tmp_path / "large.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert forked(("program_of_test", {}), ("large",), os.environ, (0, 1, 2, 2)) is None


@pytest.mark.parametrize("missing", [FOLDER, clean_process.RAYLET])
def test_without_forked_workers_there_is_no_template(raylet, tmp_path, monkeypatch, missing, sockets):
    monkeypatch.setenv(missing, "1:/of/another/ray")
    assert forked(("program_of_test", {}), ("large",), os.environ, (0, 1, 2, 2)) is None
    monkeypatch.delenv(missing)
    assert forked(("program_of_test", {}), ("large",), os.environ, (0, 1, 2, 2)) is None
    assert not list((sockets).iterdir())


def test_nothing_is_forked_without_modules_or_where_it_is_not_safe(raylet, tmp_path, monkeypatch, sockets):
    assert forked(("program_of_test", {}), (), os.environ, (0, 1, 2, 2)) is None
    assert not list((sockets).iterdir())
    assert forked(("program_of_test", {}), ("threaded",), os.environ, (0, 1, 2, 2)) is None
    assert [file.suffix for file in (sockets).iterdir() if file.suffix == ".unfit"] == [".unfit"]
    there = Asked("large")
    monkeypatch.setattr(starter, "MOST", 0)
    assert Asked("large").end() == there.end() == 7, "the template that is there may fork"
    assert forked(("program_of_test", {}), ("json",), os.environ, (0, 1, 2, 2)) is None
