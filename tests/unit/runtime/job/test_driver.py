"""The launcher once versions are right: whom it finds, what it starts, how it ends; without a Ray."""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from dljob import ray_private
from dljob.errors import DeadlineError, UnreachableError, UsageError
from dljob.runtime.job import driver, gateway
from dljob.runtime.job.driver import ATTEMPT, drive

UID = "0123456789abcdef" * 2


class Job:
    """A job that tells some notes and ends."""

    def __init__(self, phase: str = "Succeeded", notes: int = 2) -> None:
        self.name = "j"
        self.phase = phase
        self.told = [
            {"seq": n, "time": 1.0, "reason": "R", "target": "w", "message": f"note {n}"} for n in range(1, notes + 1)
        ]

    def notes(self, after: int, _timeout_s: float) -> list[dict[str, Any]]:
        return [note for note in self.told if note["seq"] > after][:1]

    def final(self) -> dict[str, Any] | None:
        return {"phase": self.phase, "reason": "Because", "message": "of this"} if self.phase else None

    left = False

    def let_leave(self) -> None:
        self.left = True


class World:
    """What the driver finds and does."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = home / "jobs" / f"j-{UID[:8]}"
        self.there: list[Job | None] = [None]
        """What `find` gives, call by call; the last one again and again."""
        self.started: Job | Exception = Job()
        self.launched: list[dict[str, Any]] = []
        self.gateways: list[tuple[Any, ...]] = []
        self.gateway_error: Exception | None = None
        monkeypatch.setenv("DLJOB_HOME", str(home))
        monkeypatch.setattr(driver, "connect", lambda **_: None)
        monkeypatch.setattr(driver, "find", self._find)
        monkeypatch.setattr(driver, "begin", self._launch)
        monkeypatch.setattr(gateway, "ensure", self._ensure)
        monkeypatch.setattr(driver.pods, "CODE", str(home / "code"))
        self.spec = home / "spec.json"
        roles = [{"name": "w", "entrypoint": {"class": "a.B"}}]
        self.spec.write_text(json.dumps({"metadata": {"name": "j"}, "spec": {"roles": roles},
                                         "apiVersion": "dljob.io/v1alpha1", "kind": "DLJob"}))  # fmt: skip

    def _find(self, _manifest: Any, **_: Any) -> Any:
        return self.there.pop(0) if len(self.there) > 1 else self.there[0]

    def _launch(self, _manifest: Any, **how: Any) -> Any:
        self.launched.append(how)
        how["job_dir"].mkdir(parents=True, exist_ok=True)
        if isinstance(self.started, Exception):
            raise self.started
        return self.started

    def _ensure(self, *args: Any) -> str:
        self.gateways.append(args)
        if self.gateway_error:
            raise self.gateway_error
        return "10.0.0.1:8266"

    def drive(self, attempt: int = 0, spec: str = "", home: str = "", carried: str = "") -> Any:
        where = {"spec": spec or str(self.spec), "carried": carried, "home": home, "host": "10.0.0.1", "port": 8266}
        return drive(argparse.Namespace(uid=UID, attempt=attempt, **where))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    before = signal.getsignal(signal.SIGTERM)
    yield World(tmp_path, monkeypatch)
    signal.signal(signal.SIGTERM, before)


def test_a_job_that_is_not_there_is_started_and_seen_to_its_end(world, capsys):
    assert world.drive() == 0
    (how,) = world.launched
    assert (how["job_dir"], how["code_dir"], how["uid"]) == (world.folder, None, UID)
    assert how["own_nodes"], "its RayCluster is made from its plan"
    assert (world.folder / ATTEMPT).read_text() == "0\n"
    assert world.gateways == [("10.0.0.1", 8266, str(world.folder.parents[1]))]
    out = capsys.readouterr().out.splitlines()
    assert [line for line in out if "note" in line] == ["[dljob] 00:00:01 R w: note 1", "[dljob] 00:00:01 R w: note 2"]
    assert out[-1] == "[dljob] j Succeeded: Because of this"


def test_a_job_that_failed_is_exit_code_1(world):
    world.started = Job("Failed")
    assert world.drive() == 1


def test_a_suspended_job_is_neither_exit_code_0_nor_1(world):
    world.started = Job("Suspended")
    assert world.drive() == 3


def test_a_job_that_is_there_is_waited_for(world, capsys):
    world.there = [Job()]
    assert world.drive(attempt=3) == 0
    assert world.launched == []
    assert len(world.gateways) == 1
    assert "exists already" in capsys.readouterr().out


def test_user_code_that_the_init_container_brought_is_the_code(world, tmp_path):
    (tmp_path / "code").mkdir()
    world.drive()
    (tmp_path / "code" / "train.py").touch()
    world.drive()
    assert [how["code_dir"] for how in world.launched] == [None, tmp_path / "code"]


def test_a_spec_that_the_master_cannot_run_is_refused_in_the_loaders_words(world):
    world.started = UnreachableError("PrimeMaster of j could not be made")
    whole = json.loads(world.spec.read_text())
    whole["spec"]["roles"][0]["replicaz"] = 2
    world.spec.write_text(json.dumps(whole))
    refused = world.drive()
    assert refused.reason == "InvalidSpec"
    assert "replicaz" in refused.message
    assert world.gateways == []


def test_a_launcher_that_loses_the_race_to_start_waits_for_the_winners_job(world):
    world.started = UsageError("an actor of that name exists already")
    world.there = [None, Job("Failed")]
    assert world.drive() == 1
    assert len(world.launched) == 1


def test_the_folder_of_an_earlier_attempt_is_put_aside(world):
    world.folder.mkdir(parents=True)
    (world.folder / ATTEMPT).write_text("0\n")
    (world.folder / "status.json").write_text("{}")
    world.there = [ended := Job("Failed")]
    assert world.drive(attempt=1) == 0
    assert ended.left, "its master is leaving, and has the name that the next one needs"
    assert (world.folder.with_name(f"{world.folder.name}.0") / "status.json").is_file()
    assert (world.folder / ATTEMPT).read_text() == "1\n"


def test_a_job_of_an_earlier_attempt_that_lives_is_not_put_aside(world):
    world.folder.mkdir(parents=True)
    (world.folder / ATTEMPT).write_text("0\n")
    living = Job("")
    living.final = lambda: next(finals)  # type: ignore[method-assign]
    finals = iter([None, {"phase": "Succeeded"}])
    world.there = [living]
    assert world.drive(attempt=1) == 0
    assert world.launched == []


def test_a_job_runs_without_a_gateway_and_says_so(world, capsys):
    world.gateway_error = UnreachableError("the port is taken")
    assert world.drive() == 0
    assert "there is no gateway: the port is taken" in capsys.readouterr().out


@pytest.mark.parametrize("error", [DeadlineError("no answer"), UnreachableError("no Ray")])
def test_an_error_that_may_pass_is_no_refusal(world, capsys, error):
    world.started = error
    assert world.drive() == 1
    assert capsys.readouterr().out.splitlines()[-1] == f"[dljob] {type(error).__name__}: {error}"


def test_a_launcher_told_to_end_leaves_the_job_alone(world, capsys):
    job = world.started = Job("", notes=0)
    waits = threading.Event()

    def final() -> None:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
        waits.wait(10)

    job.final = final  # type: ignore[method-assign]
    with pytest.raises(SystemExit) as ended:
        world.drive()
    assert ended.value.code == 143
    assert "and the job goes on" in capsys.readouterr().out


def test_a_spec_that_ray_keeps_is_read_from_there(world, monkeypatch, capsys):
    kept = {"gcs://dljob-j.json": world.spec.read_bytes()}
    monkeypatch.setattr(ray_private, "kv_get", kept.get)
    (world.spec.parent / "code").mkdir()
    (world.spec.parent / "code" / "others.py").touch()
    assert world.drive(spec="gcs://dljob-j.json") == 0
    assert not world.launched[-1]["own_nodes"], "nobody makes nodes for it on another's RayCluster"
    assert world.launched[0]["code_dir"] is None
    assert len(world.launched) == 1
    refused = world.drive(spec="gcs://gone.json")
    assert refused.reason == "InvalidSpec"
    assert "Ray does not keep gcs://gone.json any more" in refused.message


def test_the_handover_of_the_last_attempt_goes_to_the_master(world, monkeypatch, tmp_path, capsys):
    (tmp_path / "carried.json").write_text('{"attempt": 1}')
    monkeypatch.setattr(ray_private, "kv_get", {"gcs://c.json": b'{"attempt": 2}'}.get)
    for where in ("", str(tmp_path / "carried.json"), "gcs://c.json", str(tmp_path / "gone"), "gcs://gone"):
        world.drive(attempt=2, carried=where)
    handed = [how["carried"] for how in world.launched]
    assert handed == ["", '{"attempt": 1}', '{"attempt": 2}', "", ""]
    said = [
        line for line in capsys.readouterr().out.splitlines() if "state of the previous attempt cannot be read" in line
    ]
    assert len(said) == 2


def test_a_ray_that_does_not_let_us_in_costs_no_spec(world, monkeypatch):
    def refuse() -> None:
        raise UnreachableError("no Ray")

    monkeypatch.setattr(driver, "connect", refuse)
    assert world.drive(spec="gcs://dljob-j.json") == 1


def test_a_pod_that_is_not_ours_has_another_home(world, monkeypatch, tmp_path):
    monkeypatch.delenv("DLJOB_HOME")
    assert world.drive(home=str(tmp_path / "there")) == 0
    assert world.launched[0]["job_dir"].parent == tmp_path / "there" / "jobs"
    assert world.gateways[0][2] == str(tmp_path / "there")
    monkeypatch.setenv("DLJOB_HOME", str(tmp_path / "ours"))
    world.drive(home=str(tmp_path / "there"))
    assert world.launched[1]["job_dir"].parent == tmp_path / "ours" / "jobs"
