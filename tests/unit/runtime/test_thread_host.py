"""The thread host, as far as it goes without a Ray."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from dljob.runtime import thread_host
from dljob.runtime.reports import Reports
from dljob.runtime.thread_host import ThreadHost


def test_a_host_whose_rank_has_ended_does_not_call_its_own_end_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last line is in the log of a job that ended well."""
    said: list[tuple[int, str]] = []
    heard: list[int] = []

    def end(code: int, why: str) -> NoReturn:
        said.append((code, why))
        raise SystemExit(code)

    monkeypatch.setattr(thread_host, "end", end)
    host = ThreadHost.__new__(ThreadHost)
    host._done = threading.Event()
    host._done.set()
    host._report = 4
    host.reports = cast("Reports", SimpleNamespace(wait_acked=lambda seq, _seconds: heard.append(seq)))
    with pytest.raises(SystemExit):
        host.terminated()
    assert heard == [4], "its last word was heard before it went"
    assert said == [(0, "its rank has ended, and its work is done")]


class Life:
    """Of `Lifecycle`, what is looked at when it is left."""

    def __init__(self) -> None:
        self.shut = 0

    @property
    def left_over(self) -> tuple[bool, str]:
        return not self.shut, "the user's object"

    def shutdown(self) -> None:
        self.shut += 1


def test_a_rank_that_parted_and_came_back_keeps_its_object_at_the_next_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_host.last_save, "close", lambda ok: None)
    host = ThreadHost.__new__(ThreadHost)
    host._callee = cast("Any", SimpleNamespace(wait_idle=lambda: None))
    ends: list[int] = []
    monkeypatch.setattr(host, "_ended", lambda start, _outcome: ends.append(start.incarnation))
    host._parts, parted, back = 2, Life(), Life()

    host._life = cast("Any", parted)
    host._has_left(cast("Any", SimpleNamespace(incarnation=2)))
    assert (parted.shut, host._kept()) == (1, None), "its role had it no more"

    host._life = cast("Any", back)
    host._has_left(cast("Any", SimpleNamespace(incarnation=3)))
    assert (back.shut, host._kept()) == (0, "the user's object")
    assert ends == [2, 3]
