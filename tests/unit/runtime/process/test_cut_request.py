"""`job.checkpoint()`: a rank's request for a consistent cut."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from dljob.runtime.process.job_control import JobControl


class CutAnswers:
    """PrimeMaster, which answers as told."""

    def __init__(self, **said: Any) -> None:
        self._said = said
        self.asked: list[tuple[str, Any]] = []

    def ask(self, what: str, args: Any, timeout_s: float) -> Future[Any]:
        del timeout_s
        self.asked.append((what, args))
        future: Future[Any] = Future()
        future.set_result(self._said)
        return future


def test_a_request_returns_the_number_of_the_cut_or_none_where_there_can_be_none():
    line = CutAnswers(number=3, why="")
    assert JobControl(line, "t/0", {"t": 1}).checkpoint() == 3
    assert line.asked == [("cut", ("t/0",))]
    assert JobControl(CutAnswers(number=2, why="t/1 is Starting"), "t/0", {"t": 2}).checkpoint() is None
