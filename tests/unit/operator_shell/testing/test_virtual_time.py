"""The loop of a simulated operator: asyncio's primitives on virtual time, a crash between two callbacks."""

from __future__ import annotations

import asyncio

from dljob.testing.world.fault_schedule import chance
from dljob_operator.testing.virtual_time import Agenda, VirtualLoop


class Process:
    """A loop with a list of what its coroutines noted, and when."""

    def __init__(self) -> None:
        self.agenda = Agenda(100.0, chance("test"))
        self.failures: list[str] = []
        self.loop = VirtualLoop(self.agenda, self.failures.append)
        self.notes: list[tuple[float, str]] = []

    def note(self, what: str) -> None:
        self.notes.append((self.agenda.now - 100.0, what))

    def run(self, seconds: float) -> None:
        self.agenda.run(100.0 + seconds, lambda: False)


async def sleeper(it: Process, name: str, *pauses: float) -> None:
    for pause in pauses:
        await asyncio.sleep(pause)
        it.note(name)


def test_sleeps_of_two_loops_share_one_agenda() -> None:
    one, other = Process(), Process()
    other.loop = VirtualLoop(one.agenda, other.failures.append)
    one.loop.create_task(sleeper(one, "one", 1.0, 1.0))
    other.loop.create_task(sleeper(one, "other", 1.5))
    one.run(10.0)
    assert one.notes == [(1.0, "one"), (1.5, "other"), (2.0, "one")]
    assert one.agenda.now == 110.0


def test_a_timeout_a_task_group_and_an_event_work() -> None:
    it = Process()

    async def main() -> None:
        event = asyncio.Event()
        try:
            async with asyncio.timeout(5.0):
                await event.wait()
        except TimeoutError:
            it.note("late")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(sleeper(it, "first", 1.0))
            tasks.create_task(sleeper(it, "second", 2.0))
        it.note("both")

    done = it.loop.create_task(main())
    it.run(60.0)
    assert done.done()
    assert it.notes == [(5.0, "late"), (6.0, "first"), (7.0, "second"), (7.0, "both")]


def test_a_crash_stops_everything_and_leaves_no_task() -> None:
    it = Process()
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(3.0)
            it.note("never")
        finally:
            ended.append("unwound")

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(work())
            await asyncio.sleep(1.0)
            it.loop.kill(process)
            it.note("until its next await")
            await asyncio.sleep(0)
            it.note("never")

    process = it.loop.create_task(main())
    it.run(60.0)
    assert it.notes == [(1.0, "until its next await")]
    assert process.cancelled()
    assert ended == ["unwound"]
    assert it.failures == []


def test_an_exception_of_a_callback_is_reported() -> None:
    it = Process()
    it.loop.call_later(1.0, lambda: {}[1])
    it.run(2.0)
    assert it.failures == ["KeyError: 1"]
