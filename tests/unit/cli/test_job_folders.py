"""Jobs by the first digits of their uids; folders of ended jobs, deleted; what shells and scripts ask of a command."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import socket
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dljob
from dljob.api import reach, registry
from dljob.api.local import connection, views
from dljob.api.local.connection import RecordConnection
from dljob.api.registry import RegistryEntry
from dljob.cli import main
from dljob.cli.job_file import Overrides, manifest_of, unfit_here
from dljob.cli.machine.facts import leftovers
from dljob.errors import NotFoundError, SpecError, UnreachableError, UsageError
from dljob.spec.variables import TRACE_CALLS

pytestmark = pytest.mark.usefixtures("home")

DAY = 86400.0


def job(name: str, uid: str, phase: str = "Succeeded", **more: Any) -> RegistryEntry:
    """A job of this process, which lives, as its entry and its last status tell of it."""
    me = os.getpid()
    folder = registry.folder_of(name, uid)
    mine: dict[str, Any] = {"dir": str(folder), "runner": me, "runner_started": registry.start_of(me), **more}
    record = registry.register(RegistryEntry(name=name, uid=uid, **mine))
    (record.folder / "status.json").write_text(json.dumps({"name": name, "uid": uid, "phase": phase, "roles": []}))
    return record


def test_a_job_is_found_by_the_first_digits_of_its_uid(capsys):
    for uid in ("a7efe1", "a7efe2", "b0b0b0"):
        job("train", uid * 5 + "00")
    assert registry.find("b0b0").uid.startswith("b0b0b0")
    assert registry.find("a7efe1").uid.startswith("a7efe1")
    assert main.run(["logs", "a7ef"]) == 3
    assert "a7ef begins the uids of 2 jobs" in capsys.readouterr().err
    assert main.run(["logs", "b0b"]) == 3, "fewer than 4 digits may be a name"


@pytest.mark.parametrize("content", ["", "{}", "[]", "null", '{"environment": []}', '{"environment": null}', "\0"])
def test_a_damaged_entry_hides_no_other_job(content, capsys):
    whole, damaged = job("train", "1" * 32), job("broken", "2" * 32)
    (damaged.folder / "job.json").write_text(content)
    assert registry.records() == [whole]
    assert main.run(["status"]) == 0
    assert "train" in capsys.readouterr().out


@pytest.mark.parametrize("more", [{}, {"environment": None}])
def test_an_entry_without_an_environment_is_a_job(more):
    record = job("train", "1" * 32)
    entry = json.loads((record.folder / "job.json").read_text())
    del entry["environment"]
    (record.folder / "job.json").write_text(json.dumps({**entry, **more}))
    assert registry.records() == [record]


@pytest.mark.parametrize("content", ["null", "[1]"])
def test_a_damaged_status_is_that_of_a_job_that_has_not_ended(content):
    record = job("train", "1" * 32)
    (record.folder / "status.json").write_text(content)
    assert not record.over
    assert not record.stale


def test_an_order_to_an_ended_job_points_to_that_job(capsys):
    job("train", "1" * 32, started=1.0)
    job("train", "2" * 32, started=2.0)
    assert main.run(["stop", "1" * 32]) == 3
    assert "see dljob status 11111111" in capsys.readouterr().err


def test_folders_of_ended_jobs_are_deleted_and_those_that_run_are_not(capsys):
    ended, runs = job("old", "1" * 32), job("new", "2" * 32, phase="Running")
    assert main.run(["delete", "old", "new"]) == 2
    assert "has not ended: Running\n  dljob stop 22222222 --wait" in capsys.readouterr().err
    assert ended.folder.is_dir()
    assert main.run(["delete", "old", "1111"]) == 0
    assert not ended.folder.exists()
    assert runs.folder.is_dir()


def test_a_job_on_a_ray_that_is_gone_is_deleted_by_name_alone(capsys):
    with socket.create_server(("127.0.0.1", 0)) as ray:
        address = f"127.0.0.1:{ray.getsockname()[1]}"
        lost = job("lost", "1" * 32, phase="Running", runner=0, runner_started=0, address=address, started=1.0)
        assert main.run(["delete", "lost"]) == 2
        assert "has not ended: Running" in capsys.readouterr().err
    assert main.run(["prune"]) == 0
    assert lost.folder.is_dir(), "the network may be what is broken"
    assert main.run(["delete", "lost"]) == 0
    assert not lost.folder.exists()


def test_a_folder_outside_the_home_to_which_a_link_leads_is_not_deleted(tmp_path, capsys):
    record, treasure = job("old", "1" * 32), tmp_path / "treasure"
    record.folder.rename(treasure)
    record.folder.symlink_to(treasure)
    assert main.run(["delete", "old"]) == 2
    assert f"{record.dir} is a link to {treasure}, not a folder that dljob made" in capsys.readouterr().err
    assert (treasure / "status.json").is_file()


def test_the_folder_of_an_entry_is_where_it_lies_whatever_it_names(tmp_path, monkeypatch, capsys):
    record = job("old", "1" * 32)
    (record.folder / "logs").mkdir()
    (record.folder / "logs" / "w-0.log").write_text("saved\n")
    moved, link = tmp_path / "moved", tmp_path / "link"
    shutil.copytree(registry.home(), moved)
    link.symlink_to(moved)
    (moved / "jobs" / record.folder.name / "logs" / "w-0.log").write_text("copied\n")
    for home in (moved, link):
        monkeypatch.setenv("DLJOB_HOME", str(home))
        assert main.run(["logs", "old"]) == 0
        assert "copied" in capsys.readouterr().out
        assert main.run(["status", "old"]) == 0
        assert f"folder: {home}/jobs/{record.folder.name}" in capsys.readouterr().out
    registry.find("old").folder.rename(moved / "jobs" / "by-hand")
    assert main.run(["delete", "old"]) == 0
    assert not (moved / "jobs" / "by-hand").exists()
    assert record.over, "the original stays"


def test_jobs_that_ended_some_time_ago_are_pruned(capsys):
    now = time.time()
    old = job("old", "1" * 32, started=now - 8 * DAY)
    fresh = job("fresh", "2" * 32, started=now - 1 * DAY)
    runs = job("runs", "3" * 32, phase="Running", started=now - 9 * DAY)
    assert main.run(["prune", "--dry-run"]) == 0
    assert capsys.readouterr().out == f"old 11111111 {old.dir}\n"
    assert old.folder.is_dir()
    assert main.run(["prune"]) == 0
    assert [each.folder.is_dir() for each in (old, fresh, runs)] == [False, True, True]
    assert main.run(["prune", "--older-than-days", "0"]) == 0
    assert [each.folder.is_dir() for each in (fresh, runs)] == [False, True]
    assert main.run(["prune", "--older-than-days=-1"]) == 2


def test_a_folder_that_cannot_be_deleted_keeps_no_other_one(tmp_path, monkeypatch, capsys):
    foreign, full, old = (job(name, uid * 32, started=float(uid)) for name, uid in (("a", "1"), ("b", "2"), ("c", "3")))
    foreign.folder.rename(tmp_path / "elsewhere")
    foreign.folder.symlink_to(tmp_path / "elsewhere")
    rmtree = shutil.rmtree

    def refuse(folder: Path) -> None:
        if folder == full.folder:
            raise PermissionError(errno.EACCES, "Permission denied")
        rmtree(folder)

    monkeypatch.setattr(registry.shutil, "rmtree", refuse)
    place = tmp_path / "elsewhere"
    stays = f"job a (11111111) stays: {foreign.dir} is a link to {place}, not a folder that dljob made\n"
    assert main.run(["prune", "--dry-run"]) == 1
    printed = capsys.readouterr()
    assert printed.out == f"b 22222222 {full.dir}\nc 33333333 {old.dir}\n"
    assert printed.err == f"{stays}2 jobs would be deleted\n"
    assert main.run(["prune"]) == 1
    printed = capsys.readouterr()
    assert printed.out == f"c 33333333 {old.dir}\n"
    assert printed.err == f"{stays}job b (22222222) stays: cannot delete {full.dir}: Permission denied\n1 job deleted\n"
    assert [each.folder.is_dir() for each in (foreign, full, old)] == [True, True, False]


@pytest.mark.parametrize("where", ["other/boot/pid:[1]", "{host}/{boot}/pid:[1]"])
def test_a_job_whose_runner_cannot_be_seen_from_here_is_not_deleted(where, capsys):
    host, boot, _ = registry.this_host().split("/")
    where = where.format(host=host, boot=boot)
    record = job("far", "1" * 32, phase="Running", runner_started=1, started=1.0, runner_host=where)
    name = where.split("/")[0]
    assert main.run(["prune"]) == 0
    assert f"job far (11111111) stays: it runs on {name}, or was killed there\n0 jobs" in capsys.readouterr().err
    assert main.run(["delete", "far"]) == 2
    assert f"where {name} is gone: rm -r -- {record.dir}" in capsys.readouterr().err
    assert record.folder.is_dir()
    (record.folder / "status.json").write_text('{"phase": "Failed"}')
    assert main.run(["delete", "far"]) == 0, "it has ended, wherever it ran"


def test_commands_that_are_advised_have_each_path_as_one_word(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DLJOB_HOME", str(tmp_path / "team a" / "state"))
    record = job("far", "1" * 32, phase="Running", runner_started=1, started=1.0, runner_host="other/boot/pid:[1]")
    assert main.run(["delete", "far"]) == 2
    hint = capsys.readouterr().err.rpartition("is gone: ")[2]
    assert shlex.split(hint) == ["rm", "-r", "--", record.dir]
    hint = reach._foreign(record, 4711).hint.partition("sudo")[2]
    assert shlex.split(hint) == ["-u", "#4711", f"DLJOB_HOME={registry.home()}", "dljob", "..."]
    (record.folder / "status.json").write_text("{")
    with pytest.raises(NotFoundError) as damaged:
        views.in_folder(record.folder)
    assert shlex.split(damaged.value.hint.partition("; ")[2])[:3] == ["dljob", "replay", record.dir]


@pytest.fixture
def far() -> RegistryEntry:
    """A job whose runner lives on another host, which has the same home folder."""
    record = job("far", "1" * 32, phase="Running", runner_started=1, runner_host="other/boot/pid:[1]")
    (record.folder / "events.jsonl").write_text("")
    return record


def test_a_job_of_another_host_is_shown_with_its_last_phase_and_that_host(far, capsys):
    assert main.run(["status"]) == 0
    assert "  Running on other  " in capsys.readouterr().out
    assert main.run(["status", "-o", "json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["phase"], listed["host"]) == ("Running", "other")
    for command in ("status", "describe"):
        assert main.run([command, "far"]) == 0
        out, err = capsys.readouterr()
        assert out.startswith("far (11111111): Running on other\n")
        assert "it runs on other, or was killed there; this was written 0" in err
    assert "Ray: one of its own on other, which ends with process" in out
    assert main.run(["top"]) == 0
    assert "Running on other" in capsys.readouterr().out
    (far.folder / "status.json").unlink()
    assert main.run(["status", "far"]) == 0
    assert "no status has been written yet" in capsys.readouterr().err
    assert dljob.job("far").status() == {"phase": "Pending", "host": "other"}
    (far.folder / "status.json").write_text('{"phase": "Failed"}')
    assert main.run(["status", "far"]) == 0
    assert capsys.readouterr().out.startswith("far (11111111): Failed\n"), "it has ended, wherever it ran"


@pytest.mark.parametrize("content", ["", '{"phase": "Runn', "[]", '{"name": "far"}'])
def test_a_damaged_status_of_a_job_of_another_host_is_told_as_that(content, far, capsys):
    status = far.folder / "status.json"
    status.write_text(content)
    assert main.run(["status"]) == 0
    assert "  Unknown on other  " in capsys.readouterr().out
    assert main.run(["status", "far"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("far (11111111): Unknown on other\n")
    assert f"{status} is damaged: " in out
    assert f"dljob replay {far.dir} reads the journal instead" in out
    end = {"seq": 1, "time": 160.5, "reason": "Completed", "target": "job", "message": "all roles ended"}
    (far.folder / "events.jsonl").write_text(json.dumps(end) + "\n")
    assert main.run(["status", "far"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("far (11111111): Succeeded\n  Completed: all roles ended; its status.json cannot be")
    assert "or was killed there" not in shown.err


@pytest.mark.parametrize("order", [["stop"], ["restart"], ["scale", "w=2"], ["stack"]])
def test_a_job_of_another_host_takes_no_orders_here(order, far, capsys):
    assert main.run([order[0], far.name, *order[1:]]) == 4
    err = capsys.readouterr().err
    assert "job far runs on other, or was killed there: no command reaches it from this host" in err


def test_a_job_of_another_host_neither_holds_its_name_here_nor_counts_as_a_leftover(far):
    assert registry.living(far.name) is None, "a container that was killed would hold it for ever"
    assert leftovers().jobs == ()
    here = job(far.name, "2" * 32, phase="Running", started=1.0)
    assert registry.find(far.name) == here, "it is older, but commands reach it"
    assert registry.living(far.name) == here


def test_a_follower_of_a_job_of_another_host_waits_for_what_is_written_there(far, monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr(connection, "time", SimpleNamespace(sleep=waits.append))
    way = RecordConnection(far)
    assert (way.notes(), waits) == ([], [])
    assert (way.notes(0, 5.0), waits) == ([], [1.0])
    with pytest.raises(UnreachableError, match="runs on other, or was killed there"):
        way.wait(5.0)


@pytest.mark.parametrize("where", ["{host}/earlier/{pids}", "renamed/{boot}/{pids}", ""])
def test_a_job_that_lost_its_runner_on_this_host_is_deleted(where):
    host, boot, pids = registry.this_host().split("/")
    where = where.format(host=host, boot=boot, pids=pids)
    record = job("lost", "1" * 32, phase="Running", runner_started=1, runner_host=where)
    assert main.run(["delete", "lost"]) == 0
    assert not record.folder.exists()


def test_logs_shows_one_rank_or_one_role(capsys):
    record = job("train", "1" * 32)
    logs = record.folder / "logs"
    logs.mkdir()
    for rank in range(2):
        (logs / f"w-{rank}.log").write_text(f"from {rank}\n")
    assert main.run(["logs", "train", "w/1"]) == 0
    assert capsys.readouterr().out == "[w/1] from 1\n"
    assert main.run(["logs", "train", "w"]) == 0
    assert capsys.readouterr().out == "[w/0] from 0\n[w/1] from 1\n"
    assert main.run(["logs", "train", "w/x"]) == 2
    assert main.run(["logs", "train", "w/1", "--rank", "1"]) == 2


def test_logs_shows_primemasters_log(capsys):
    record = job("train", "1" * 32)
    assert main.run(["logs", "train", "--master"]) == 3
    assert "no log of PrimeMaster" in capsys.readouterr().err
    (record.folder / "logs").mkdir()
    entry = (
        '{{"time": "2026-01-01T00:00:0{}.000Z", "level": "info", "message": "why", "event": "Tick", "actions": {{}}}}\n'
    )
    (record.folder / "logs" / "master.log").write_text("".join(entry.format(n) for n in range(3)))
    assert main.run(["logs", "train", "--master", "--tail", "1"]) == 0
    assert capsys.readouterr().out == "2026-01-01T00:00:02.000Z Tick: why\n"
    assert main.run(["logs", "train", "--master", "--since", "2026-01-01T00:00:01Z"]) == 0
    assert capsys.readouterr().out.count("\n") == 2
    assert main.run(["logs", "train", "w/1", "--master"]) == 2
    assert main.run(["logs", "train", "w/1", "--master", "-n", "team"]) == 2
    assert "--master excludes a role or rank" in capsys.readouterr().err
    handle = dljob.job("train")
    handle.logs(master=True, tail=1)
    assert capsys.readouterr().out == "2026-01-01T00:00:02.000Z Tick: why\n"
    with pytest.raises(UsageError, match="master=True excludes a role or rank"):
        handle.logs(master=True, rank=0)


def test_version_is_a_flag_too(capsys):
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("dljob ")


FILE = """
apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata: {name: train}
spec:
  roles:
  - {name: w, type: Elastic, replicas: 2, entrypoint: {command: ["true"]}, env: [{name: A, value: "1"}]}
"""


def test_flags_change_a_file_for_one_run(tmp_path):
    (tmp_path / "job.yaml").write_text(FILE)
    flags = Overrides(
        name="other",
        set=("roles.w.replicas=4", "spec.roles.0.args=[--lr, '1e-3']", "faultTolerance.maxRestarts=3"),
        env=("MODE=fast=1", "EMPTY="),
    )
    made = manifest_of(tmp_path / "job.yaml", changes=flags)
    assert made.metadata.name == "other"
    assert (made.spec.roles[0].replicas, made.spec.roles[0].args) == (4, ("--lr", "1e-3"))
    assert made.spec.fault_tolerance.max_restarts == 3
    assert {each.name: each.value for each in made.spec.env} == {"MODE": "fast=1", "EMPTY": ""}


def test_the_changed_job_is_checked_and_not_that_of_the_file(tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(FILE.replace('command: ["true"]', "module: train.py"))
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").touch()
    here = partial(unfit_here, file)
    with pytest.raises(SpecError, match=rf"job.yaml:7:.* there is no file train.py in {tmp_path}"):
        manifest_of(file, rules=here)
    assert manifest_of(file, changes=Overrides(set=("code.workingDir=src",)), rules=here).spec.code.working_dir == "src"
    wrong = Overrides(set=("code.workingDir=src", "roles.w.entrypoint.module=typo.py"))
    with pytest.raises(SpecError, match=rf"there is no file typo.py in {tmp_path}/src") as refused:
        manifest_of(file, changes=wrong, rules=here)
    assert [problem.path for problem in refused.value.problems] == ["spec.roles[0].entrypoint.module"]


def test_tracing_of_calls_is_a_variable_of_every_role(tmp_path):
    (tmp_path / "job.yaml").write_text(FILE)
    made = manifest_of(tmp_path / "job.yaml", changes=Overrides(trace_calls=True))
    assert {each.name: each.value for each in made.spec.env} == {TRACE_CALLS: "1"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "roles.x.replicas=4"], "--set roles.x.replicas: there is no x\n  there is w"),
        (["--set", "roles.w.replicas"], "--set roles.w.replicas\n  write --set roles.trainer.replicas=4"),
        (["--set", "roles.w.replica=4"], "did you mean replicas?"),
        (["--set", "roles.w.replicas=[1"], "is no YAML value"),
        (["--env", "MODE"], "write --env NAME=VALUE"),
        (["--name", "Train_1"], "metadata.name"),
    ],
)
def test_run_refuses_flags_that_name_an_unknown_role_or_rank(words, said, tmp_path, capsys):
    (tmp_path / "job.yaml").write_text(FILE)
    assert main.run(["run", str(tmp_path / "job.yaml"), *words]) == 2
    assert said in capsys.readouterr().err
