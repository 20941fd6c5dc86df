"""Sampler: writes once a second or less into the job's folder what no journal holds (docs/adr/0076-samples.md).

The event loop only copies a dict; a thread makes the row, writes it and thins older ones. No sample is worth a job:
where the folder cannot be written, the log says so once, and the job goes on.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from dljob.master.state.ledger import Ledger
from dljob.master.state.state import JobState
from dljob.runtime.journal.sample_rows import Columns, Row
from dljob.runtime.journal.samples import ABSENT, ACCOUNTS, SampleWriter
from dljob.tasks import ErrorLog

log = logging.getLogger(__package__)

LEAST_S = 1.0
"""Least seconds between two samples."""
RANKS_A_SECOND = 1000
"""Ranks that are sampled in a second: larger jobs are sampled less often, so that the cost stays the same."""
METRICS = 64
"""Most metrics of the driver role that are recorded."""
END_S = 5.0
"""Most seconds that the end of a job waits for its last sample."""


class MasterView(NamedTuple):
    """The part of a master that is sampled, at one time (unix seconds)."""

    at: float
    state: JobState
    progress: Mapping[tuple[str, int], tuple[int, Mapping[str, float]]]
    """(role, rank) -> last step and its metrics; not changed any more."""


class Sampler:
    """Samples one master. `view` is called on the event loop."""

    def __init__(self, folder: Path, view: Callable[[], MasterView]) -> None:
        self._view = view
        self._writer = SampleWriter(folder)
        self._rows = RowMaker()
        self._errors = ErrorLog("the recording of samples", log)
        self._ended = False
        # One thread keeps the order of the rows; the volume may be slow, and then samples are left out.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dljob-samples")

    async def run(self) -> None:
        """Sample until the task is cancelled."""
        while True:
            ranks = await self._sample()
            await asyncio.sleep(max(LEAST_S, ranks / RANKS_A_SECOND))

    async def _sample(self) -> int:
        view = self._view()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._write, view)
        return len(view.state.ranks)

    def _write(self, view: MasterView) -> None:
        if self._ended:
            return
        try:
            self._writer.append(Row(view.at, self._rows.columns(view)))
            self._errors.worked()
        except OSError as error:
            self._errors.failed(error)

    async def end(self) -> None:
        """Write a last sample and close the files; gives up on a volume that hangs."""
        loop = asyncio.get_running_loop()
        view = self._view()

        def last() -> None:
            self._write(view)
            self._ended = True
            try:
                self._writer.close()
            except OSError as error:
                self._errors.failed(error)

        await asyncio.wait([loop.run_in_executor(self._thread, last)], timeout=END_S)

    def close(self) -> None:
        """Let go of the thread, without waiting for it."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class RowMaker:
    """Makes the columns of samples; parts that did not change are the same objects as in the last ones."""

    def __init__(self) -> None:
        self._ledger: Ledger | None = None
        self._accounts: dict[str, str] = {}

    def columns(self, view: MasterView) -> Columns:
        """Return the columns of a sample."""
        state, found = view.state, dict[str, Any]()
        if state.ledger is not self._ledger:
            self._ledger, self._accounts = state.ledger, accounts(state)
        found |= self._accounts
        for role, facts in state.job.roles.items():
            told = [view.progress.get((role, rank)) for rank in range(facts.plan.replicas)]
            if any(told):
                found[f"steps/{role}"] = [None if own is None else own[0] for own in told]
            if role == state.job.drivers[0]:
                metrics = next((own[1] for own in told if own is not None), {})
                found |= {f"progress/{name}": _finite(value) for name, value in list(metrics.items())[:METRICS]}
        return found


def accounts(state: JobState) -> dict[str, str]:
    """Return the `accounts` columns: for each role a letter a rank."""
    clocks = state.ledger.clocks
    found: dict[str, str] = {}
    for role, facts in state.job.roles.items():
        clock = (clocks.get((role, rank)) for rank in range(facts.plan.replicas))
        found[f"accounts/{role}"] = "".join(ABSENT if own is None else ACCOUNTS[own[0].value] for own in clock)
    return found


def _finite(value: float) -> float | None:
    """Return a number that JSON has; None for others."""
    return value if math.isfinite(value) else None
