"""init: what it writes is a job that is valid, has a plan and runs; nothing is overwritten."""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import runpy
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dljob
from dljob.cli import main
from dljob.cli.commands.init import NAME_MOST, job_name
from dljob.spec.loading.load import load, load_file
from dljob.spec.model import Metadata


def run_script(path: Path, monkeypatch: pytest.MonkeyPatch, loaded: Any) -> tuple[Any, list[int], list[int]]:
    """What the script returns, the steps that it told and those that it saved, without a job around it."""
    told: list[int] = []
    saved: list[int] = []
    keeper = SimpleNamespace(load=lambda: loaded, save=lambda step, _state: saved.append(step))
    monkeypatch.setattr(dljob, "checkpoint", keeper, raising=False)
    monkeypatch.setattr(dljob, "progress", lambda step, **_metrics: told.append(step), raising=False)
    monkeypatch.setattr(dljob, "current_worker", lambda: SimpleNamespace(rank=0, world_size=2), raising=False)
    spec = importlib.util.spec_from_file_location("train", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.time, "sleep", lambda _seconds: None)
    return module.main(), told, saved


def test_the_readme_shows_the_job_that_init_writes(tmp_path):
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    (job,) = re.findall(r"^```yaml\n(apiVersion.*?)^```", readme, re.DOTALL | re.MULTILINE)
    assert main.run(["init", str(tmp_path / "hello")]) == 0
    assert load(job) == load_file(tmp_path / "hello" / "dljob.yaml")


@pytest.mark.parametrize("folder", ["My Job_2", "."])
def test_init_writes_a_job_that_runs(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main.run(["init", *([folder] if folder != "." else [])]) == 0
    job = Path(folder) / "dljob.yaml"
    assert re.search(r"\n  dljob run '?(My Job_2/)?dljob.yaml'?\n$", capsys.readouterr().err)
    assert main.run(["validate", str(job)]) == 0
    assert main.run(["plan", str(job)]) == 0
    assert f"name: {job_name(job.resolve().parent.name)}}}" in job.read_text()
    result, told, saved = run_script(job.with_name("train.py"), monkeypatch, None)
    assert (result["steps"], told, saved) == (20, list(range(1, 21)), [5, 10, 15, 20])
    assert run_script(job.with_name("train.py"), monkeypatch, (15, 0.1))[2] == [20]


def test_the_script_of_init_trains_as_a_program_too(tmp_path, monkeypatch):
    assert main.run(["init", str(tmp_path)]) == 0
    steps: list[int] = []
    keeper = SimpleNamespace(load=lambda: (19, 0.1), save=lambda *_: None)
    monkeypatch.setattr(dljob, "checkpoint", keeper, raising=False)
    monkeypatch.setattr(dljob, "progress", lambda step, **_metrics: steps.append(step), raising=False)
    monkeypatch.setattr(dljob, "current_worker", lambda: SimpleNamespace(rank=0, world_size=2), raising=False)
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    runpy.run_path(str(tmp_path / "train.py"), run_name="__main__")
    assert steps == [20]


def test_the_fields_that_are_commented_out_are_valid_too(tmp_path):
    assert main.run(["init", str(tmp_path)]) == 0
    job = tmp_path / "dljob.yaml"
    job.write_text(re.sub(r"^    # ", "    ", job.read_text(), flags=re.MULTILINE))
    assert "\n    accelerator:" in job.read_text()
    assert main.run(["validate", str(job)]) == 0


@pytest.mark.parametrize("there", ["dljob.yaml", "train.py"])
def test_init_overwrites_no_file(there, tmp_path, capsys):
    (tmp_path / there).write_text("mine")
    assert main.run(["init", str(tmp_path)]) == 2
    assert f"{tmp_path / there}: there already, and not overwritten" in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(there, "mine")]


@pytest.mark.parametrize("file", ["train.py", "dljob.yaml"])
def test_init_on_a_full_disk_leaves_no_file(file, tmp_path, monkeypatch, capsys):
    opened = Path.open

    def open_if_room(path, *args, **options):
        if file in path.name:
            path.touch()  # as on a full volume: a name takes no block
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened(path, *args, **options)

    with monkeypatch.context() as full:
        full.setattr(Path, "open", open_if_room)
        assert main.run(["init", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"cannot write {tmp_path / file}: No space left on device" in said
    assert "make room" in said
    assert list(tmp_path.iterdir()) == []
    assert main.run(["init", str(tmp_path)]) == 0


def test_init_refuses_a_folder_that_cannot_be_made(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main.run(["init", str(tmp_path / "file")]) == 1
    assert "File exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("folder", "name"),
    [("train", "train"), ("My Job_2", "my-job-2"), ("42", "hello"), ("2nd-try-", "nd-try"), ("", "hello"),
     ("日本", "hello"), ("x" * 60, "x" * NAME_MOST)],
)  # fmt: skip
def test_a_job_is_named_after_its_folder(folder, name):
    assert job_name(folder) == name
    assert Metadata(name=name).name == name
