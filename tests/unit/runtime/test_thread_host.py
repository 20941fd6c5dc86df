"""The thread host, as far as it goes without a Ray."""

from __future__ import annotations

import threading
from typing import NoReturn

import pytest

from dljob.runtime import thread_host
from dljob.runtime.thread_host import ThreadHost


def test_a_host_whose_rank_has_ended_does_not_call_its_own_end_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last line is in the log of a job that ended well."""
    said: list[tuple[int, str]] = []

    def end(code: int, why: str) -> NoReturn:
        said.append((code, why))
        raise SystemExit(code)

    monkeypatch.setattr(thread_host, "end", end)
    host = ThreadHost.__new__(ThreadHost)
    host._done = threading.Event()
    host._done.set()
    with pytest.raises(SystemExit):
        host.terminated()
    assert said == [(0, "its rank has ended, and its work is done")]
