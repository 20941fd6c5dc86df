"""What a host of scripts does before SIGTERM: the server finishes its requests."""

from __future__ import annotations

import logging
import signal
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from role_kit import role_plan

from dljob.master.state.actions import RankStart
from dljob.master.state.views import Outcome, Reason
from dljob.plan.serving import DrainPlan, ProbePlan
from dljob.runtime.process.messages import KNOWN_S, Serves, StopOrder
from dljob.runtime.serving.probes import Answer
from dljob.runtime.worker import fork_host
from dljob.runtime.worker.fork_host import ForkHost


class Drained:
    """A host whose ranks end at SIGTERM; `said` has what is done to them, in its order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, drain: DrainPlan, *, answer: Answer | None = None) -> None:
        self.said: list[str] = []
        self.answer = answer or Answer(ok=True, words="")
        self.rank: Any = SimpleNamespace(
            start=RankStart(0, 1, 0, 1, 0),
            ended=threading.Event(),
            stopped=Future(),
            forking=threading.Lock(),
            stop_reason="",
            pid=77,
        )
        self.host: Any = ForkHost.__new__(ForkHost)
        self.host._lock, self.host._ranks, self.host._barred = threading.RLock(), {0: self.rank}, {}
        self.host.spec = SimpleNamespace(role=role_plan("s", ("module", "m"), drain=drain))
        self.host._socket = SimpleNamespace(stopping=lambda *_: self.said.append("told"))
        self.host._helper = SimpleNamespace(order=self.order)
        self.host._serving = SimpleNamespace(ended=lambda _: self.said.append("unprobed"), post=self.post)
        monkeypatch.setattr(fork_host.os, "kill", self.kill)

    def order(self, kind: str, _rank: int, _incarnation: int) -> None:
        self.said.append(kind)
        self.rank.ended.set()

    def post(self, _rank: int, request: ProbePlan) -> Answer:
        self.said.append(f"post {request.path}")
        return self.answer

    def kill(self, pid: int, number: int) -> None:
        self.said.append(f"{signal.Signals(number).name} to {pid}")
        self.rank.ended.set()


POST = ProbePlan("post", port="1", path="/drain", timeout_s=5)


def test_a_request_is_answered_before_sigterm(monkeypatch):
    own = Drained(monkeypatch, DrainPlan(5, "SIGUSR1", POST))
    own.host._ranks[0].pid = 77
    monkeypatch.setattr(fork_host.os, "kill", lambda *_: own.said.append("signal"))
    own.host._stop((0,), "restart", 5.0)
    assert own.said == ["told", "unprobed", "signal", "post /drain", "term"]


def test_a_rank_that_ends_at_the_signal_is_not_waited_for(monkeypatch):
    own = Drained(monkeypatch, DrainPlan(600, "SIGUSR1"))
    own.host._stop((0,), "restart", 5.0)
    assert own.said[:3] == ["told", "unprobed", "SIGUSR1 to 77"]


@pytest.mark.parametrize("seen", [[2, 1, 0, 0], [0, 1, 0, 0], [0, 0]])
def test_a_server_without_a_signal_or_request_ends_once_nobody_is_connected(monkeypatch, seen):
    own = Drained(monkeypatch, DrainPlan(600))
    now, ended = [0.0], own.rank.ended

    def wait(_seconds: float) -> bool:
        now[0] += KNOWN_S / 2
        return ended.is_set()

    own.rank.ended = SimpleNamespace(wait=wait, is_set=ended.is_set, set=ended.set)
    own.host._serving.clients = lambda _: seen.pop(0)
    monkeypatch.setattr(fork_host, "time", SimpleNamespace(monotonic=lambda: now[0]))
    own.host._stop((0,), "restart", 600.0)
    assert own.said == ["told", "unprobed", "term"]
    assert seen == [], "it ends after the last look, and no earlier"


def test_a_server_without_ports_has_its_whole_time(monkeypatch):
    own = Drained(monkeypatch, DrainPlan(0.05))
    looks: list[int] = []
    own.host._serving.clients = looks.append
    monkeypatch.setattr(fork_host, "CLIENTS_S", 0.01)
    monkeypatch.setattr(fork_host, "KNOWN_S", 0.0)
    began = time.monotonic()
    own.host._stop((0,), "restart", 5.0)
    assert time.monotonic() - began >= 0.05
    assert own.said[-1] == "term"


def test_a_rank_that_ignores_its_drain_is_ended_in_time(monkeypatch, caplog):
    own = Drained(monkeypatch, DrainPlan(0))
    own.rank.pid = 0
    began = time.monotonic()
    own.host._stop((0,), "restart", 5.0)
    assert own.said[0] == "told"
    assert own.said[-1] == "term"
    assert time.monotonic() - began < 5
    late = Drained(monkeypatch, DrainPlan(5, "", POST), answer=Answer(ok=False, words="no answer within 5 s"))
    with caplog.at_level(logging.WARNING):
        late.host._stop((0,), "restart", 5.0)
    assert "s/0 did not drain: no answer within 5 s" in caplog.text
    assert late.said[-1] == "term"


def test_a_process_that_is_gone_takes_no_signal(monkeypatch):
    own = Drained(monkeypatch, DrainPlan(0, "SIGUSR1"))

    def gone(*_: int) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(fork_host.os, "kill", gone)
    own.host._stop((0,), "restart", 5.0)
    assert own.said[-1] == "term"


def test_a_server_that_leaves_takes_requests_until_clients_have_heard(monkeypatch):
    own = Drained(monkeypatch, DrainPlan(5, "SIGUSR1"))
    own.host.spec.role = role_plan("s", ("module", "m"), drain=DrainPlan(5, "SIGUSR1"), ports=(("http", 0),))
    waits: list[float] = []
    ended = own.rank.ended
    own.rank.ended = SimpleNamespace(
        wait=lambda seconds: waits.append(seconds) or ended.wait(0), is_set=ended.is_set, set=ended.set
    )
    order = StopOrder(1, (0,), 5.0, "its role goes on without it", (1,))
    own.host.stop_ranks(replace(order, leaves=True))
    assert (waits[0], own.said[0]) == (KNOWN_S, "told")
    waits.clear()
    own.host.stop_ranks(order)
    assert KNOWN_S not in waits, "a rank that restarts is at the same place again"


def test_a_hung_rank_is_not_drained(monkeypatch):
    own = Drained(monkeypatch, DrainPlan(5, "SIGUSR1", POST))
    own.host._stop((0,), "hang", 0.0)
    assert own.said == ["told", "term"]


def test_a_rank_whose_probe_failed_is_ended_once_and_reported_with_the_probes_words(monkeypatch):
    own = Drained(monkeypatch, DrainPlan(5))
    failed = Outcome(ok=False, reason=Reason.UNHEALTHY, message="liveness probe failed")
    reports: list[Any] = []
    own.host.reports = SimpleNamespace(add=lambda *said: reports.append(said))
    own.host.unhealthy(0, 9, failed)
    assert own.said == [], "it is about another incarnation"
    own.host.unhealthy(0, 1, failed)
    assert own.rank.ended.wait(20)
    assert (own.said, own.rank.failed) == (["term"], failed)
    own.host.unhealthy(0, 1, failed)
    assert own.said == ["term"], "it has ended"
    own.rank.log, own.rank.log_from = "", 0
    outcome = own.host._outcome(own.rank, {"status": 15, "words": {}})
    assert (outcome.reason, outcome.code, outcome.message) == (Reason.UNHEALTHY, 143, "liveness probe failed")
    own.host.ready(0, 1)
    own.host.serves(0, 1, Serves((), ready=True))
    assert [said[:4] for said in reports] == [(0, 1, 77, None), (0, 1, 77, None)]


def test_a_rank_that_ignores_sigterm_after_a_failed_probe_is_killed(monkeypatch):
    own = Drained(monkeypatch, DrainPlan(5))
    monkeypatch.setattr(fork_host, "TERM_GRACE_S", 0.0)
    own.host._helper = SimpleNamespace(order=lambda kind, *_: own.said.append(kind))
    own.host._end_unhealthy(own.rank)
    assert own.said == ["term", "kill"]
