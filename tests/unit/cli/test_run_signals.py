"""What signals do to `dljob run`: each of a storm counts once, and `nohup` holds."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from dljob.cli import runner


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(runner, "_heard", -runner.ONCE_S)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_two_signals_within_a_second_count_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_hangup_that_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    runner.listen()
    signal.raise_signal(signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    runner.listen()
    with pytest.raises(runner.Interrupted):
        signal.raise_signal(signal.SIGHUP)
