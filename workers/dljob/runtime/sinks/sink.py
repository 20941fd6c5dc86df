"""Interface of a metric sink, which a package implements and names as an entry point of the group `dljob.sinks`.

    [project.entry-points."dljob.sinks"]
    board = "board.sink:open_sink"          # a callable that takes a SinkRun and returns a MetricSink, or None

Names of the group win over those of dljob: an entry point `tensorboard` replaces the one that dljob has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SinkRun:
    """The job whose metrics a sink is to take."""

    id: str
    """The name of the run, the same in all attempts and after all restarts: `<job>-<uid8>`."""
    name: str
    """The job's name."""
    uid: str
    attempt: int
    folder: Path
    """A folder of this sink for its files; on the checkpoint volume, where the job has one."""
    resumed: bool = False
    """Whether an earlier process has written rows of this run."""


class MetricSink(Protocol):
    """A writer of metrics. One thread calls it, so it may block; a slow one loses rows.

    A sink with a further method `rewind(step)` can void the rows from `step` on: it is called when the job has gone
    back to an earlier step. A sink without it never sees a step twice: the rows up to the highest step are left out.
    """

    def write(self, step: int, metrics: Mapping[str, float], at: float) -> None:
        """Write the metrics of a step; `at` is unix seconds."""
        ...

    def close(self) -> None:
        """Write what is buffered."""
        ...


OpenSink = Callable[[SinkRun], MetricSink | None]
"""An entry point's callable; None: the sink is not configured, and stays off."""
