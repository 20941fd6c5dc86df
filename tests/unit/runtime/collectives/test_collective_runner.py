"""Operations of a group end, whatever becomes of its members."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import pytest

from dljob.errors import CollectiveAbortedError
from dljob.runtime.collectives import runner as module
from dljob.runtime.collectives.runner import OperationRunner


class Watched:
    def __init__(self) -> None:
        self.lost = threading.Event()
        self.works: Any = None

    def at_work(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self.works is None else self.works

    def error(self, group: str, what: str, *, recreate: bool) -> CollectiveAbortedError:
        return CollectiveAbortedError(f"{what}: lost, again {recreate}", group=group, epoch=7, lost=("a/1",))


def runner(watch: Watched, *, abortable: bool) -> OperationRunner:
    return OperationRunner("w", 7, watch, abortable=abortable, recreate=True)


def broken() -> None:
    raise RuntimeError("Connection closed by peer")


def wrong() -> None:
    raise RuntimeError("shapes differ")


@pytest.mark.parametrize("abortable", [True, False])
def test_an_operation_runs_in_its_callers_thread_if_it_can_be_broken_off(abortable):
    made, threads = runner(Watched(), abortable=abortable), []
    for _ in range(2):
        made.run("allreduce", lambda: threads.append(threading.current_thread()))
    assert threads[0] is threads[1]
    assert (threads[0] is threading.current_thread()) == abortable
    made.end()
    if not abortable:
        threads[0].join(60)
        assert not threads[0].is_alive()


@pytest.mark.parametrize("abortable", [True, False])
def test_the_watch_knows_of_an_operation_that_is_under_way(abortable):
    watch = Watched()
    watch.works = threading.Lock()
    seen: list[bool] = []
    runner(watch, abortable=abortable).run("allreduce", lambda: seen.append(watch.works.locked()))
    assert [*seen, watch.works.locked()] == [True, False]


@pytest.mark.parametrize("abortable", [True, False])
def test_a_ranks_own_error_is_raised_as_it_is(abortable):
    made = runner(Watched(), abortable=abortable)
    with pytest.raises(RuntimeError, match="shapes differ"):
        made.run("allreduce", wrong)
    with pytest.raises(ZeroDivisionError):
        made.run("allreduce", lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    made.run("allreduce", lambda: None)


def test_a_broken_connection_is_told_with_who_was_lost(monkeypatch):
    watch = Watched()
    made = runner(watch, abortable=True)
    threading.Timer(0.05, watch.lost.set).start()
    for _ in range(2):
        with pytest.raises(CollectiveAbortedError, match="allreduce: lost, again True") as caught:
            made.run("allreduce", broken)
        assert caught.value.lost == ("a/1",)


def test_a_broken_connection_that_nobody_explains_is_the_end_of_the_group_too(monkeypatch):
    monkeypatch.setattr(module, "TOLD_S", 0.01)
    made = runner(Watched(), abortable=True)
    for operation in (broken, lambda: None):
        with pytest.raises(CollectiveAbortedError, match="though no member is known to be lost") as caught:
            made.run("barrier", operation)
        assert (caught.value.lost, caught.value.epoch) == ((), 7)


def test_an_operation_that_cannot_be_broken_off_is_left_when_a_member_is_lost():
    watch, never = Watched(), threading.Event()
    made = runner(watch, abortable=False)
    threading.Timer(0.05, watch.lost.set).start()
    began = time.monotonic()
    with pytest.raises(CollectiveAbortedError, match="barrier: lost"):
        made.run("barrier", lambda: never.wait() and None)
    assert time.monotonic() - began < 30
    never.set()


def test_an_operation_that_is_broken_off_says_who_was_lost():
    watch: Any = Watched()

    def cut() -> None:
        watch.lost.set()
        broken()

    with pytest.raises(CollectiveAbortedError, match="send: lost"):
        runner(watch, abortable=True).run("send", cut)
