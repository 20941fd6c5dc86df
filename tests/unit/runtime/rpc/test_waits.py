"""The time that threads stand still for a role: counted once, whichever of them waits, and noted now and then."""

from __future__ import annotations

from dljob.runtime.rpc.waits import WaitClock, standing_still


def test_threads_that_wait_together_count_once() -> None:
    now, noted = [100.0], list[tuple[str, int]]()
    clock = WaitClock("rollout", lambda: now[0])
    clock.note = lambda name, value: noted.append((name, value))
    with clock:
        now[0] += 1.0
        with clock:  # another thread's wait
            now[0] += 1.0
        now[0] += 0.5
    assert noted == [("waited:rollout", 2500)]


def test_short_waits_are_noted_once_a_second() -> None:
    now, noted = [100.0], list[int]()
    clock = WaitClock("rollout", lambda: now[0])
    clock.note = lambda _name, value: noted.append(value)
    for _ in range(25):
        with clock:
            now[0] += 0.125
    assert noted == [125, 1250, 2375]


def test_clock_of_a_role_outlives_a_call() -> None:
    noted: list[str] = []
    first = standing_still("only-here", lambda *_: None)
    again = standing_still("only-here", lambda name, _value: noted.append(name))
    with again:
        pass
    assert first is again
    assert noted == ["waited:only-here"]
