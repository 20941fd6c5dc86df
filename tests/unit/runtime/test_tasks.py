"""A task's owner hears its end: an exception is logged, told, or followed by another try."""

from __future__ import annotations

import asyncio
import logging

import pytest

from dljob import tasks
from dljob.errors import UnreachableError
from dljob.tasks import ErrorLog, TaskOwner


class OverError(Exception):
    """Ordered."""


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "FIRST_S", 0.0)


class Work:
    """Fails so many times, then ends."""

    def __init__(self, failures: int, error: Exception | None = None) -> None:
        self.failures, self.runs, self.error = failures, 0, error or KeyError("wrong")

    async def __call__(self) -> None:
        self.runs += 1
        if self.runs <= self.failures:
            raise self.error


async def settled(owner: TaskOwner) -> None:
    while owner.tasks:
        await asyncio.wait(owner.tasks)


async def test_an_exception_is_logged_with_its_traceback_and_told(caplog):
    heard: list[Exception] = []
    owner = TaskOwner(heard.append)
    owner.start("census", Work(1)())
    await settled(owner)
    assert [repr(error) for error in heard] == ["KeyError('wrong')"]
    assert "census ended by an exception" in caplog.text
    assert "Traceback" in caplog.text


async def test_a_task_may_have_somebody_of_its_own_who_hears_its_exception():
    heard: list[Exception] = []
    owner = TaskOwner(lambda _: pytest.fail("not the owner's"))
    owner.start("census", Work(1)(), heard.append)
    await settled(owner)
    assert len(heard) == 1


async def test_a_repeated_task_is_made_anew_until_it_returns(caplog):
    owner, work = TaskOwner(lambda _: pytest.fail("it recovered")), Work(3)
    owner.repeat("census", work)
    await settled(owner)
    assert work.runs == 4
    assert caplog.text.count("it is started again") == 3


async def test_a_repeated_task_that_never_works_is_told():
    heard: list[Exception] = []
    owner, work = TaskOwner(heard.append), Work(99)
    owner.repeat("census", work)
    await settled(owner)
    assert (work.runs, len(heard)) == (tasks.TRIES, 1)


async def test_pauses_double_up_to_a_bound(monkeypatch):
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(tasks, "FIRST_S", 0.25)
    monkeypatch.setattr(tasks.asyncio, "sleep", sleep)
    owner = TaskOwner(lambda _: None)
    owner.repeat("census", Work(99))
    await settled(owner)
    assert slept == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0]


@pytest.mark.parametrize("repeated", [False, True])
async def test_an_expected_exception_ends_a_task_as_a_cancellation_does(repeated, caplog):
    owner, work = TaskOwner(lambda _: pytest.fail("expected"), expected=(OverError,)), Work(99, OverError())
    owner.repeat("census", work) if repeated else owner.start("census", work())
    await settled(owner)
    assert (work.runs, caplog.text) == (1, "")


async def test_a_cancelled_task_is_not_reported():
    heard: list[Exception] = []
    owner = TaskOwner(heard.append)
    owner.start("census", asyncio.Event().wait())
    owner.close()
    await settled(owner)
    assert heard == []


def test_errors_of_the_same_words_are_logged_once_until_it_works(caplog):
    errors = ErrorLog("the census", logging.getLogger("dljob.census"))
    for _ in range(3):
        errors.failed(KeyError("a"))
    errors.failed(KeyError("b"))
    errors.worked()
    errors.failed(KeyError("b"))
    errors.failed(UnreachableError("away"))
    assert [(record.name, record.getMessage()) for record in caplog.records] == [
        ("dljob.census", "the census failed and is tried again: KeyError: 'a'"),
        ("dljob.census", "the census failed and is tried again: KeyError: 'b'"),
        ("dljob.census", "the census failed and is tried again: KeyError: 'b'"),
        ("dljob.census", "the census failed and is tried again: UnreachableError: away"),
    ]
    assert [bool(record.exc_info) for record in caplog.records] == [True, True, True, False]
