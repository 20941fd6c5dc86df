"""`roles[].python`: an interpreter is found, judged, and given this process's dljob."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from role_kit import role_plan

from dljob.linux import interpreter as pythons
from dljob.linux.interpreter import Interpreter, InterpreterError

VERSIONS = ("", "0.1.9", "0.0.9")
CLUSTER = Interpreter("/usr/bin/python3", (3, 11, 7), "2.60.0")


def program(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


@pytest.mark.parametrize(
    ("version", "ray", "in_ray", "said"),
    [
        ((3, 11, 0), "", False, ""),
        ((3, 13, 9), "", False, ""),
        ((3, 10, 13), "", False, "it is Python 3.10.13 without Ray, and ranks need Python 3.11 to 3.13"),
        ((3, 14, 0), "2.60.0", False, "it is Python 3.14.0 with Ray 2.60.0, and ranks need Python 3.11 to 3.13"),
        ((3, 11, 9), "2.60.0", True, ""),
        ((3, 12, 1), "2.60.0", True, "it is Python 3.12.1 with Ray 2.60.0, and the cluster has Python 3.11.7 with Ray"),
        ((3, 11, 7), "2.59.1", True, "it is Python 3.11.7 with Ray 2.59.1, and the cluster has Python 3.11.7 with Ray"),
        ((3, 11, 7), "", True, "it is Python 3.11.7 without Ray, and the cluster has Python 3.11.7 with Ray 2.60.0"),
    ],
)
def test_only_ranks_in_ray_need_the_python_and_the_ray_of_the_cluster(version, ray, in_ray, said):
    found = pythons.misfit(Interpreter("/p", version, ray), CLUSTER, in_ray=in_ray)
    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_an_environment_with_another_dljob_is_refused_with_both_versions():
    job = Interpreter("/usr/bin/python3", (3, 11, 7), "2.60.0", "0.1.0")
    said = "it has dljob 0.0.9, and the job runs with dljob 0.1.0, which ranks import: install that there, or none"
    for in_ray in (True, False):
        found = {v: pythons.misfit(Interpreter("/p", (3, 11, 7), "2.60.0", v), job, in_ray=in_ray) for v in VERSIONS}
        assert found == {"": "", "0.1.9": "", "0.0.9": said}


def test_the_dljob_of_an_environment_is_its_own_and_not_that_of_the_import_path(monkeypatch, tmp_path):
    site = tmp_path / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages"
    for folder, version in ((site, "0.0.9"), (tmp_path / "path", "0.1.0")):
        (folder / f"dljob-{version}.dist-info").mkdir(parents=True)
        (folder / f"dljob-{version}.dist-info" / "METADATA").write_text(f"Name: dljob\nVersion: {version}\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    (tmp_path / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    assert pythons.find(str(tmp_path / "bin" / "python")).dljob == "0.0.9"


def test_an_interpreter_is_found_by_path_and_on_the_path(monkeypatch, tmp_path):
    assert pythons.find(sys.executable) == pythons.own_interpreter()
    (tmp_path / "python-of-ours").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONHOME", "/nowhere")  # that of this process is wrong for another one
    assert pythons.find("python-of-ours").version == sys.version_info[:3]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("{}/pyton3", r"there is no such file; did you mean .*/python3\?"),
        ("{}/no/python", "there is no such file$"),
        ("pyton3", r"it is not on PATH; did you mean python3\?"),
        ("julia", "it is not on PATH$"),
        ("{}/deaf", "it is no Python: deaf: no such option"),
        ("{}/mute", "it is no Python: exit code 3"),
        ("{}/text", "it does not run: .*Permission denied"),
    ],
)
def test_what_is_no_interpreter_is_refused_with_the_reason(monkeypatch, tmp_path, wanted, said):
    program(tmp_path, "python3", "exit 0")
    program(tmp_path, "deaf", "echo deaf: no such option >&2; exit 2")
    program(tmp_path, "mute", "exit 3")
    (tmp_path / "text").write_text("")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InterpreterError, match=said):
        pythons.find(wanted.format(tmp_path))


def test_an_interpreter_that_does_not_answer_is_given_up(monkeypatch, tmp_path):
    monkeypatch.setattr(pythons, "LOOK_S", 0.05)
    with pytest.raises(InterpreterError, match=r"it does not run: .*timed out"):
        pythons.find(str(program(tmp_path, "python", "exec sleep 60")))


def test_the_error_names_role_path_and_node(monkeypatch):
    monkeypatch.setattr("platform.node", lambda: "node-7")
    role = role_plan("trainer", ("module", "train.py"), python="/no/python")
    with pytest.raises(InterpreterError) as caught:
        pythons.choose(role)
    words = "role trainer cannot run with python: /no/python on node node-7: there is no such file; correct roles"
    assert str(caught.value).startswith(words)
    end = pythons.refused(caught.value)
    assert (end.ok, end.fatal, end.message, end.error_type) == (False, True, str(caught.value), "InterpreterError")


def test_a_role_without_python_has_that_of_its_host():
    assert pythons.choose(role_plan("trainer", ("module", "train.py"))) is None
    pythons.check_worker(role_plan("trainer", ("class", "app.Trainer")))


def test_a_class_is_refused_with_both_versions(monkeypatch):
    role = role_plan("actor", ("class", "app.Actor"), python=sys.executable)
    assert pythons.choose(role) == pythons.own_interpreter()
    monkeypatch.setattr(pythons, "own_interpreter", lambda: Interpreter("/p", (3, 9, 1), "2.60.0"))
    own = ".".join(map(str, sys.version_info[:3]))
    with pytest.raises(InterpreterError, match=rf"it is Python {own} .*, and the cluster has Python 3\.9\.1 with"):
        pythons.choose(role)


def test_a_worker_says_that_it_is_not_in_its_interpreter(monkeypatch):
    role = role_plan("actor", ("class", "app.Actor"), python=sys.executable)
    pythons.check_worker(role)
    monkeypatch.setattr(sys, "executable", "/usr/bin/other")
    with pytest.raises(InterpreterError, match=r"role actor has python: .*, and Ray started /usr/bin/other instead"):
        pythons.check_worker(role)


def test_a_worker_starts_in_its_interpreter_or_in_the_one_that_says_why_not(monkeypatch, tmp_path):
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    (venv / "pyvenv.cfg").write_text(Path(sys.prefix, "pyvenv.cfg").read_text())
    (venv / "lib").symlink_to(Path(sys.prefix, "lib"))
    python = str(venv / "bin" / "python")
    print_it = "-c 'import sys, dljob, os; print(sys.executable, dljob.__file__, os.environ.get(\"VIRTUAL_ENV\"))'"

    def started(wanted: str) -> str:
        line = f"exec {pythons.launcher(wanted, str(tmp_path))} {print_it}"
        return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout.strip()

    assert started(python).startswith(f"{python} {tmp_path}/python/")
    assert started(python).endswith(f"/dljob/__init__.py {venv}")
    assert started("/no/python").startswith(f"{sys.executable} ")


def test_an_interpreter_is_asked_without_the_files_of_the_current_folder(monkeypatch, tmp_path):
    (tmp_path / "json.py").write_text("raise SystemExit('a file of another user')")
    monkeypatch.chdir(tmp_path)
    assert pythons.find(sys.executable).version == sys.version_info[:3]
    line = f"echo {pythons.launcher('/no/python', str(tmp_path))}"
    said = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert (said.stdout.strip(), said.stderr) == (sys.executable, "")
