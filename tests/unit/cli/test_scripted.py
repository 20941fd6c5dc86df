"""`dljob torchrun --to HOST:PORT`: no way out of the command leaves a job behind that nobody asked to go on."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dljob.api import handle as handles
from dljob.api.logs import LogTail
from dljob.api.torchrun_console import Chosen, Console
from dljob.cli import output, scripted, watch
from dljob.errors import DeadlineError, SpecError, UsageError
from dljob.spec.loading.load import parse


class Handle:
    """A job that only notes what it is told."""

    name, uid, connection = "train", "0" * 32, None
    record: Any = None

    def __init__(self, folder: Path, *, ends: bool = True) -> None:
        self.dir, self.ends, self.told = folder, ends, list[str]()

    def stop(self) -> None:
        self.told.append("stop")

    def wait(self, timeout: float) -> None:
        self.told.append(f"wait {timeout:g}")
        if not self.ends:
            raise DeadlineError("not over")


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("dljob.cli.runner._heard", float("-inf"))  # no signal came before
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signals: None) -> Handle:
    made = Handle(tmp_path)
    (tmp_path / "logs").mkdir()

    def submitted(*_: object, **__: object) -> Handle:
        made.told.append("submit")
        return made

    monkeypatch.setattr(handles, "submit", submitted)
    return made


def run(log_dir: Path | None = None) -> int:
    line = SimpleNamespace(to="h:1", log_dir=log_dir and str(log_dir))
    return scripted.on_ray(None, Console(1), line)  # type: ignore[arg-type]


def signalled(number: signal.Signals) -> Any:
    def look(*_: object) -> dict[str, Any]:
        os.kill(os.getpid(), number)
        signal.sigtimedwait([], 10)  # the handler ends it
        raise AssertionError("no signal came")

    return look


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("ends", [True, False])
def test_a_signal_stops_the_job(
    number: signal.Signals, ends: bool, job: Handle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job.ends = ends
    monkeypatch.setattr(watch, "watch", signalled(number))
    assert run() == 130
    assert job.told == ["submit", "stop", "wait 20"]
    assert ("train has not ended yet: dljob status train" in capsys.readouterr().err) is not ends


def close_stderr(monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    """From now on nobody reads what the command says."""

    def say(_text: str) -> None:
        raise error

    monkeypatch.setattr(output, "say", say)


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize(
    ("number", "error"),
    [(signal.SIGINT, BrokenPipeError()), (signal.SIGHUP, OSError(errno.EIO, "Input/output error"))],
)
def test_a_signal_stops_the_job_though_its_pipe_or_terminal_is_closed(
    number: signal.Signals, error: OSError, ends: bool, job: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`| tee log` dies of the same Ctrl-C, and a terminal's end is a SIGHUP."""
    job.ends = ends

    def look(*_: object) -> dict[str, Any]:
        close_stderr(monkeypatch, error)
        return signalled(number)()

    monkeypatch.setattr(watch, "watch", look)
    assert run() == 130
    assert job.told == ["submit", "stop", "wait 20"]


def test_a_job_of_this_machine_that_is_stopped_ends_with_130_though_its_pipe_is_closed(
    job: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = scripted.LocalRunner.__new__(scripted.LocalRunner)
    job.record = SimpleNamespace(over=True, status=lambda: {"phase": "Stopped"})
    here._handle = job  # type: ignore[assignment]
    orders: list[str] = []
    job.connection = SimpleNamespace(command=lambda *_, by: orders.append(by))
    close_stderr(monkeypatch, BrokenPipeError())
    assert here._stop(scripted.Interrupted("SIGHUP")) == 130
    assert orders == [f"pid {os.getpid()}, which received SIGHUP"]


@pytest.mark.parametrize("when", ["at once", "while watching"])
def test_a_pipe_that_is_closed_stops_the_job(when: str, job: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(*_: object) -> dict[str, Any]:
        close_stderr(monkeypatch, BrokenPipeError())
        output.say("step 1")
        raise AssertionError("nobody reads it")

    if when == "at once":
        close_stderr(monkeypatch, BrokenPipeError())
    monkeypatch.setattr(watch, "watch", look)
    with pytest.raises(BrokenPipeError):
        run()
    assert job.told == ["submit", "stop", "wait 20"]


def test_a_signal_that_comes_with_the_closed_pipe_still_stops_the_job(
    job: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def say(text: str) -> None:
        if text.startswith("stopping") and "stop" not in job.told and not heard:
            heard.append(True)
            os.kill(os.getpid(), signal.SIGINT)
        raise BrokenPipeError

    heard: list[bool] = []
    monkeypatch.setattr(output, "say", say)
    assert run() == 130
    assert job.told == ["submit", "stop", "wait 20"]


def test_a_folder_for_logs_that_cannot_be_is_refused_before_there_is_a_job(job: Handle, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--log-dir"):
        run(tmp_path / "file")
    assert job.told == []


def test_a_link_that_cannot_be_made_after_all_stops_the_job(job: Handle, tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "train-00000000").write_text("somebody else's")
    with pytest.raises(UsageError, match="File exists"):
        run(tmp_path / "links")
    assert job.told == ["submit", "stop", "wait 20"]


def test_the_logs_are_linked(job: Handle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def over(*_: object) -> dict[str, Any]:
        return {"phase": "Succeeded"}

    monkeypatch.setattr(watch, "watch", over)
    assert run(tmp_path / "new" / "links") == 0
    assert (tmp_path / "new" / "links" / "train-00000000").resolve() == tmp_path / "logs"
    assert job.told == ["submit"]


@pytest.mark.parametrize(("phase", "code"), [("Succeeded", 0), ("Failed", 1)])
def test_a_job_of_this_machine_ends_with_the_exit_code_of_its_phase(
    job: Handle, phase: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    here = scripted.LocalRunner.__new__(scripted.LocalRunner)
    assert here.finish(job, {"phase": phase}, {}) == code  # type: ignore[arg-type]
    assert f"journal, logs and checkpoints: {job.dir}" in capsys.readouterr().err


def test_a_backend_that_cannot_run_it_here_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTRIBUTED_BACKEND", "YR")
    role = {"name": "w", "type": "Elastic", "entrypoint": {"module": "train.py"}}
    manifest = parse(
        {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "j"}, "spec": {"roles": [role]}}
    )
    with pytest.raises(SpecError, match="the backend yr lacks elastic"):
        scripted.run_here(manifest, Console(1), SimpleNamespace(log_dir=None))  # type: ignore[arg-type]


BAR = "  0%|   |\r 50%|#  |\r100%|###|"


def output_of(job: Handle, text: str, console: Console) -> None:
    """Show the output of a rank from its begin to its end."""
    (job.dir / "logs" / "w-0.log").write_text(text)
    with scripted.Lined(job, console):  # type: ignore[arg-type]
        pass


def test_a_terminal_shows_what_is_left_of_a_progress_bar(
    job: Handle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output_of(job, f"{BAR}\ndone\n", Console(1))
    assert capsys.readouterr().out == f"{BAR}\ndone\n", "a file gets the bytes"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    output_of(job, f"{BAR}\ndone\n", Console(1, tee=Chosen(everyone=True)))
    assert capsys.readouterr().out == "[w0]:100%|###|\n[w0]:done\n"


def test_a_terminal_shows_a_progress_bar_before_it_is_full(
    job: Handle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scripted, "UNFINISHED_S", 0.0)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    log, seen = job.dir / "logs" / "w-0.log", ""
    log.write_text(BAR[:20])
    end = time.monotonic() + 60
    with scripted.Lined(job, Console(1)):  # type: ignore[arg-type]
        while not seen and time.monotonic() < end:
            seen = capsys.readouterr().out
            time.sleep(0.01)
        log.write_text(BAR)
    assert (seen, capsys.readouterr().out.splitlines()[-1]) == (" 50%|#  |\n", "100%|###|")


def test_an_unfinished_line_is_due_at_intervals_while_it_changes(tmp_path: Path) -> None:
    now = 0.0
    lines, log = scripted.UnfinishedLines(lambda: now), LogTail("w", 0, tmp_path)

    def due(at: float, rest: bytes) -> list[str]:
        nonlocal now
        now, log.rest = at, rest
        return [line.text for line in lines.due([log])]

    assert due(0, b"") == due(5, b"") == due(14, b"10%") == []
    assert due(15, b"11%") == ["11%"]
    assert due(24, b"20%") == due(30, b"11%") == []
    assert due(30, b"26%") == ["26%"]
    assert due(31, b"") == due(40, b"next") == []
