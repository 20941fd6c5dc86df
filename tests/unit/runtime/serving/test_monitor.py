"""Ranks are watched from their start to their end."""

from __future__ import annotations

import socket
import threading
from queue import Empty, SimpleQueue

import pytest
from role_kit import role_plan

from dljob.plan.serving import ProbePlan
from dljob.runtime.serving.monitor import ProbedRank, ProbeMonitor
from dljob.runtime.serving.probes import ProbeTarget

SOON_S = 20.0


def test_a_rank_is_ready_once_its_probe_succeeds() -> None:
    said: SimpleQueue[ProbedRank] = SimpleQueue()
    monitor = ProbeMonitor(said.put)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        target = ProbeTarget("127.0.0.1", {"http": server.getsockname()[1]})
        role = role_plan("r", ("module", "m"), readiness=ProbePlan("tcp", port="http", period_s=1))
        monitor.begin(ProbedRank(0, 1), role, target)
        with pytest.raises(Empty):
            said.get(timeout=0.2)
        server.listen()
        assert said.get(timeout=SOON_S) == ProbedRank(0, 1)
        monitor.begin(ProbedRank(0, 2), role, target)
        assert said.get(timeout=SOON_S) == ProbedRank(0, 2)
        monitor.end(0)


def test_a_rank_that_has_ended_is_not_reported_any_more() -> None:
    said: list[ProbedRank] = []
    monitor = ProbeMonitor(said.append)
    monitor.end(0)
    role = role_plan("r", ("module", "m"), readiness=ProbePlan("tcp", port="1", delay_s=3600))
    monitor.begin(ProbedRank(0, 1), role, ProbeTarget("127.0.0.1"))
    monitor.end(0)
    assert said == []
    assert sum(thread.name == "dljob-probes" for thread in threading.enumerate()) >= 1
