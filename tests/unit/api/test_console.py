"""What a script sees of the job whose end it waits for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO, cast

import pytest

from dljob.api.console import wait_and_show
from dljob.api.handle import JobHandle
from dljob.errors import UnreachableError


def handle_of(tell: Callable[[Callable[[Any], None]], None]) -> JobHandle:
    """Return as much of a job's handle as is asked while a script waits for its end."""

    def logs(*, follow: bool, out: TextIO) -> None:
        assert follow
        out.write("[w/0] loss 0.1\n")

    def tell_events(show: Callable[[Any], None], *, follow: bool) -> None:
        assert follow
        tell(show)

    parts: Any = {"name": "t", "uid": "0123456789", "dir": Path("/jobs/t"), "wait_code": lambda: 3}
    return cast("JobHandle", SimpleNamespace(**parts, logs=logs, tell_events=tell_events))


def test_a_script_sees_the_job_s_folder_its_changes_and_what_its_ranks_print(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def tell(show: Callable[[Any], None]) -> None:
        show({"reason": "JobRunning", "target": "job", "message": "all roles are ready"})
        show({"reason": "Restarted", "target": "w/0", "level": "Rank", "message": "again"})
        show({"reason": "Recovered", "target": "w", "seconds": 2.0, "message": "left out"})

    assert wait_and_show(handle_of(tell)) == 3
    captured = capsys.readouterr()
    assert captured.out == "[w/0] loss 0.1\n"
    assert captured.err.splitlines() == [
        "job t (01234567); folder: /jobs/t",
        "t: JobRunning: all roles are ready",
        "t: Restarted w/0 [Rank]: again",
        "t: Recovered w in 2.0 s",
    ]


def test_a_job_that_cannot_be_shown_is_waited_for_all_the_same(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tell(_show: Callable[[Any], None]) -> None:
        raise UnreachableError("PrimeMaster does not answer")

    closed = open("/dev/null", "w")  # noqa: PTH123, SIM115 - closed at once
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    assert wait_and_show(handle_of(tell)) == 3
    assert sorted(record.getMessage().rpartition(": ")[2] for record in caplog.records) == [
        "I/O operation on closed file.",
        "PrimeMaster does not answer",
    ]
    assert "job t" in capsys.readouterr().err
