"""Pools of daemon threads: as many as allowed, none lost by an error, and no exit that waits for one."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial
from queue import SimpleQueue

import pytest

from dljob.runtime.process.daemon_threads import DaemonExecutor, DaemonThreads

WAIT_S = 30.0


def test_pool_runs_as_many_as_it_has_threads_and_the_rest_later():
    pool, gate, began = DaemonThreads(2, "two of them"), threading.Event(), SimpleQueue[int]()

    def work(number: int) -> None:
        began.put(number)
        gate.wait(WAIT_S)

    for number in range(4):
        pool.submit(partial(work, number))
    assert {began.get(timeout=WAIT_S) for _ in range(2)} == {0, 1}
    assert began.empty()
    gate.set()
    assert {began.get(timeout=WAIT_S) for _ in range(2)} == {2, 3}
    assert [thread.name for thread in threading.enumerate()].count("two of them") == 2


def refuse_start(_: threading.Thread) -> None:
    """Start no thread, as at the limit of processes."""
    raise RuntimeError("can't start new thread")


def test_work_waits_for_a_thread_where_no_more_can_be_started(monkeypatch):
    pool, go_on, done = DaemonThreads(2, "test"), threading.Event(), SimpleQueue[int]()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse_start)
        with pytest.raises(RuntimeError, match="new thread"):
            pool.submit(lambda: done.put(0))
    pool.submit(lambda: done.put(int(go_on.wait(WAIT_S))))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse_start)
        pool.submit(lambda: done.put(2))
    go_on.set()
    assert [done.get(timeout=WAIT_S) for _ in range(2)] == [1, 2]


def test_thread_of_a_pool_outlives_an_error_of_its_work(caplog):
    pool, done = DaemonThreads(1, "pool"), SimpleQueue[int]()
    pool.submit(lambda: done.put(1 // 0))
    pool.submit(lambda: done.put(2))
    assert done.get(timeout=WAIT_S) == 2
    assert "a thread of pool goes on after an error of its work" in caplog.text


def test_future_has_the_result_or_the_error_and_a_cancelled_call_is_not_made():
    executor, gate = DaemonExecutor(1, "pool"), threading.Event()
    first, cancelled = executor.submit(gate.wait, WAIT_S), executor.submit(pytest.fail)
    assert cancelled.cancel()
    gate.set()
    assert first.result(WAIT_S)
    assert executor.submit(divmod, 7, 2).result(WAIT_S) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        executor.submit(divmod, 7, 0).result(WAIT_S)


def test_process_exits_while_a_thread_waits():
    program = (
        "import sys, threading\n"
        "from dljob.runtime.process.daemon_threads import DaemonExecutor\n"
        "began = threading.Event()\n"
        "DaemonExecutor(1, 'pool').submit(lambda: (began.set(), threading.Event().wait()))\n"
        "began.wait()\n"
        "sys.exit(4)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=WAIT_S, check=False).returncode == 4
