"""A host that ends itself tells nothing of those that it takes along."""

from __future__ import annotations

import threading

from dljob.master.state.views import Outcome, Reason
from dljob.runtime.process import guard
from dljob.runtime.worker.reports import Reports

KILLED = Outcome(ok=False, reason=Reason.UNKNOWN, code=137)


def test_a_rank_that_ends_with_its_host_is_not_reported(monkeypatch):
    lock = threading.Lock()
    monkeypatch.setattr(guard, "_ended", lock)
    reports = Reports()
    assert reports.add(0, 1, 7, KILLED) == 1
    with lock:
        assert reports.add(1, 1, 8, KILLED) == 1
    assert [report.rank for report in reports.watch(1, 0)] == [0]
