"""Ranks are watched from their start to their end."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from queue import Empty, SimpleQueue

import pytest
from role_kit import role_plan

from dljob.plan.role import RolePlan
from dljob.plan.serving import ProbePlan
from dljob.runtime.serving import monitor as monitor_module
from dljob.runtime.serving.monitor import ProbedRank, ProbeMonitor
from dljob.runtime.serving.probes import Answer, ProbeTarget

SOON_S = 20.0
TCP = ProbePlan("tcp", port="http", period_s=1)
FIRST = ProbedRank(0, 1)


class Said:
    """What the monitor said, in its order."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[tuple[ProbedRank, bool | None, str]] = SimpleQueue()

    def serves(self, who: ProbedRank, *, ready: bool, reason: str) -> None:
        self.queue.put((who, ready, reason))

    def dead(self, who: ProbedRank, reason: str) -> None:
        self.queue.put((who, None, reason))

    def next(self) -> tuple[ProbedRank, bool | None, str]:
        return self.queue.get(timeout=SOON_S)


@pytest.fixture
def server() -> Iterator[tuple[socket.socket, ProbeTarget]]:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        yield made, ProbeTarget("127.0.0.1", {"http": made.getsockname()[1]})


def test_a_server_without_the_path_is_told_once_and_another_that_starts_is_not(monkeypatch, server):
    _, target = server
    said = Said()
    monitor = ProbeMonitor(said)
    left = [Answer(ok=False, words="refused")] * 3 + [Answer(ok=False, words="status 404", unknown=True)] * 5
    end = Answer(ok=True, words="status 200")

    async def ask(_probe: ProbePlan, _target: ProbeTarget) -> Answer:
        return left.pop(0) if left else end

    monkeypatch.setattr(monitor_module, "ask", ask)
    monkeypatch.setattr(monitor_module.Tally, "pause_s", lambda *_: 0.0)
    monitor.begin(FIRST, role(readiness=TCP), target)
    assert [said.next(), said.next()] == [(FIRST, False, "status 404"), (FIRST, True, "status 200")]
    monitor.end(FIRST)


def role(**probes: ProbePlan) -> RolePlan:
    return role_plan("r", ("module", "m"), **probes)


def answers(monkeypatch: pytest.MonkeyPatch, *oks: bool) -> None:
    """Let probes be answered so, and then forever as at last; without pauses."""
    left = list(oks)

    async def ask(_probe: ProbePlan, _target: ProbeTarget) -> Answer:
        ok = left.pop(0) if len(left) > 1 else left[0]
        return Answer(ok=ok, words=f"ok {ok}")

    monkeypatch.setattr(monitor_module, "ask", ask)


def test_a_rank_is_ready_once_its_probe_succeeds(server):
    listener, target = server
    said = Said()
    monitor = ProbeMonitor(said)
    monitor.begin(FIRST, role(readiness=TCP), target)
    with pytest.raises(Empty):
        said.queue.get(timeout=0.2)
    listener.listen()
    assert said.next()[:2] == (FIRST, True)
    monitor.begin(ProbedRank(0, 2), role(readiness=TCP), target)
    assert said.next()[:2] == (ProbedRank(0, 2), True)
    monitor.end(ProbedRank(0, 2))


def test_a_rank_that_has_ended_is_not_reported_any_more():
    said = Said()
    monitor = ProbeMonitor(said)
    monitor.end(FIRST)
    monitor.begin(FIRST, role(readiness=ProbePlan("tcp", port="1", delay_s=3600)), ProbeTarget("127.0.0.1"))
    monitor.end(FIRST)
    assert said.queue.empty()


def test_the_late_end_of_an_incarnation_leaves_the_probes_of_the_next_one(monkeypatch):
    answers(monkeypatch, False)
    said, second = Said(), ProbedRank(0, 2)
    monitor = ProbeMonitor(said)
    monitor.begin(FIRST, role(readiness=ProbePlan("tcp", port="1", delay_s=3600)), ProbeTarget("127.0.0.1"))
    monitor.begin(second, role(readiness=ProbePlan("tcp", port="1", period_s=0)), ProbeTarget("127.0.0.1"))
    monitor.end(FIRST)
    answers(monkeypatch, True)
    assert said.next()[:2] == (second, True)
    monitor.end(second)


def test_readiness_comes_and_goes_with_its_probe(monkeypatch):
    answers(monkeypatch, False, True, False, False, True)
    said, probe = Said(), ProbePlan("tcp", port="1", period_s=0, failures=2)
    monitor = ProbeMonitor(said)
    monitor.begin(FIRST, role(readiness=probe), ProbeTarget("127.0.0.1"))
    assert [said.next()[1:] for _ in range(3)] == [(True, "ok True"), (False, "ok False"), (True, "ok True")]
    monitor.end(FIRST)


def test_a_liveness_probe_ends_a_rank_after_its_failures_in_a_row(monkeypatch):
    answers(monkeypatch, True, False, True, False)
    said, probe = Said(), ProbePlan("tcp", port="1", period_s=0, failures=2)
    ProbeMonitor(said).begin(FIRST, role(liveness=probe), ProbeTarget("127.0.0.1"))
    assert said.next() == (FIRST, True, "")
    assert said.next() == (FIRST, None, "liveness probe failed 2 times, last: ok False")


def test_no_readiness_is_probed_after_a_failed_liveness_probe(monkeypatch):
    answers(monkeypatch, False)
    said, probe = Said(), ProbePlan("tcp", port="1", period_s=0, failures=1)
    monitor = ProbeMonitor(said)
    slow = ProbePlan("tcp", port="1", delay_s=3600)
    monitor.begin(FIRST, role(liveness=probe, readiness=slow), ProbeTarget("127.0.0.1"))
    assert said.next()[1] is None
    monitor.end(FIRST)


def test_the_other_probes_wait_for_the_startup_probe(monkeypatch):
    answers(monkeypatch, False, True)
    said = Said()
    monitor = ProbeMonitor(said)
    monitor.begin(FIRST, role(startup=ProbePlan("tcp", port="1")), ProbeTarget("127.0.0.1"))
    assert said.next() == (FIRST, True, "")
    answers(monkeypatch, False)
    probe = ProbePlan("tcp", port="1", period_s=0)
    monitor.begin(ProbedRank(0, 2), role(startup=probe, readiness=TCP), ProbeTarget("127.0.0.1"))
    who, ready, why = said.next()
    assert (who, ready) == (ProbedRank(0, 2), None)
    assert why == "startup probe without success for 0 s, last: ok False"


def test_an_error_of_probing_is_logged_and_the_next_process_is_probed(server, monkeypatch, caplog):
    class Broken(Said):
        """Cannot take the first news."""

        def serves(self, who: ProbedRank, *, ready: bool, reason: str) -> None:
            super().serves(who, ready=ready, reason=reason)
            if who == FIRST:
                raise KeyError("planted")

    answers(monkeypatch, True)
    said = Broken()
    probing = ProbeMonitor(said)
    for who in (FIRST, ProbedRank(0, 2)):
        probing.begin(who, role(readiness=TCP), server[1])
        assert said.next() == (who, True, "ok True")
    probing.end(ProbedRank(0, 2))
    assert "is not probed any more" in caplog.text
    assert "planted" in caplog.text
