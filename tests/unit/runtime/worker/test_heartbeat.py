"""Who speaks for a host: the agent of its node, or itself; and what renews its lease."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dljob.runtime.backend.masters import NotCommandingError
from dljob.runtime.process.guard import EndCode, Lease
from dljob.runtime.process.messages import BeaconReply, Heartbeat
from dljob.runtime.process.step_counters import Renewal, StepCounters
from dljob.runtime.rpc.client import CallCounts
from dljob.runtime.worker import heartbeat
from dljob.runtime.worker.heartbeat import HeartbeatThread
from dljob.runtime.worker.reports import Reports
from dljob.runtime.worker.usage import Usage


class Ended(BaseException):
    """In place of the end of the process."""


class Scene:
    """A host whose thread is turned by hand; PrimeMaster and the agent answer as the test says."""

    def __init__(self) -> None:
        self.now = 100.0
        self.counters = StepCounters.create(1)
        self.reports = Reports()
        self.sent: list[Heartbeat] = []
        self.steps: dict[int, Any] = {}
        self.lost = 0
        self.reply: BeaconReply | Exception = BeaconReply(7, known=True)
        self.agent: Renewal | None = None
        self.spec = SimpleNamespace(
            job=SimpleNamespace(standby="", beacon_s=0.2, master="m", namespace="n"), role=SimpleNamespace(name="w")
        )
        self.actor_name = "job/w/0/1"
        self.evidence = SimpleNamespace(sample=lambda: None)
        self.usage = Usage(1, lambda: (), dict[int, int])
        self.lease = Lease(30.0, clock=lambda: self.now)
        self.thread = HeartbeatThread(self, self.lease, self)  # type: ignore[arg-type]

    def renewal(self) -> Renewal | None:
        return self.agent

    def take_steps(self) -> dict[int, Any]:
        steps, self.steps = self.steps, {}
        return steps

    def restore_steps(self) -> None:
        self.lost += 1

    def turn(self, seconds: float = 0.2) -> None:
        self.now += seconds
        self.thread.turn()


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    scene: list[Scene] = []

    def remote(said: Heartbeat) -> Heartbeat:
        scene[0].sent.append(said)
        return said

    def answer(_: Heartbeat, timeout: float) -> BeaconReply:
        del timeout
        reply = scene[0].reply
        if isinstance(reply, Exception):
            raise reply
        return reply

    def end(code: int, why: str) -> None:
        raise Ended(code, why)

    master = SimpleNamespace(beacon=SimpleNamespace(remote=remote))
    monkeypatch.setattr(heartbeat, "ray", SimpleNamespace(get=answer))
    monkeypatch.setattr(heartbeat, "find_master", lambda _job: master)
    monkeypatch.setattr(heartbeat, "boottime", lambda: scene[0].now)
    monkeypatch.setattr(heartbeat, "end", end)
    monkeypatch.setattr(heartbeat.threading, "Thread", lambda **_: SimpleNamespace(start=lambda: None))
    scene.append(Scene())
    yield scene[0]
    scene[0].counters.close()


def test_without_an_agent_a_host_speaks_for_itself_and_less_often_without_news(here):
    for _ in range(10):
        here.turn()
    assert len(here.sent) == 2
    here.steps = {0: (1, 5, {})}
    here.turn()
    assert here.sent[-1] == Heartbeat("w", "job/w/0/1", 7, {0: (1, 5, {})})
    here.now += 29.0
    assert not here.lease.over
    assert here.counters.heart() > 0


def test_while_the_agent_speaks_for_a_host_it_is_silent_and_its_lease_is_renewed(here):
    for _ in range(200):
        here.agent = Renewal(9, here.now - 5.0, here.now + 2.0, known=True)
        here.steps = {0: (1, 5, {})}
        here.turn()
    assert here.sent == []
    assert here.reports.epoch == 9
    assert here.steps, "they are in the counters, and are not taken"
    here.now += 24.5
    assert not here.lease.over
    here.now += 1.0
    assert here.lease.over, "from when the agent had sent what was answered"


def test_when_the_agent_falls_silent_the_host_speaks_at_once(here):
    here.agent = Renewal(9, here.now, here.now + 2.0, known=True)
    here.turn()
    here.agent = None
    here.turn()
    assert len(here.sent) == 1


def test_a_host_whose_lease_is_half_over_waits_for_no_agent(here):
    here.agent = Renewal(9, here.now, here.now + 100.0, known=True)
    here.turn(15.0)
    assert here.sent == []
    here.turn(0.2)
    assert len(here.sent) == 1


@pytest.mark.parametrize("by", ["agent", "master"])
def test_a_host_that_nobody_knows_ends(here, by):
    if by == "agent":
        here.agent = Renewal(9, here.now, here.now + 2.0, known=False)
    else:
        here.reply = BeaconReply(9, known=False)
    with pytest.raises(Ended) as caught:
        here.turn()
    assert caught.value.args[0] is EndCode.NOT_KNOWN
    assert "epoch 9" in caught.value.args[1]


def test_word_of_a_master_that_was_replaced_ends_no_host_and_renews_no_lease(here):
    here.agent = Renewal(9, here.now, here.now + 2.0, known=True)
    here.turn()
    # It wakes up after its successor has begun, and knows none of that one's hosts.
    here.agent = Renewal(8, here.now, here.now + 2.0, known=False)
    here.reply = BeaconReply(8, known=False)
    here.steps = {0: (1, 5, {})}
    here.turn()
    assert here.reports.epoch == 9
    assert here.lost == 1, "its steps are sent again"
    here.now += 30.0
    assert here.lease.over


def test_steps_that_nobody_took_are_sent_again(here):
    here.reply = TimeoutError()
    here.steps = {0: (1, 5, {})}
    here.turn()
    assert here.lost == 1
    here.now += 29.0
    assert not here.lease.over
    here.now += 1.0
    assert here.lease.over, "nothing renewed it"


@pytest.mark.parametrize(("standby", "looks"), [("m/2", 2), ("", 1)])
def test_after_a_failed_heartbeat_a_host_looks_again_who_commands_if_that_may_be_another_one(
    here, monkeypatch, standby, looks
):
    """Of a job without a standby the handle stays good over the restarts of its one PrimeMaster."""
    looked, find = list[str](), heartbeat.find_master
    monkeypatch.setattr(heartbeat, "find_master", lambda job: looked.append(job.standby) or find(job))
    here.spec.job.standby = standby
    here.reply = NotCommandingError("the other one commands")
    here.turn(1.0)
    here.reply = BeaconReply(7, known=True)
    here.turn(1.0)
    assert looked == [standby] * looks
    assert len(here.sent) == 2
    assert here.reports.epoch == 7


def test_a_host_that_cannot_read_evidence_goes_on(here):
    here.evidence.sample = lambda: 1 / 0
    here.turn()
    assert len(here.sent) == 1


def test_usage_goes_with_a_heartbeat_until_one_is_answered(here, monkeypatch):
    counts = CallCounts()
    counts.methods["t.run"] = [1, 0, 0, 0]
    here.usage = Usage(1, lambda: [counts], dict[int, int])
    here.reply = TimeoutError()
    here.turn(1.0)
    here.reply = BeaconReply(7, known=True)
    here.turn(1.0)
    here.turn(1.0)
    calls = [sent.usage.get("calls") for sent in here.sent]
    assert calls == [{"t.run": [1, 0, 0, 0, 0, 0]}] * 2 + [None]


def test_usage_that_cannot_be_measured_costs_no_heartbeat(here):
    here.usage = SimpleNamespace(unsent=(0, {}), mark_sent=lambda _: None)  # type: ignore[assignment]
    here.turn()
    assert len(here.sent) == 1
