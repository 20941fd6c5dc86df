"""Taking a thread back from user code."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from dljob.runtime.process.loop import settle
from dljob.runtime.process.thread_interrupt import ThreadInterrupt, ThreadInterrupted, takes_lock


def in_thread(recall: ThreadInterrupt, work):
    """Run work in a thread of its own; gives the thread, and where its result will be."""
    results: list = []

    def body():
        try:
            results.append(recall.run(work))
        except BaseException as error:  # noqa: BLE001 - it is looked at
            results.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    return thread, results


def test_work_that_ends_by_itself_gives_what_it_gives():
    assert ThreadInterrupt().run(lambda: 7) == 7
    with pytest.raises(ValueError, match="boom"):
        ThreadInterrupt().run(lambda: int("boom"))


@pytest.mark.parametrize("kind", ["loop", "catches", "async"])
def test_code_that_goes_on_is_called_back(kind):
    recall, going = ThreadInterrupt(), threading.Event()

    def loop():
        going.set()
        while True:
            pass

    def catches():
        try:
            loop()
        except Exception:  # noqa: BLE001 - as user code does
            return "caught"

    async def sleeps():
        going.set()
        await asyncio.sleep(3600)

    work = {"loop": loop, "catches": catches, "async": lambda: settle(sleeps())}[kind]
    thread, results = in_thread(recall, work)
    assert going.wait(30)
    recall.order()
    assert recall.ordered
    recall.interrupt()
    thread.join(30)
    assert results == [None]


def test_code_that_lets_nothing_through_is_tried_again():
    recall, caught = ThreadInterrupt(), []

    def work():
        while True:
            try:
                while True:
                    pass
            except ThreadInterrupted:
                caught.append(1)
                if len(caught) == 3:
                    raise

    thread, results = in_thread(recall, work)
    while thread.is_alive():
        recall.interrupt()
        thread.join(0.01)
    assert results == [None]


class Entered:
    """A lock that Python code takes in `with`, as threading.Condition does."""

    def __init__(self, lock):
        self.lock = lock

    def __enter__(self):
        self.lock.acquire()

    def __exit__(self, *_):
        self.lock.release()


@pytest.mark.parametrize("kind", ["acquire", "with", "condition"])
def test_a_lock_that_is_taken_just_then_is_given_back(kind):
    lock, recall, inside = threading.Lock(), ThreadInterrupt(), threading.Event()
    taken = {"with": Entered(lock), "condition": threading.Condition(lock)}

    def acquires():
        lock.acquire()
        try:
            inside.set()
            while True:
                pass
        finally:
            lock.release()

    def enters():
        with taken[kind]:
            inside.set()
            while True:
                pass

    with lock:
        thread, results = in_thread(recall, acquires if kind == "acquire" else enters)
        while not takes_lock(thread.ident):
            pass
        assert not recall.interrupt(), "it would come before anybody could release the lock"
    assert inside.wait(30)
    while not recall.interrupt():
        pass
    thread.join(30)
    assert results == [None]
    assert lock.acquire(blocking=False)


def test_code_that_polls_a_lock_is_called_back_all_the_same():
    lock, recall = threading.Lock(), ThreadInterrupt()

    def polls():
        while not lock.acquire(timeout=0.01):
            pass

    with lock:
        thread, results = in_thread(recall, polls)
        while not recall.interrupt():
            pass
        thread.join(30)
    assert results == [None]


def test_code_that_waits_for_a_condition_is_called_back_at_once():
    recall, news = ThreadInterrupt(), threading.Condition()

    def waits():
        with news:
            while True:
                news.wait(0.01)

    thread, results = in_thread(recall, waits)
    while (frame := sys._current_frames().get(thread.ident)) is None or frame.f_code.co_name != "wait":
        pass
    recall.interrupt()
    thread.join(30)
    assert results == [None]
    assert news.acquire(blocking=False)


def test_nothing_is_raised_in_a_thread_that_is_back():
    recall, go = ThreadInterrupt(), threading.Event()
    after: list = []

    def body():
        recall.run(lambda: None)
        go.wait(30)
        after.append(sum(range(1000)))

    thread = threading.Thread(target=body)
    thread.start()
    while recall._ident:
        pass
    recall.interrupt()
    go.set()
    thread.join(30)
    assert after == [499500]


def test_an_interrupt_just_before_the_end_is_taken_back():
    """Raised by another thread while the work returns: it must not be raised outside."""
    for _ in range(200):
        recall, begun = ThreadInterrupt(), threading.Event()

        def body(recall=recall, begun=begun):
            recall.run(begun.set)
            return sum(range(100))

        thread, results = in_thread(ThreadInterrupt(), body)
        begun.wait(30)
        recall.interrupt()
        thread.join(30)
        assert results == [4950]


def test_an_interrupt_just_before_the_work_is_not_raised_outside():
    recall, begun = ThreadInterrupt(), []

    class Gate:
        """The moment at which it is open to an interrupt."""

        def __init__(self):
            self.own, self.opened = threading.Lock(), False

        def __enter__(self):
            self.own.acquire()

        def __exit__(self, *_):
            self.own.release()
            if not self.opened:
                self.opened = True
                other = threading.Thread(target=recall.interrupt)
                other.start()
                other.join()

    recall._gate = Gate()
    thread, results = in_thread(recall, lambda: begun.append(1))
    thread.join(30)
    assert results == [None]
    assert begun == []
    assert recall._ident == 0, "nothing is raised in this thread any more"


def test_an_async_timeout_of_user_code_is_its_own():
    async def late():
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        settle(late())
