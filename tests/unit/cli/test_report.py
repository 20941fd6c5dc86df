"""`dljob report`: of a job, of a folder, of a cluster; and a file that is there is not replaced unasked."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fake_kube import add_job
from simulated_folder import simulated

from dljob.cli import main, output_file
from dljob.testing.simulate.drive import case_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    simulated(tmp_path / "job", case_of(5))
    return tmp_path / "job"


def run(*words: str | Path) -> int:
    return main.run([str(word) for word in words])


def data(page: Path) -> dict[str, Any]:
    text = re.search(r'<script type="application/json" id="data">(.*)</script>', page.read_text())
    assert text
    return json.loads(text[1])


def test_a_page_is_written_of_a_folder(folder, tmp_path, capsys):
    page = tmp_path / "job.html"
    assert run("report", f"{folder}/", "-o", page) == 0
    assert f"wrote {page}" in capsys.readouterr().err
    found = data(page)
    assert found["lanes"]
    assert found["live"] is False
    assert found["job"]["cause"]


def test_a_file_that_is_there_is_kept_without_force(folder, tmp_path, capsys):
    page = tmp_path / "job.html"
    page.write_text("mine")
    assert run("report", f"{folder}/", "-o", page) == 2
    assert "add --force" in capsys.readouterr().err
    assert page.read_text() == "mine"
    assert run("report", f"{folder}/", "-o", page, "--force") == 0
    assert data(page)["format"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job", "job.html"]


def test_a_file_written_meanwhile_is_kept_too(folder, tmp_path, monkeypatch):
    page = tmp_path / "job.html"
    whole = output_file.write

    def late(*words: Any, **how: Any) -> int:
        page.write_text("mine")
        return whole(*words, **how)

    monkeypatch.setattr(output_file, "write", late)
    assert run("report", f"{folder}/", "-o", page) == 2
    assert page.read_text() == "mine"


def test_a_folder_that_is_not_there_is_told(folder, tmp_path, capsys):
    assert run("report", f"{folder}/", "-o", tmp_path / "none" / "job.html") == 2
    assert "cannot write" in capsys.readouterr().err


def test_a_folder_and_a_cluster_exclude_each_other(folder, capsys):
    assert run("report", f"{folder}/", "--kubernetes") == 2
    assert "is a path on this machine" in capsys.readouterr().err


def test_a_local_job_is_found_by_its_name(folder, tmp_path, monkeypatch):
    home = tmp_path / "home"
    status = json.loads((folder / "status.json").read_text())
    place = home / "jobs" / f"{status['name']}-{status['uid'][:8]}"
    place.parent.mkdir(parents=True)
    folder.rename(place)
    entry = {"name": status["name"], "uid": status["uid"], "dir": str(place), "environment": {}, "started": 1.0}
    (place / "job.json").write_text(json.dumps(entry))
    monkeypatch.setenv("DLJOB_HOME", str(home))
    page = tmp_path / "job.html"
    assert run("report", status["name"], "-o", page) == 0
    assert data(page)["lanes"]


def test_a_job_of_a_cluster_is_asked_as_status_asks(kube, tmp_path):
    add_job(kube, "hello", phase="Running")
    page = tmp_path / "job.html"
    assert run("report", "hello", "-k", "-o", page) == 0
    assert data(page)["job"]["phase"] == "Running"


def test_a_job_that_never_started_gets_a_page(folder, tmp_path):
    (folder / "job.json").write_text(json.dumps({"name": "x", "uid": "0" * 32, "started": 1.0}))
    (folder / "status.json").unlink()
    page = tmp_path / "job.html"
    assert run("report", f"{folder}/", "-o", page) == 0
    assert any("it never started" in line for line in data(page)["job"]["cause"])
    (folder / "status.json").write_text('{"name": "x')
    assert run("report", f"{folder}/", "-o", page, "--force") == 3
