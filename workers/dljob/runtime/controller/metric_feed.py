"""Metrics on their way from heartbeats to the process of the metric sinks, which this module starts, and never awaits.

The sinks themselves are in `dljob.runtime.sinks`, which PrimeMaster does not import.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, cast

from dljob.runtime.process.messages import JobInfo

log = logging.getLogger(__package__)

# -P: the folder in which Ray was started, which may be anyone's, must not be on its import path.
PROGRAM = (sys.executable, "-P", "-m", "dljob.runtime.sinks.process")
ROOM = 1000
"""Rows that wait for the process."""
END_S = 15.0
"""Seconds that the process has at the end of the job; more than its sinks have (`sinks.process.END_S`)."""
NICENESS = 15
"""As that of Ray's workers. The process would inherit PrimeMaster's, which is above computation."""
LOG = "metrics.log"

RankProgress = tuple[int, int, Mapping[str, float]]
"""A rank's progress, as in a heartbeat: incarnation, step, metrics."""
Tell = Callable[[str], None]
"""Takes what went wrong with a sink; called from a thread."""


class DriverMetrics:
    """Chooses the rows for sinks: declared metrics of the lowest rank of the first driver role that has some."""

    def __init__(self, role: str, names: frozenset[str]) -> None:
        self._role, self._names = role, names
        self._rank: int | None = None
        self._last: tuple[int, int, dict[str, float]] | None = None

    def chosen(self, role: str, rank: int, progress: RankProgress) -> dict[str, float]:
        """Return the metrics of a rank's progress that go to the sinks; empty: none of them."""
        incarnation, step, metrics = progress
        driver_metrics = {name: value for name, value in metrics.items() if name in self._names}
        # Ranks of one world report the same step with values of their own; rank 0 reports for all in most programs.
        if role != self._role or not driver_metrics or (self._rank is not None and rank > self._rank):
            return {}
        # A heartbeat that was not acknowledged comes again, and so does the last step with the rank's end.
        now = incarnation, step, driver_metrics
        if rank == self._rank and now == self._last:
            return {}
        self._rank, self._last = rank, now
        return driver_metrics


class MetricFeed:
    """The line from PrimeMaster to the sinks' process. Two threads serve it, so that nothing ever blocks the loop."""

    def __init__(self, info: JobInfo, driver: DriverMetrics, tell: Tell, program: Sequence[str] = ()) -> None:
        self._info, self._driver, self._tell, self._program = info, driver, tell, program or PROGRAM
        self._rows: queue.Queue[str | None] = queue.Queue(ROOM)
        self._dropped = self._ends = False
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._main, name="dljob-metrics", daemon=True)
        self._thread.start()

    def put(self, role: str, rank: int, progress: RankProgress, at: float) -> None:
        """Take a rank's progress, heard at `at` (unix seconds)."""
        if chosen := self._driver.chosen(role, rank, progress):
            self._put(json.dumps([progress[0], progress[1], round(at, 3), chosen]))

    def _put(self, row: str) -> None:
        try:
            self._rows.put_nowait(row)
        except queue.Full:
            if not self._dropped:
                self._dropped = True
                self._tell(f"the process of the metric sinks does not read: {ROOM} rows wait, later ones are dropped")

    def close(self) -> None:
        """End the process; blocks until its sinks have written what they hold, at most `END_S` seconds."""
        self._ends = True
        with suppress(queue.Full):  # then the thread finds the end behind the rows that wait
            self._rows.put_nowait(None)
        self._thread.join(END_S)
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()

    def _next(self) -> str | None:
        """Wait for a row; None: the process is to end."""
        return None if self._ends and self._rows.empty() else self._rows.get()

    def _main(self) -> None:
        try:
            self._process = process = self._start()
        except OSError as error:
            self._tell(f"the process of the metric sinks could not be started: {error}")
            return
        stdin = cast("IO[str]", process.stdin)
        reports = threading.Thread(target=self._listen, args=(process,), name="dljob-sink-reports", daemon=True)
        reports.start()
        try:
            while (row := self._next()) is not None:
                stdin.write(row + "\n")
                stdin.flush()
        except OSError:
            self._tell("the process of the metric sinks has ended, and no more metrics are sent; see metrics.log")
        with suppress(OSError):
            stdin.close()
        reports.join()
        process.wait()

    def _start(self) -> subprocess.Popen[str]:
        info = self._info
        order = {"name": info.name, "uid": info.uid, "attempt": info.attempt, "folder": info.dir, "code": info.code_dir}
        with Path(info.dir, LOG).open("ab") as errors:
            process = subprocess.Popen(
                [*self._program, json.dumps(order)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
            )
        os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
        return process

    def _listen(self, process: subprocess.Popen[str]) -> None:
        with cast("IO[str]", process.stdout) as lines:
            for line in lines:
                with suppress(ValueError):  # a report that was torn by the end of the process
                    report = json.loads(line)
                    self._tell(f"metric sink {report['sink']}: {report['said']}")
