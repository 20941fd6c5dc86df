"""Exceptions of threads, `__del__` and `atexit` functions: reported in words, and printed as ever."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dljob.errors import JobEndingError
from dljob.master.state.views import Clue, Outcome, Reason
from dljob.runtime.process import outcome

HERE = str(Path(__file__).parent)


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is reported; the hooks of before are called with each error, too, and note it as "printed"."""
    found: list[str] = []
    for name in ("excepthook", "unraisablehook"):
        monkeypatch.setattr(threading if name == "excepthook" else sys, name, lambda _args: found.append("printed"))
    outcome.watch_earlier_errors(found.append, HERE)
    return found


def fail() -> None:
    raise KeyError("labels")


def in_thread(target: Any) -> None:
    thread = threading.Thread(target=target, name="loader")
    thread.start()
    thread.join()


def unraisable(thing: Any, error: BaseException | None, message: str | None = None) -> None:
    sys.unraisablehook(SimpleNamespace(exc_value=error, object=thing, err_msg=message))  # type: ignore[arg-type]


def test_an_error_of_a_thread_is_reported_with_its_place(reports):
    in_thread(fail)
    assert reports[0].startswith("thread loader raised KeyError: 'labels' at test_earlier_errors.py:")
    assert reports[0].endswith(" in fail")
    assert reports[1:] == ["printed"]


def test_call_of_a_thread_that_meets_the_jobs_end_is_neither_reported_nor_printed(reports):
    def call() -> None:
        raise JobEndingError("reward/0.score: the job is ending: Succeeded", role="reward", rank=0)

    in_thread(call)
    assert reports == []


def test_what_python_ignores_is_reported_with_its_origin(reports):
    class Buffer:
        def __del__(self) -> None:
            raise ValueError("mapped")

    Buffer()
    unraisable(fail, OSError("cannot flush"), "Exception ignored in atexit callback")
    assert [line.partition(" at test")[0] for line in reports if line != "printed"] == [
        "test_what_python_ignores_is_reported_with_its_origin.<locals>.Buffer.__del__ raised ValueError: mapped",
        "atexit function fail raised OSError: cannot flush",
    ]


def test_few_errors_are_reported_and_all_are_printed(reports):
    for _ in range(outcome.EARLIER_MOST + 2):
        in_thread(fail)
    assert len(reports) - reports.count("printed") == outcome.EARLIER_MOST
    assert reports.count("printed") == outcome.EARLIER_MOST + 2


def test_an_exit_and_a_forked_child_report_nothing(reports, monkeypatch):
    unraisable(fail, SystemExit(3))
    unraisable(fail, None)
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    in_thread(fail)
    assert set(reports) == {"printed"}


def test_a_failed_end_has_them_as_clues():
    ended = Outcome(ok=False, reason=Reason.USER_ERROR, code=7)
    assert outcome.with_earlier(ended, ["thread t raised E"]).clues == (Clue("earlier", "thread t raised E"),)
    assert outcome.with_earlier(Outcome(ok=True), ["thread t raised E"]).clues == ()
