"""Calls that take longer than their caller waits or lives."""

from __future__ import annotations

import pytest

from dljob.testing.world.fault_schedule import chance
from dljob_operator.testing.simulated_process import SimulatedProcess
from dljob_operator.testing.slow_calls import HUNG_S, SlowCall, SlowCalls, arrival
from dljob_operator.testing.virtual_time import Agenda


class Process(SimulatedProcess):
    """A process without an operator in it."""

    def past(self, kind):
        return None

    def hear(self, kind, body, *, gone):
        pass

    async def travel(self, *, reads=False):
        pass

    def end(self):
        self.alive = False


class Caller:
    """A caller of one slow call, with the times at which the request arrived and the call was over."""

    def __init__(self, slow: SlowCall, limit: float) -> None:
        self.agenda = Agenda(0.0, chance("slow"))
        self.problems: list[str] = []
        self.calls = SlowCalls(self.agenda, self.problems.append)
        self.process = Process(self.agenda, 1, self.problems.append)
        self.arrived: list[float] = []
        self.said: list[tuple[float, str]] = []
        self.main = self.process.loop.create_task(self._call(slow, limit))

    async def _call(self, slow: SlowCall, limit: float) -> None:
        def do() -> str:
            self.arrived.append(self.agenda.now)
            return "answer"

        call = arrival(self.process, self.calls, slow, do)
        try:
            answer = await self.calls.wait(self.process, limit, call, "GET it")
        except TimeoutError:
            answer = "late"
        self.said.append((self.agenda.now, answer))

    def run(self, seconds: float) -> Caller:
        self.agenda.run(seconds, lambda: False)
        return self


@pytest.mark.parametrize("slow", [SlowCall(request=4.0), SlowCall(answer=4.0), SlowCall(2.0, 2.0)])
def test_an_answer_in_time_is_returned(slow: SlowCall) -> None:
    it = Caller(slow, 30.0).run(100.0)
    assert (it.arrived, it.said, it.problems) == ([slow.request], [(4.0, "answer")], [])


def test_a_request_arrives_after_its_caller_gave_up() -> None:
    it = Caller(SlowCall(request=7200.0), 30.0).run(10_000.0)
    assert (it.arrived, it.said, it.problems) == ([7200.0], [(30.0, "late")], [])


def test_a_request_arrives_after_its_caller_died() -> None:
    it = Caller(SlowCall(request=60.0), 30.0).run(5.0)
    it.process.end()
    it.process.loop.kill(it.main)
    it.run(100.0)
    assert (it.arrived, it.said, it.problems) == ([60.0], [], [])


def test_a_caller_without_a_limit_is_reported() -> None:
    it = Caller(SlowCall(answer=7200.0), float("inf")).run(HUNG_S - 1)
    assert it.problems == []
    assert it.run(HUNG_S + 1).problems == ["hung: operator 1 waits 40 s for GET it, and other jobs with it"]


def test_requests_under_way_arrive_when_the_faults_end() -> None:
    it = Caller(SlowCall(request=7200.0), 30.0).run(50.0)
    it.calls.end()
    assert it.arrived == [50.0]
    assert it.run(10_000.0).arrived == [50.0]
