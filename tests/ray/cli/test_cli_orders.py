"""Jobs seen and ordered about from other processes, and jobs on a Ray that was there before."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cli_kit import Place
from gateway_kit import eventually
from patience import patience

from dljob.logs import marks

pytestmark = [pytest.mark.ray, pytest.mark.timeout(150)]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def users(text: str) -> list[str]:
    """The lines but those that the platform itself writes into the logs."""
    return [line for line in text.splitlines() if "] [dljob] " not in line]


def test_status_restart_events_logs_and_stop_from_another_process(place: Place) -> None:
    with place.running("run", place.job("patient", replicas=2)) as run:
        run.until_all("Running", "step ")
        status = json.loads(place.dljob("status", "job", "-o", "json").stdout)
        assert status["phase"] == "Running"
        assert status["progress"]["step"] > 0
        assert "job" in place.dljob("status").stdout
        assert place.dljob("restart", "job", "worker/2").returncode == 3
        for log in (place.entry()["folder"] / "logs").glob("worker-?.log"):  # its size is marked once a second
            eventually(lambda log=log: marks.read(log)[-1][1] == log.stat().st_size, 10, lambda log=log: f"{log}")
        ordered = datetime.now(UTC).isoformat()
        assert place.dljob("restart", "job", "worker/1").returncode == 0
        run.until(lambda line: "Recovered worker/1" in line)
        after = json.loads(place.dljob("status", "job", "-o", "json").stdout)
        lives = {r["rank"]: (r["incarnation"], r["pid"]) for r in after["ranks"]}
        before = {r["rank"]: (r["incarnation"], r["pid"]) for r in status["ranks"]}
        assert lives[0] == before[0]
        assert lives[1][0] == before[1][0] + 1
        assert "[worker/1] patient 1 here" in place.dljob("logs", "job", "--role", "worker", "--rank", "1").stdout
        decided = place.dljob("logs", "job", "--master").stdout
        assert "epoch 1 begins" in decided
        assert "Commanded -> " in decided
        since = place.dljob("logs", "job", "--since", ordered)
        assert (users(since.stdout), since.stderr) == (["[worker/1] patient 1 here"], ""), "not of its life before"
        assert len(users(place.dljob("logs", "job", "--since", "1h").stdout)) == 3
        assert "Recovered" in place.dljob("events", "job").stdout
        with place.running("logs", "job", "--follow", "--rank", "0") as following:
            stopped = place.dljob("stop", "job", "--wait")
            assert stopped.returncode == 0, stopped.stderr
            code, out, errors = run.end()
            ended, lines, _ = following.end()
            assert ended == 0
            assert users(lines) == ["[worker/0] patient 0 here"]
    assert code == 6
    assert (json.loads(out)["phase"], json.loads(out)["reason"]) == ("Stopped", "StoppedByUser")
    assert "StoppedByUser" in errors
    assert "StoppedByUser" in place.dljob("events", "job").stdout
    assert place.dljob("stop", "job").returncode == 3


@pytest.fixture
def on_ray(place: Place, ray_here: Any) -> tuple[Place, str]:
    """A place whose commands reach the Ray of the tests."""
    import os

    place.env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": os.environ["RAY_AUTH_TOKEN"]}
    return place, ray_here.address


def test_submit_starts_a_job_on_a_running_ray(on_ray: tuple[Place, str]) -> None:
    place, address = on_ray
    done = place.dljob("submit", place.job("quick"), "--address", address, "--name", "other", "--wait")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["answer"] == 42
    started = place.dljob("submit", place.job("patient"), "--address", address)
    assert started.returncode == 0, started.stderr
    assert json.loads(started.stdout)["name"] == "job"
    with place.running("events", "job", "--follow", "-o", "json") as events:
        assert place.dljob("stop", "job", "--wait").returncode == 0
        code, out, _ = events.end()
    assert code == 0
    assert "StoppedByUser" in [json.loads(line)["reason"] for line in out.splitlines()]


def test_submit_without_a_ray_is_refused_with_what_to_do(place: Place) -> None:
    done = place.dljob("submit", place.job("quick"), "--address", "127.0.0.1:1")
    assert done.returncode == 4
    assert "no Ray answers at 127.0.0.1:1" in done.stderr


LAUNCHER = """
import sys
from dljob import DLJobBuilder
job = DLJobBuilder().role("worker").run("user.quick").resource(cpu=0.1).total(2).build()
print(job.submit("first"))
handle = job.submit("second", blocking=False)
print(handle.wait(60)["phase"], handle.result["answer"])
handle.logs(rank=1)
print(handle.events()[-1]["reason"], handle.status()["phase"])
"""


def launcher(place: Place) -> subprocess.CompletedProcess[str]:
    file = place.folder / "launch.py"
    file.write_text(LAUNCHER)
    return subprocess.run(
        [sys.executable, str(file)], env=place.env, capture_output=True, text=True, timeout=patience(100), check=False
    )


def test_submit_from_python_blocks_or_gives_a_handle(on_ray: tuple[Place, str]) -> None:
    place, address = on_ray
    place.env["RAY_ADDRESS"] = address
    done = launcher(place)
    assert done.returncode == 0, done.stderr
    lines = users(done.stdout)
    assert sorted(lines[:2]) == ["[worker/0] quick 0", "[worker/1] quick 1"], (
        "one that blocks shows the output of ranks"
    )
    assert lines[2:] == [
        "0",
        "Succeeded 42",
        "[worker/1] quick 1",
        "Released Succeeded",
    ]


def test_submit_from_python_brings_a_ray_where_none_runs(place: Place) -> None:
    done = launcher(place)
    assert done.returncode == 0, done.stderr
    assert "Succeeded 42" in users(done.stdout)
