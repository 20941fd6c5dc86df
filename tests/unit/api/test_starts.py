"""A job that another process is starting: it is shown, holds its name, and can be stopped, before it has a folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from dljob.api import handle as handles
from dljob.api import registry
from dljob.api.local import views
from dljob.api.registry import RegistryEntry
from dljob.cli import main
from dljob.errors import UnreachableError, UsageError

STARTER = """
import sys
from dljob.api import registry
from dljob.api.handle import announce_start
try:
    with announce_start("ppo", replace=False) as start:
        registry.write_activity(start, "starting Ray: a head and 1 raylet")
        print(start.uid, flush=True)
        if sys.stdin.readline():
            folder = str(registry.folder_of("ppo", start.uid))
            runner = {"runner": start.runner, "runner_started": start.runner_started}
            registry.register_begun(registry.RegistryEntry("ppo", start.uid, folder, **runner), start)
            print("begun", flush=True)
            sys.stdin.read()
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DLJOB_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def starter() -> Iterator[subprocess.Popen[str]]:
    """A process that starts a job `ppo`."""
    command = [sys.executable, "-c", STARTER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline()
        yield process
        process.kill()


def begin(process: subprocess.Popen[str]) -> None:
    """Let the job begin."""
    assert process.stdin
    assert process.stdout
    process.stdin.write("begin\n")
    process.stdin.flush()
    assert process.stdout.readline() == "begun\n"


def test_the_age_of_a_job_counts_from_the_start_of_its_command(starter: subprocess.Popen[str]) -> None:
    (start,) = registry.records()
    begin(starter)
    (job,) = registry.records()
    assert (job.is_starting, job.started) == (False, start.started)
    assert views.summary(job, {}).started == views.summary(start, {}).started


def test_a_job_that_starts_is_shown_with_what_it_waits_for(
    starter: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["status"]) == 0
    assert "  Starting  " in capsys.readouterr().out
    assert main.run(["status", "-o", "json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["name"], listed["phase"]) == ("ppo", "Starting")
    assert listed["message"].startswith("starting Ray: a head and 1 raylet, for ")
    for command in ("status", "why"):
        assert main.run([command, "ppo"]) == 0
        out = capsys.readouterr().out
        assert "Starting" in out
        assert "starting Ray: a head and 1 raylet, for " in out
        assert "folder" not in out, "it has none of its own yet"
        assert main.run([command, listed["uid"][:8], "-o", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["phase"] == "Starting"
    assert starter.poll() is None


def test_a_start_is_watched_until_its_job_has_ended(
    starter: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    phases: list[str] = []

    def end(_seconds: float) -> None:
        begin(starter)
        (registry.find("ppo").folder / "status.json").write_text('{"phase": "Failed"}')

    monkeypatch.setattr(views, "time", SimpleNamespace(sleep=end, time=time.time))
    handles.handle_of(registry.find("ppo")).watch(lambda jobs: phases.extend(job.phase for job in jobs))
    assert phases == ["Starting", "Failed"]


@pytest.mark.parametrize(
    "words", [["events"], ["events", "--follow"], ["logs"], ["logs", "--master"], ["describe"], ["restart"], ["stack"]]
)
def test_what_only_a_begun_job_has_is_refused_at_once(
    words: list[str], starter: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run([words[0], "ppo", *words[1:]]) == 4
    err = capsys.readouterr().err
    assert "job ppo has not begun: starting Ray: a head and 1 raylet, for " in err
    assert "dljob stop ppo" in err
    assert main.run(["delete", "ppo"]) == 2
    assert "has not ended: Starting" in capsys.readouterr().err
    assert starter.poll() is None


def test_a_name_is_taken_from_the_start_on(starter: subprocess.Popen[str]) -> None:
    with (
        pytest.raises(UsageError, match=rf"process {starter.pid} starts a job ppo \(.*\): starting Ray") as refused,
        handles.announce_start("ppo", replace=False),
    ):
        pass
    assert "dljob stop ppo" in refused.value.hint
    with handles.announce_start("ppo", replace=None, is_numbered=True) as second:
        assert second.name == "ppo-2"
        assert registry.living("ppo-2") is None, "a process does not wait for itself"
    assert not second.folder.exists()


def test_a_start_is_stopped_in_favour_of_a_job_that_replaces_it(starter: subprocess.Popen[str]) -> None:
    with handles.announce_start("ppo", replace=True) as second:
        assert second.name == "ppo"
    assert starter.wait() == 130


def test_a_job_that_began_before_it_was_stopped_is_found(
    starter: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (start,) = registry.records()
    # As a session host does, which ignores the signal from then on.
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *_: begin(starter))
    begun = handles.interrupt_start(start)
    assert begun is not None
    assert (begun.uid, begun.is_starting) == (start.uid, False)


def test_a_start_that_does_not_end_is_told_with_its_process(
    starter: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handles, "INTERRUPT_S", 0.0)
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *_: None)
    with pytest.raises(UnreachableError, match=f"process {starter.pid} still starts job ppo"):
        handles.interrupt_start(registry.find("ppo"))


def test_a_start_of_another_user_is_not_stopped(
    starter: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(UnreachableError, match="belongs to user"):
        handles.interrupt_start(registry.find("ppo"))
    assert starter.poll() is None


def test_a_start_whose_process_was_killed_is_gone(
    starter: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (start,) = registry.records()
    starter.kill()
    starter.wait()
    assert registry.records() == []
    assert main.run(["status"]) == 0
    assert "no jobs in" in capsys.readouterr().err
    assert main.run(["stop", "ppo"]) == 3
    assert handles.interrupt_start(start) is None
    with handles.announce_start("ppo", replace=False):
        assert not start.folder.exists(), "nobody else would ever remove it"


def test_a_start_on_another_host_is_not_shown_here(home: Path) -> None:
    folder = home / "jobs" / f"{registry.STARTS}11111111"
    far = RegistryEntry("far", "1" * 32, str(folder), runner=1, runner_started=1, runner_host="other/boot/pid:[1]")
    registry.register(far)
    assert registry.records() == [], "nobody here sees whether its process lives"
    with handles.announce_start("far", replace=False):
        assert folder.exists()
