"""Step counters: never half a value, whoever dies when; readable while the writer hangs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dljob.runtime.process.step_counters import ROOM, Renewal, StepCounters, now


@pytest.fixture
def made() -> Iterator[StepCounters]:
    counters = StepCounters.create(2)
    yield counters
    counters.close()


@pytest.fixture
def seen(made: StepCounters) -> Iterator[StepCounters]:
    """The same segment as another process has it."""
    counters = StepCounters.opened(os.dup(made.fd))
    yield counters
    counters.close()


def test_a_step_written_by_the_rank_is_read_by_the_agent(made, seen):
    assert (len(seen.slots), seen.ranks(), seen.heart(), seen.renewal()) == (2, (), 0.0, None)
    before = now()
    made.slots[1].begin(5, 1)
    assert [(c.rank, c.incarnation, c.step) for c in seen.ranks()] == [(5, 1, None)]
    made.slots[1].put(5, 1, 10**30, {"loss": 0.5, "worst": float("inf")})
    made.count_heartbeat()
    made.renew(Renewal(3, 12.5, 14.25, known=False))
    (count,) = seen.ranks()
    assert (count.rank, count.incarnation, count.step) == (5, 1, 10**30)
    assert count.metrics == {"loss": 0.5, "worst": float("inf")}
    assert before <= count.at <= seen.heart() <= now()
    assert seen.renewal() == Renewal(3, 12.5, 14.25, known=False)


def test_a_process_that_was_followed_is_not_heard_any_more(made):
    slot = made.slots[0]
    slot.begin(0, 1)
    slot.put(0, 1, 7, {})
    slot.begin(0, 2)
    slot.put(0, 1, 8, {})
    assert [(c.incarnation, c.step) for c in made.ranks()] == [(2, None)]
    slot.put(0, 2, 6, {})
    assert [(c.incarnation, c.step) for c in made.ranks()] == [(2, 6)]


def test_a_writer_that_died_between_two_instructions_leaves_the_value_before(made):
    slot, memory = made.slots[0], made._memory
    for step in range(200):
        slot.put(0, 1, step, {"loss": step / 3})
        before = bytes(memory)
        slot.put(0, 1, step + 1, {"loss": (step + 1) / 3})
        after = bytes(memory)
        changed = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
        cut = changed[0] + 7919 * step % (changed[-1] + 1 - changed[0])
        memory[:] = after[:cut] + before[cut:]
        count = slot.read()
        assert count is not None
        assert (count.step, count.metrics) == (step, {"loss": step / 3})


def test_nonsense_in_the_memory_is_no_value(made):
    memory = made._memory
    memory[:] = b"\xff" * len(memory)
    assert (made.ranks(), made.renewal(), made.heart()) == ((), None, 0.0)
    made.slots[0].put(0, 1, 3, {})
    assert [c.step for c in made.ranks()] == [3]


def test_a_reader_beside_a_writer_never_sees_half_a_value(made, seen):
    code = (
        "import sys; from dljob.runtime.process.step_counters import StepCounters\n"
        "c = StepCounters.opened(int(sys.argv[1]))\n"
        "step = 0\n"
        "while True:\n"
        "    step += 1\n"
        "    c.slots[0].put(0, 1, step, {'x': step, 'y' * (step % 300): step})\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(made.fd)], pass_fds=[made.fd]) as writer:
        try:
            last, looks = 0, 0
            while looks < 3000:
                for count in seen.ranks():
                    assert count.step is not None
                    assert set(count.metrics.values()) == {count.step}
                    assert count.step >= last - 1, "while one is being written the one before is read"
                    last, looks = count.step, looks + 1
        finally:
            writer.kill()
    assert last > 100


def test_threads_of_a_rank_that_write_at_once_leave_a_whole_value(made):
    def write(of: int) -> None:
        for step in range(500):
            made.slots[0].put(0, 1, 1000 * of + step, {"of": of})

    threads = [threading.Thread(target=write, args=(of,)) for of in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (count,) = made.ranks()
    assert (count.step, count.number) in {(1499, 1000), (2499, 1000)}


def test_more_metrics_than_there_is_room_for_are_cut_and_said_once(made, capsys):
    many = {f"metric number {i}": i / 7 for i in range(1000)}
    for step in (1, 2):
        made.slots[0].put(0, 1, step, many)
        (count,) = made.ranks()
        assert count.step == step
        assert list(count.metrics.items()) == list(many.items())[: len(count.metrics)]
        assert len(count.metrics) > 100
    assert capsys.readouterr().err.count("are left out") == 1


def test_a_value_that_does_not_fit_is_refused():
    counters = StepCounters.create(1)
    with pytest.raises(ValueError, match="does not fit"):
        counters._heartbeat.write(b"x" * 64)
    counters.close()


def test_a_file_that_is_no_segment_is_refused():
    fd = os.memfd_create("t", os.MFD_CLOEXEC)
    os.ftruncate(fd, ROOM)
    with pytest.raises(ValueError, match="no segment"):
        StepCounters.opened(fd)
    os.close(fd)


def test_a_closed_segment_leaves_no_descriptor():
    before = descriptors()
    StepCounters.create(1).close()
    assert not descriptors() - before, "what earlier tests have left may be closed meanwhile"


def descriptors() -> Counter[str]:
    """Return the open files of this process, by name."""
    found = Counter[str]()
    for file in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of this listing
            found[str(file.readlink())] += 1
    return found


def test_a_note_stands_beside_the_steps_until_the_next_process(made, seen):
    slot = made.slots[0]
    slot.note(3, 1, "held:policy", 1)  # no process has begun
    assert seen.ranks() == ()
    slot.begin(3, 1)
    slot.note(3, 1, "held:policy", 4)
    assert [(c.step, c.beside) for c in seen.ranks()] == [(None, {"held:policy": 4})]
    slot.put(3, 1, 9, {"loss": 0.5})
    slot.note(3, 1, "device", 100)
    number = slot.number()
    slot.note(3, 1, "device", 100)
    (count,) = seen.ranks()
    assert (count.step, count.metrics, count.beside) == (9, {"loss": 0.5}, {"held:policy": 4, "device": 100})
    assert slot.number() == number
    slot.begin(3, 2)
    slot.note(3, 1, "device", 7)
    assert [c.beside for c in seen.ranks()] == [{}]
