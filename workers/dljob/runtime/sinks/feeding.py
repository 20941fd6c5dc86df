"""Rows for one sink: which of them it gets, and the thread that gives them, which a sink may block for ever."""

from __future__ import annotations

import json
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dljob.runtime.sinks.sink import MetricSink, OpenSink, SinkRun

ROOM = 1000
"""Rows that wait for a sink; at the 5 rows a second of a fast job, more than 3 minutes."""
SAVE_S = 1.0
"""Shortest time between two writes of a sink's position."""
POSITION = "position.json"
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_USER_INFO = re.compile(r"://[^/@\s]+@")

Say = Callable[[str, str], None]
"""Reports a problem of a sink: its name, and what happened."""


@dataclass(frozen=True, slots=True)
class MetricRow:
    """Metrics of one step. `process` is (attempt, incarnation) of the rank's process that reported it."""

    process: tuple[int, int]
    step: int
    at: float
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SinkPosition:
    """How far a sink has written: the process and step of its last row, and the highest step of all."""

    process: tuple[int, int]
    step: int
    highest: int


def went_back(last: SinkPosition | None, row: MetricRow) -> bool:
    """Return whether the job has gone back to an earlier step, so that the rows from this step on are void."""
    if last is None or row.step > last.step:
        return False
    # The same process reports a step again when it adds metrics to it.
    return row.process != last.process or row.step < last.step


def follow(last: SinkPosition | None, row: MetricRow) -> SinkPosition:
    """Return the position after a row."""
    return SinkPosition(row.process, row.step, row.step if last is None else max(last.highest, row.step))


def redacted(text: str, environment: Mapping[str, str]) -> str:
    """Return a text without the values of variables that look like secrets, and without users of URLs."""
    for name, value in environment.items():
        if len(value) >= 4 and _SECRET.search(name):
            text = text.replace(value, "***")
    return _USER_INFO.sub("://***@", text)


class SinkFeeder:
    """Gives one sink its rows, in a thread of its own."""

    def __init__(self, name: str, opened: Callable[[], OpenSink], run: SinkRun, say: Say) -> None:
        """`opened` imports the entry point."""
        self.name = name
        self._opened, self._run, self._say = opened, run, say
        self._rows: queue.Queue[MetricRow | None] = queue.Queue(ROOM)
        self._last: SinkPosition | None = None
        self._saved = 0.0
        self._dropped = self._unsaved = self._ends = False
        self.thread = threading.Thread(target=self._main, name=f"sink-{name}", daemon=True)

    def put(self, row: MetricRow) -> None:
        """Queue a row; it is dropped while the queue is full, which is said once."""
        try:
            self._rows.put_nowait(row)
        except queue.Full:
            if not self._dropped:
                self._dropped = True
                self._say(self.name, f"is too slow or hangs: {ROOM} rows wait, and later ones are dropped")

    def end(self) -> None:
        """Order the thread to close the sink after the rows that wait."""
        self._ends = True
        with suppress(queue.Full):  # then it finds the end behind them
            self._rows.put_nowait(None)

    def _next(self) -> MetricRow | None:
        """Wait for a row; None: the sink is to be closed."""
        return None if self._ends and self._rows.empty() else self._rows.get()

    def _main(self) -> None:
        try:
            self._last = load(self._run.folder)
            sink = self._opened()(replace(self._run, resumed=self._last is not None))
            if sink is None:
                self._drain()
                return
            while (row := self._next()) is not None:
                self._give(sink, row)
            sink.close()
            self._save(now=True)
        except Exception as error:  # noqa: BLE001 - others wrote it; the other sinks go on
            self._say(self.name, f"failed and gets no more rows: {type(error).__name__}: {error}")
            self._drain()

    def _drain(self) -> None:
        while self._next() is not None:
            pass

    def _give(self, sink: MetricSink, row: MetricRow) -> None:
        rewind: Callable[[int], None] | None = getattr(sink, "rewind", None)
        if self._last is not None and row.process < self._last.process:
            return  # a process that is being replaced
        if rewind is not None:
            if went_back(self._last, row):
                rewind(row.step)
            sink.write(row.step, row.metrics, row.at)
        elif self._last is None or row.step > self._last.highest:
            sink.write(row.step, row.metrics, row.at)
        self._last = follow(self._last, row)
        self._save(now=False)

    def _save(self, *, now: bool) -> None:
        if self._last is not None and (now or time.monotonic() - self._saved >= SAVE_S):
            self._saved = time.monotonic()
            try:
                save(self._run.folder, self._last)
            except OSError as error:
                if not self._unsaved:
                    self._unsaved = True
                    problem = f"its position is not saved: {error.strerror or error}"
                    self._say(self.name, f"goes on, but {problem}; another PrimeMaster may give it rows again")


def load(folder: Path) -> SinkPosition | None:
    """Return the position that an earlier process has saved; None if there is none that can be read."""
    try:
        saved: dict[str, Any] = json.loads((folder / POSITION).read_text(encoding="utf-8"))
        attempt, incarnation = saved["life"]
        return SinkPosition((int(attempt), int(incarnation)), int(saved["step"]), int(saved["highest"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def save(folder: Path, position: SinkPosition) -> None:
    """Save a position, for the next process of the run."""
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f".{POSITION}.{os.getpid()}"
    text = json.dumps({"life": list(position.process), "step": position.step, "highest": position.highest})
    new.write_text(text, encoding="utf-8")
    new.replace(folder / POSITION)
