"""A job's name on this machine: taken while a job of that name runs, free again when it ended, failed or was lost."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from dljob.api import handle as handles
from dljob.api import registry
from dljob.api.registry import RegistryEntry
from dljob.errors import NotFoundError, PlacementError, UnreachableError, UsageError
from dljob.runtime.backend import connect
from dljob.runtime.job import launch
from dljob.spec.loading.load import parse


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DLJOB_HOME", str(tmp_path))
    return tmp_path


def job(name: str = "ppo", uid: str = "0" * 32, *, phase: str = "", **more: Any) -> RegistryEntry:
    mine = {"runner": os.getpid(), "runner_started": registry.start_of(os.getpid())}
    folder = registry.folder_of(name, uid)
    record = registry.register(RegistryEntry(name=name, uid=uid, dir=os.fspath(folder), **{**mine, **more}))
    if phase:
        (folder / "status.json").write_text(json.dumps({"phase": phase}))
    return record


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the jobs that were launched."""
    names: list[str] = []
    monkeypatch.setattr(connect, "connect", lambda *_, **__: "here:1")
    monkeypatch.setattr(launch, "launch", lambda manifest, **_: names.append(manifest.metadata.name))
    return names


def submit(tmp_path: Path, **more: Any) -> Any:
    role = {"name": "w", "entrypoint": {"class": "a.B"}}
    head = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "ppo"}}
    return handles.submit(parse({**head, "spec": {"roles": [role]}}), code_dir=tmp_path, **more)


@pytest.mark.parametrize("name", ["ppo", "0000000", "0" * 32, "ppo-00000000"])
def test_a_job_whose_folder_may_not_be_read_is_not_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Path(job().dir) / registry.ENTRY
    read = registry.read_plain

    def refuse(path: Path) -> bytes:
        if path == entry:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return read(path)

    monkeypatch.setattr(registry, "read_plain", refuse)
    monkeypatch.setattr(registry, "records", list)
    with pytest.raises(UnreachableError, match=f"Permission denied: {entry}"):
        registry.find(name)
    with pytest.raises(NotFoundError, match="no job 'grpo'"):
        registry.find("grpo")


def test_a_home_that_may_not_be_listed_or_written_is_told_as_what_it_is(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert registry.records() == []
    (home / "jobs").mkdir()
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    with pytest.raises(UnreachableError, match="Read-only file system"):
        registry.check_home()
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=0))
    with pytest.raises(UnreachableError, match="Permission denied"):
        registry.check_home()
    monkeypatch.setattr(os, "listdir", Mock(side_effect=PermissionError(errno.EACCES, os.strerror(errno.EACCES))))
    with pytest.raises(UnreachableError, match=f"Permission denied: {home}/jobs"):
        registry.records()


def test_a_name_of_another_user_in_a_shared_home_is_told_as_that(
    home: Path, tmp_path: Path, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, open_file = home / "jobs" / ".ppo.lock", os.open
    lock.parent.mkdir()
    lock.touch()
    owner = lock.stat().st_uid

    def refuse(path: Any, *more: Any, **options: Any) -> int:
        if str(path).endswith(".ppo.lock"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return open_file(path, *more, **options)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UnreachableError, match="cannot keep jobs in"):
        submit(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(UnreachableError, match=f"the job name ppo is in use by user {owner} in {home}") as refused:
        submit(tmp_path)
    assert "another name" in refused.value.hint
    lock.unlink()
    with pytest.raises(UnreachableError, match="cannot keep jobs in"):
        submit(tmp_path)
    assert not started


def test_a_second_submit_of_a_name_is_refused_with_the_way_out(tmp_path: Path, started: list[str]) -> None:
    first = job()
    with pytest.raises(UsageError, match="runs already") as refused:
        submit(tmp_path)
    assert first.dir in refused.value.message
    assert "--replace" in refused.value.hint
    assert "dljob stop ppo" in refused.value.hint
    assert not started


def test_a_namesake_that_is_being_stopped_is_waited_for(tmp_path: Path, started: list[str]) -> None:
    job(phase="Stopping")
    with pytest.raises(UsageError, match="still being stopped") as refused:
        submit(tmp_path)
    assert "dljob stop ppo --wait" in refused.value.hint
    assert not started


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"phase": "Succeeded"}, id="succeeded"),
        pytest.param({"phase": "Failed"}, id="failed"),
        pytest.param({"runner_started": 1}, id="its runner is gone"),
        pytest.param({"runner": 0, "address": "127.0.0.1:1"}, id="its Ray is gone"),
        pytest.param({"name": "other"}, id="another name"),
    ],
)
def test_a_name_that_no_living_job_has_is_free(tmp_path: Path, started: list[str], other: dict[str, Any]) -> None:
    job(**other)
    submit(tmp_path)
    assert started == ["ppo"]


@pytest.mark.parametrize("error", [None, NotFoundError("job ppo has ended"), UnreachableError("job ppo is lost")])
def test_replace_stops_the_namesake_first_and_one_that_began_meanwhile(
    tmp_path: Path, started: list[str], monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    job()
    stopped: list[str] = []

    def stop(self: handles.JobHandle, *, wait: bool = False) -> None:
        assert (wait, started) == (True, [])
        stopped.append(self.uid)
        (self.dir / "status.json").write_text(json.dumps({"phase": "Failed"}))
        if error:
            raise error

    monkeypatch.setattr(handles.JobHandle, "stop", stop)
    monkeypatch.setattr(connect, "connect", lambda *_, **__: str(job(uid="1" * 32).uid))  # between the two looks
    submit(tmp_path, replace=True)
    assert (stopped, started) == (["0" * 32, "1" * 32], ["ppo"])


def test_one_of_two_jobs_of_a_name_that_begin_at_once_is_refused(
    tmp_path: Path, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "connect", lambda *_, **__: str(job("ppo", "1" * 32).uid))  # between the two looks
    with pytest.raises(UsageError, match="runs already"):
        submit(tmp_path)
    assert not started


@pytest.mark.parametrize(
    ("trouble", "names"), [(PlacementError("no such backend"), []), (UnreachableError("no answer"), ["ppo"])]
)
def test_only_a_job_that_may_have_begun_keeps_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: Exception, names: list[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise trouble

    monkeypatch.setattr(connect, "connect", lambda *_, **__: "here:1")
    monkeypatch.setattr(launch, "launch", fail)
    with pytest.raises(type(trouble)):
        submit(tmp_path)
    assert [one.name for one in registry.records()] == names


def test_a_home_that_cannot_be_written_is_told(home: Path, started: list[str], tmp_path: Path) -> None:
    (home / "jobs").write_text("a file")
    with pytest.raises(UnreachableError, match=r"cannot keep jobs in .*/jobs is no folder"):
        submit(tmp_path)
    assert not started


def test_a_runner_that_nobody_waits_for_is_gone() -> None:
    """So it is under a first process of a container that waits for no child: its job would keep the name for ever."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert registry.start_of(child.pid) > 0
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
        assert registry.start_of(child.pid) == 0


def test_a_name_that_was_derived_gets_a_number(tmp_path: Path, started: list[str]) -> None:
    job()
    made = [submit(tmp_path, is_numbered=True, replace=None, runner=os.getpid()).name for _ in range(2)]
    (registry.records()[0].folder / "status.json").write_text(json.dumps({"phase": "Succeeded"}))
    made.append(submit(tmp_path, is_numbered=True, replace=None, runner=os.getpid()).name)
    assert made == started == ["ppo-2", "ppo-3", "ppo"]


def test_two_runs_that_begin_at_once_get_two_names(
    tmp_path: Path, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "connect", lambda *_, **__: str(job("ppo", "1" * 32).uid))
    assert submit(tmp_path, is_numbered=True).name == "ppo-2"
    assert started == ["ppo-2"]


def test_a_numbered_name_is_no_longer_than_a_name_may_be() -> None:
    names = handles.numbered_names("a" * 45 + "-b")
    assert [next(names) for _ in range(3)] == ["a" * 45 + "-b", "a" * 45 + "-2", "a" * 45 + "-3"]


def test_a_command_that_cannot_replace_a_job_does_not_advise_it(tmp_path: Path, started: list[str]) -> None:
    job()
    with pytest.raises(UsageError, match="runs already") as refused:
        submit(tmp_path, replace=None)
    assert refused.value.hint == "stop it (dljob stop ppo), or take another name (--name)"
    assert not started


@pytest.mark.parametrize("imports_code", [True, False])
def test_rays_workers_have_the_code_on_their_path_only_where_they_import_it(
    tmp_path: Path, started: list[str], monkeypatch: pytest.MonkeyPatch, imports_code: bool
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(connect, "connect", lambda *_, imports_code, **__: asked.append(imports_code) or "here:1")
    submit(tmp_path, imports_code=imports_code)
    assert (asked, started) == ([imports_code], ["ppo"])
