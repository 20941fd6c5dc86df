"""What signals do to `dljob run`: each of a storm counts once, and `nohup` holds."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from dljob.cli import runner


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(runner, "_signal_at", -runner.ONCE_S)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGALRM)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_two_signals_within_a_second_count_as_one(monkeypatch):
    now = iter([10.0, 10.5, 11.4, 12.6])
    # A clock of its own: other threads ask that of the module `time`.
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: next(now)))
    runner.listen()
    with pytest.raises(runner.Interrupted, match="SIGTERM"):
        signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGHUP)
    with pytest.raises(runner.Interrupted):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("handlers")
def test_a_hangup_that_is_ignored_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    runner.listen()
    signal.raise_signal(signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    runner.listen()
    with pytest.raises(runner.Interrupted):
        signal.raise_signal(signal.SIGHUP)


@pytest.mark.usefixtures("handlers")
def test_a_stop_waits_for_no_answer_of_a_primemaster_that_hangs(monkeypatch):
    monkeypatch.setattr(runner, "STOP_S", 0.1)
    waits = SimpleNamespace(command=lambda *_, **__: time.sleep(60.0))
    handle = SimpleNamespace(name="full", connection=waits, record=SimpleNamespace(over=False))
    stopped, began = object.__new__(runner.Runner), time.monotonic()
    stopped._handle = handle  # type: ignore[assignment]
    stopped._stop_job(runner.Interrupted("SIGINT"))
    assert time.monotonic() - began < 30.0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
