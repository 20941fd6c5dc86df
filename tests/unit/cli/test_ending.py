"""A command that looks at a job ends at once when it is asked to, or when nobody reads it, and leaves no file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from simulated_folder import simulated

from dljob.cli import ending
from dljob.cli.ending import early_end
from dljob.testing.simulate.drive import case_of

SOON_S = 20


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Return what starts a command that waits in the middle of its work, about an ended job `past`."""
    folder = tmp_path / "home" / "jobs" / "past-5eed0000"
    simulated(folder, case_of(5))
    status = json.loads((folder / "status.json").read_text())
    entry = {"name": "past", "uid": status["uid"], "dir": str(folder), "started": 1.0, "environment": {}}
    (folder / "job.json").write_text(json.dumps(entry))
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, "DLJOB_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "tmp")}
    code = "import sys; from dljob.cli import main; exec(sys.argv.pop(1)); main.main()"

    def run(before: str, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", code, before, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={key: value for key, value in environment.items() if key not in ("DISPLAY", "WAYLAND_DISPLAY")},
        )

    return run


WAIT_IN_EVENTS = (
    "import time; from dljob.api.handle import JobHandle; "
    "JobHandle.tell_events = lambda *_, **__: (print('told', flush=True), time.sleep(60))"
)
WAIT_IN_WRITE = (
    "import time; from dljob.report import page; "
    "page.html = lambda _: 'x'; from dljob.cli import output_file as file; "
    "file.os.link = lambda *_: (print('told', flush=True), time.sleep(60))"
)


@pytest.mark.parametrize(
    ("number", "before", "words"),
    [
        (signal.SIGTERM, "", ("open", "past")),
        (signal.SIGHUP, "", ("open", "past")),
        (signal.SIGHUP, WAIT_IN_EVENTS, ("events", "past", "-f")),
        (signal.SIGTERM, WAIT_IN_WRITE, ("report", "past")),
    ],
)
def test_a_signal_ends_a_command_that_looks_and_leaves_no_file(number, before, words, start, tmp_path):
    with start(before, *words) as command:
        assert command.stdout is not None
        assert command.stdout.readline()
        command.send_signal(number)
        _, err = command.communicate(timeout=SOON_S)
    assert command.returncode == 128 + number
    assert "Traceback" not in err
    assert list((tmp_path / "tmp").iterdir()) == []
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == []


@pytest.mark.parametrize("words", [("events", "past", "-f"), ("logs", "past", "-f")])
def test_a_command_that_waits_ends_with_the_reader_of_its_output(words, start):
    waiting = WAIT_IN_EVENTS.replace("tell_events", "logs" if words[0] == "logs" else "tell_events")
    with start(waiting, *words) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "told\n"
        command.stdout.close()
        began = time.monotonic()
        assert command.wait(SOON_S) == 128 + signal.SIGPIPE
        assert time.monotonic() - began < 5
        assert command.stderr is not None
        assert command.stderr.read() == ""


def test_what_nohup_ignores_stays_ignored_and_handlers_come_back():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with early_end():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            with pytest.raises(SystemExit) as raised:
                signal.raise_signal(signal.SIGTERM)
        assert raised.value.code == 143
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_another_thread_of_a_program_sets_no_handler():
    seen: list[object] = []

    def look() -> None:
        with early_end():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]


def test_a_closed_stdout_is_no_pipe(monkeypatch):
    monkeypatch.setattr(sys, "stdout", open(os.devnull, "w"))  # noqa: PTH123, SIM115
    sys.stdout.close()
    assert not ending._is_piped()
