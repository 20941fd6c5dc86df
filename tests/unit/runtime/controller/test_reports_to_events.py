"""A host's reports as events of its job."""

from __future__ import annotations

from dljob.master.state import events as ev
from dljob.master.state.views import Outcome
from dljob.runtime.controller.worker_hosts import _event
from dljob.runtime.process.messages import Report, Serves


def test_a_report_is_news_of_readiness_or_of_a_start_or_of_an_end() -> None:
    serves = Serves((("http", "h:1"),), ready=False, why="status 503")
    assert _event("r", Report(1, 2, 3, 4, None, serves)) == ev.RankServes(
        "r", 2, 3, (("http", "h:1"),), ready=False, why="status 503"
    )
    assert _event("r", Report(1, 2, 3, 4, None)) == ev.RankReady("r", 2, 3, 4)
    done = Outcome(ok=True)
    assert _event("r", Report(1, 2, 3, 4, done)) == ev.RankEnded("r", 2, 3, done)
