"""`dljob torchrun --to HOST:PORT`: no way out of the command leaves a job behind that nobody asked to go on."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dljob.api import handle as handles
from dljob.api import torchrun_line
from dljob.api.torchrun_console import Chosen, Console
from dljob.cli import output, scripted, watch
from dljob.cli.rank_output import EVERYTHING, NOTHING
from dljob.cli.runner import SIGNALS, Runner
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
    monkeypatch.setattr("dljob.cli.runner._signal_at", float("-inf"))  # no signal came before
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
    line = SimpleNamespace(to="h:1", log_dir=log_dir and str(log_dir), name=None, rdzv_id="none")
    return scripted.on_ray(None, Console(1), line)  # type: ignore[arg-type]


def signalled(number: signal.Signals) -> Any:
    def look(*_: object) -> dict[str, Any]:
        os.kill(os.getpid(), number)
        signal.sigtimedwait([], 10)  # the handler ends it
        raise AssertionError("no signal came")

    return look


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("ends", [True, False])
def test_a_signal_stops_the_job(number, ends, job, monkeypatch, capsys):
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
def test_a_signal_stops_the_job_though_its_pipe_or_terminal_is_closed(number, error, ends, job, monkeypatch):
    """`| tee log` dies of the same Ctrl-C, and a terminal's end is a SIGHUP."""
    job.ends = ends

    def look(*_: object) -> dict[str, Any]:
        close_stderr(monkeypatch, error)
        return signalled(number)()

    monkeypatch.setattr(watch, "watch", look)
    assert run() == 130
    assert job.told == ["submit", "stop", "wait 20"]


def test_a_job_of_this_machine_that_is_stopped_ends_with_130_though_its_pipe_is_closed(job, monkeypatch):
    here = scripted.LocalRunner.__new__(scripted.LocalRunner)
    job.record = SimpleNamespace(over=True, status=lambda: {"phase": "Stopped"})
    here._handle, here._record, here._has_stopped = job, None, False  # type: ignore[assignment]
    orders: list[str] = []
    job.connection = SimpleNamespace(command=lambda *_, by: orders.append(by))
    close_stderr(monkeypatch, BrokenPipeError())
    for interruption in (*map(scripted.Interrupted, SIGNALS), None):
        here._has_stopped = False
        assert here._stop(interruption) == 130
    # `timeout` and a person are told apart, whose signal it was.
    assert [order.partition(",")[0] for order in orders] == ["Ctrl-C (SIGINT)", "SIGTERM", "SIGHUP", "its command"]
    assert here._killed().message.startswith("stopped by its command, whose output nobody reads any more; ")


def save_at_stop(job: Handle) -> None:
    """Let the rank print in its signal handler."""
    (job.dir / "logs" / "w-0.log").write_text("step 7\nsaved at step 7\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_what_ranks_print_when_they_are_stopped_is_shown(number, job, monkeypatch, capsys):
    monkeypatch.setattr(watch, "watch", signalled(number))
    monkeypatch.setattr(job, "stop", lambda: save_at_stop(job))
    assert run() == 130
    assert capsys.readouterr().out == "step 7\nsaved at step 7\n"


@pytest.mark.parametrize("kind", [scripted.LocalRunner, Runner])
def test_what_ranks_of_this_machine_print_when_they_are_stopped_is_shown(kind, job, monkeypatch, capsys):
    here: Any = kind.__new__(kind)
    for name in ("manifest", "code_dir", "faults", "log_dir", "handle", "record", "replace", "resume"):
        setattr(here, f"_{name}", None)
    here._has_stopped, here._start, here._console = False, None, Console(1)
    here._plan, here._begun, here._nodes, here._deaths = SimpleNamespace(roles={}), 0.0, (), []
    ray = SimpleNamespace(address="h:1", environment=lambda: ())
    monkeypatch.setattr("dljob.runtime.backend.embedded.EmbeddedRay", lambda *_, **__: nullcontext(ray))
    here._shown = NOTHING if kind is scripted.LocalRunner else EVERYTHING
    job.record = SimpleNamespace(over=True, status=lambda: {"phase": "Stopped"})
    stops: list[str] = []
    job.connection = SimpleNamespace(command=lambda *_, by: stops.append(by) or save_at_stop(job))
    scripted.listen()
    monkeypatch.setattr(watch, "watch", signalled(signal.SIGTERM))
    assert here._run_started() == 130
    assert len(stops) == 1, "it is not stopped twice"
    captured = capsys.readouterr()
    assert "saved at step 7\n" in (captured.out if kind is scripted.LocalRunner else captured.err)


@pytest.mark.parametrize(
    ("words", "resume", "is_numbered"),
    [(["train.py"], None, True), (["--resume", "train.py"], "", False), (["--name=x", "train.py"], None, False)],
)
def test_a_job_that_goes_on_keeps_its_name(monkeypatch, words, resume, is_numbered):
    given: dict[str, Any] = {}
    monkeypatch.setattr(Runner, "__init__", lambda *_, **named: given.update(named))
    runner = scripted.LocalRunner(None, Console(1), torchrun_line.read(words, {}))  # type: ignore[arg-type]
    assert (given["resume"], given["is_numbered"]) == (resume, is_numbered)
    assert runner._can_resume, "what it says of --resume after Ctrl-C holds"


@pytest.mark.parametrize("when", ["at once", "while watching"])
def test_a_pipe_that_is_closed_stops_the_job(when, job, monkeypatch):
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


def test_a_signal_that_comes_with_the_closed_pipe_still_stops_the_job(job, monkeypatch):
    def say(text: str) -> None:
        if text.startswith("stopping") and "stop" not in job.told and not heard:
            heard.append(True)
            os.kill(os.getpid(), signal.SIGINT)
        raise BrokenPipeError

    heard: list[bool] = []
    monkeypatch.setattr(output, "say", say)
    assert run() == 130
    assert job.told == ["submit", "stop", "wait 20"]


def test_a_folder_for_logs_that_cannot_be_is_refused_before_there_is_a_job(job, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--log-dir"):
        run(tmp_path / "file")
    assert job.told == []


def test_a_link_that_cannot_be_made_after_all_stops_the_job(job, tmp_path):
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "train-00000000").write_text("somebody else's")
    with pytest.raises(UsageError, match="File exists"):
        run(tmp_path / "links")
    assert job.told == ["submit", "stop", "wait 20"]


def test_the_logs_are_linked(job, tmp_path, monkeypatch):
    def over(*_: object) -> dict[str, Any]:
        return {"phase": "Succeeded"}

    monkeypatch.setattr(watch, "watch", over)
    assert run(tmp_path / "new" / "links") == 0
    assert (tmp_path / "new" / "links" / "train-00000000").resolve() == tmp_path / "logs"
    assert job.told == ["submit"]


@pytest.mark.parametrize(("phase", "code"), [("Succeeded", 0), ("Failed", 1)])
def test_a_job_of_this_machine_ends_with_the_exit_code_of_its_phase(job, phase, code, capsys):
    here = scripted.LocalRunner.__new__(scripted.LocalRunner)
    assert here.finish(job, {"phase": phase}, {}) == code  # type: ignore[arg-type]
    assert f"journal, logs and checkpoints: {job.dir}" in capsys.readouterr().err


def test_a_backend_that_cannot_run_it_here_is_refused_before_anything_starts(monkeypatch):
    monkeypatch.setenv("DISTRIBUTED_BACKEND", "YR")
    role = {"name": "w", "type": "Elastic", "entrypoint": {"module": "train.py"}}
    manifest = parse(
        {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "j"}, "spec": {"roles": [role]}}
    )
    with pytest.raises(SpecError, match="the backend yr lacks elastic"):
        scripted.run_here(manifest, Console(1), SimpleNamespace(log_dir=None))  # type: ignore[arg-type]


@contextmanager
def opened(kind: str, folder: Path) -> Iterator[Any]:
    """Open a stdin of a kind."""
    if kind == "none":
        yield None
        return
    (folder / "file").write_text("")
    ends = {"pipe": os.pipe, "terminal": os.openpty}[kind]() if kind in ("pipe", "terminal") else ()
    fd = ends[kind == "terminal"] if ends else os.open({"file": folder / "file", "null": os.devnull}[kind], os.O_RDONLY)
    with os.fdopen(fd, closefd=False) as stdin:
        yield stdin
    for each in {*ends, fd}:
        os.close(each)


@pytest.mark.parametrize(
    ("kind", "ranks", "is_inherited"),
    [
        *(("pipe", ranks, True) for ranks in (1, 2)),
        *(("file", ranks, True) for ranks in (1, 2)),
        *((kind, 1, False) for kind in ("null", "none")),
        ("terminal", 1, True),
        ("terminal", 2, False),
    ],
)
def test_ranks_inherit_pipes_and_files_and_one_rank_a_terminal(kind, ranks, is_inherited, tmp_path, monkeypatch):
    with opened(kind, tmp_path) as stdin:
        assert scripted.is_for_ranks(stdin, ranks) == (is_inherited and kind != "terminal"), "no terminal of its own"
        monkeypatch.setattr(os, "tcgetpgrp", lambda _fd: os.getpgrp())
        assert scripted.is_for_ranks(stdin, ranks) == is_inherited
        monkeypatch.setattr(os, "tcgetpgrp", lambda _fd: 1)
        assert scripted.is_for_ranks(stdin, ranks) == (is_inherited and kind != "terminal"), "in the background"


BAR = "  0%|   |\r 50%|#  |\r100%|###|"
ALL, NO_TEE = Chosen(everyone=True), Chosen()


def output_of(job: Handle, text: str, console: Console) -> None:
    """Show the output of a rank from its begin to its end."""
    (job.dir / "logs" / "w-0.log").write_text(text)
    with scripted.Lined(job, console):  # type: ignore[arg-type]
        pass


class Growing:
    """A display of ranks that write; `write` and `turn` return what it has printed since."""

    def __init__(self, job: Handle, capsys: pytest.CaptureFixture[str], tee: Chosen) -> None:
        self._display, self._folder, self._capsys = scripted.Lined(job, Console(2, tee=tee)), job.dir / "logs", capsys  # type: ignore[arg-type]

    def write(self, text: str | bytes, rank: int = 0) -> str:
        with (self._folder / f"w-{rank}.log").open("ab") as log:
            log.write(text if isinstance(text, bytes) else text.encode())
        return self.turn()

    def turn(self, *, is_last: bool = False) -> str:
        self._display._turn(is_last=is_last)
        return self._capsys.readouterr().out


@pytest.fixture
def shown(job: Handle, capsys: pytest.CaptureFixture[str]) -> Any:
    return lambda tee=NO_TEE: Growing(job, capsys, tee)


def test_a_file_gets_the_bytes_and_a_terminal_the_progress_bar(job, monkeypatch, capsys):
    output_of(job, f"{BAR}\ndone\n", Console(1))
    assert capsys.readouterr().out == f"{BAR}\ndone\n"
    output_of(job, f"{BAR}\ndone\n", Console(1, tee=ALL))
    assert capsys.readouterr().out.splitlines() == [f"[w0]:{part}" for part in [*BAR.split("\r"), "done"]]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    output_of(job, f"{BAR}\ndone\x1b[2J\n", Console(1))
    assert capsys.readouterr().out == f"{BAR}\ndone\\x1b[2J\n"
    output_of(job, f"{BAR}\ndone\n", Console(1, tee=ALL))
    assert capsys.readouterr().out == "[w0]:  0%|   |\r[w0]: 50%|#  |\r[w0]:100%|###|\n[w0]:done\n"


def test_a_progress_bar_moves_in_a_pipe(shown):
    bar = shown()
    assert bar.write("\r  0%") == "", "half of a line may be on its way"
    assert bar.turn() == "\r  0%"
    assert bar.write("\r  5%") == ""
    assert bar.write("\r 10%") == "\r  5%"
    assert bar.write("\r 15%\r 20%") == "\r 10%\r 15%"
    assert bar.write("\r") == "\r 20%"
    assert bar.write("\n") == "\r\n"


def test_a_progress_bar_moves_behind_its_prefix(shown):
    bar = shown(ALL)
    assert bar.write("\r  0%") == ""
    assert bar.turn() == "[w0]:  0%"
    assert bar.write("\r  5%") == ""
    assert bar.write("\r 10%\n") == "\n[w0]:  5%\n[w0]: 10%\n"
    assert bar.write("50%\r") == "[w0]:50%"
    assert bar.write("60%\r") == "\n[w0]:60%"
    assert bar.turn(is_last=True) == "\n"


@pytest.mark.parametrize("tee", [NO_TEE, ALL])
def test_no_line_stands_behind_the_unfinished_one_of_another_rank(shown, tee):
    both, first, second = shown(tee), *(("[w0]:", "[w1]:") if tee is ALL else ("", ""))
    assert both.write("a prompt: ") == ""
    assert both.write("loss", rank=1) == f"{first}a prompt: "
    assert both.write(" 3\n", rank=1) == f"\n{second}loss 3\n"
    assert both.write("yes\n") == f"{first}yes\n"


def test_lines_of_dljob_are_not_the_scripts_output(job, shown, capsys):
    one = shown()
    ours = "[dljob] 10:00:00 w/0 starts, incarnation 1"
    assert one.write(f"{ours}\nfirst\n{ours[:3]}") == "first\n"
    assert one.turn() == ""
    assert one.write(f"{ours[3:]}\nsecond\n[d") == "second\n"
    assert one.turn(is_last=True) == "[d"
    (job.dir / "logs" / "w-0.log").write_text(f"in a line {ours}\n{ours}\n")
    with scripted.Lined(job, Console(1)):  # type: ignore[arg-type]
        pass
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (f"in a line {ours}\n", f"[w/0] {ours}\n")


@pytest.mark.parametrize("tee", [NO_TEE, ALL])
def test_a_line_of_megabytes_is_one_line(shown, tee):
    line = "x" * (3 << 20) + "é\n"
    one = shown(tee)
    assert one.write(line[:-1]).removeprefix("[w0]:").strip("x") == ""
    one.write("\n")
    assert shown(tee).turn() == ("[w0]:" if tee is ALL else "") + line


def test_bytes_that_are_no_text_reach_a_pipe(job, capfdbinary):
    (job.dir / "logs" / "w-0.log").write_bytes(b"\xff\x00\n")
    with scripted.Lined(job, Console(1)):  # type: ignore[arg-type]
        pass
    assert capfdbinary.readouterr().out == b"\xff\x00\n"


def test_text_on_stderr_does_not_stand_behind_a_progress_bar(job, tmp_path):
    """`2>&1 | tee log`."""
    (job.dir / "logs" / "w-0.log").write_text("\r 50%")
    code = f"""
import sys
from types import SimpleNamespace
from pathlib import Path
from dljob.api.torchrun_console import Console
from dljob.cli import scripted
shown = scripted.Lined(SimpleNamespace(name="j", dir=Path({str(job.dir)!r})), Console(1))
shown._turn()
shown._turn()
shown.say("Running")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=True
    )
    first, second = done.stdout.decode().split("\n")[:2]
    assert (first, second.endswith("Running")) == ("\r 50%", True)
