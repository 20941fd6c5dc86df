"""The time that threads stand still for a role: counted once, whichever of them waits, and noted now and then."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from dljob import rpc
from dljob.calls.dispatch import CallPlan, Send
from dljob.calls.mark import RpcMark
from dljob.runtime.process import wire
from dljob.runtime.process.messages import Call, Reply
from dljob.runtime.process.wait_clocks import WaitClock, standing_still
from dljob.runtime.rpc import server
from dljob.runtime.rpc.futures import CallFuture, Invocation, ready


def test_threads_that_wait_together_count_once():
    now, noted = [100.0], list[tuple[str, int]]()
    clock = WaitClock("rollout", lambda: now[0])
    clock.note = lambda name, value: noted.append((name, value))
    with clock:
        now[0] += 1.0
        with clock:  # another thread's wait
            now[0] += 1.0
        now[0] += 0.5
    assert noted == [("waited:rollout", 2500)]


def test_short_waits_are_noted_once_a_second():
    now, noted = [100.0], list[int]()
    clock = WaitClock("rollout", lambda: now[0])
    clock.note = lambda _name, value: noted.append(value)
    for _ in range(25):
        with clock:
            now[0] += 0.125
    assert noted == [125, 1125, 2125, 3125]


def test_a_wait_is_noted_while_it_lasts():
    now, noted = [100.0], list[int]()
    clock = WaitClock("rollout", lambda: now[0])
    clock.note = lambda _name, value: noted.append(value)
    with clock:
        now[0] += 2.0
        clock.note_present()
        now[0] += 2.0
        clock.note_present()
        now[0] += 0.25
    clock.note_present()  # its end came too soon after the last note to be noted itself
    clock.note_present()
    assert noted == [2000, 4000, 4250]


def test_clock_of_a_role_outlives_a_call():
    noted: list[str] = []
    first = standing_still("only-here", lambda *_: None)
    again = standing_still("only-here", lambda name, _value: noted.append(name))
    with again:
        pass
    assert first is again
    assert noted == ["waited:only-here"]


def test_rank_that_runs_calls_tells_for_how_long(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(server, "time", SimpleNamespace(monotonic=lambda: now[0]))
    callee = server.RpcServer("w")
    callee.open(Sleeper(now))
    assert callee.served_ms is None
    for number in range(2):
        reply = callee.answer(Call(str(number), 0, 1, "work", 5.0, "me"), wire.dump(((), {}), ""))
        assert not reply.error_type, reply.message
        now[0] += 1.0  # between calls
    assert callee.served_ms == 4000


class Sleeper:
    """A callee whose calls take two seconds."""

    def __init__(self, now: list[float]) -> None:
        self.now = now

    @rpc
    def work(self) -> None:
        """Take two seconds."""
        self.now[0] += 2.0


def test_wait_for_an_answer_is_noted_for_its_role():
    noted: list[str] = []
    sent = CallPlan((Send(0, 0),), (((), {}),))
    made = Invocation("callee", "f", RpcMark(), sent, (ready(Reply(payload=wire.dump(7, ""))),), note=note_in(noted))
    assert CallFuture(ready(made), "callee.f").result(5.0) == [7]
    assert noted == ["waited:callee"]


def note_in(noted: list[str]) -> Callable[[str, int], None]:
    """Return a `note` that keeps the names."""
    return lambda name, _value: noted.append(name)
