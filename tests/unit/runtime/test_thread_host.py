"""The thread host, as far as it goes without a Ray."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import NoReturn, cast

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
