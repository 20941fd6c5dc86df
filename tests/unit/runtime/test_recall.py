"""Taking a thread back from user code."""

from __future__ import annotations

import asyncio
import threading

import pytest

from dljob.runtime.loop import settle
from dljob.runtime.recall import Recall, Recalled


def in_thread(recall: Recall, work):
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
    assert Recall().run(lambda: 7) == 7
    with pytest.raises(ValueError, match="boom"):
        Recall().run(lambda: int("boom"))


@pytest.mark.parametrize("kind", ["loop", "catches", "async"])
def test_code_that_goes_on_is_called_back(kind):
    recall, going = Recall(), threading.Event()

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
    recall, caught = Recall(), []

    def work():
        while True:
            try:
                while True:
                    pass
            except Recalled:
                caught.append(1)
                if len(caught) == 3:
                    raise

    thread, results = in_thread(recall, work)
    while thread.is_alive():
        recall.interrupt()
        thread.join(0.01)
    assert results == [None]


def test_nothing_is_raised_in_a_thread_that_is_back():
    recall, go = Recall(), threading.Event()
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


def test_one_that_came_just_before_the_end_is_taken_back():
    """Raised by another thread while the work returns: it must not be raised outside."""
    for _ in range(200):
        recall, begun = Recall(), threading.Event()

        def body(recall=recall, begun=begun):
            recall.run(begun.set)
            return sum(range(100))

        thread, results = in_thread(Recall(), body)
        begun.wait(30)
        recall.interrupt()
        thread.join(30)
        assert results == [4950]


def test_one_that_comes_just_before_the_work_is_not_raised_outside():
    recall, begun = Recall(), []

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
