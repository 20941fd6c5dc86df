"""What ranks use of resources that were chosen (`resources.auto`), summed up as samples come.

The choice for the next attempt, and for the next job of the name, rests on it where no folder of a job is at hand: the
operator takes it from the status (`dljob.reconcile.policies.resources`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from dljob.master.ledger.rules import micros
from dljob.master.state.faults import FaultRecord
from dljob.master.state.ledger import Account, totals
from dljob.master.state.state import JobState
from dljob.master.state.views import Reason
from dljob.runtime.journal.cpu_windows import PRODUCTIVE, CpuWindow
from dljob.runtime.journal.sample_rows import Columns
from dljob.spec.chosen_resources import USUAL, ResourceUse

LATE = 0.75
"""Share of the run after which the highest peak should not grow any more."""


class ResourceUses:
    """The use of each role whose resources were chosen, since this PrimeMaster began.

    `rows` (`ResourceUse.row`) is replaced as a whole, so that any thread may read it.
    """

    def __init__(self, roles: Iterable[str]) -> None:
        self._roles = tuple(dict.fromkeys(roles))
        self._begun: float | None = None
        self._windows: dict[tuple[str, int], CpuWindow] = defaultdict(CpuWindow)
        self._rates: dict[str, Counter[int]] = defaultdict(Counter)
        """Role -> number of measurements by hundredths of a CPU: the size does not grow with the run."""
        self._peaks: dict[str, list[tuple[float, int]]] = defaultdict(list)
        """Role -> (time, MiB) of each rise of its highest peak."""
        self._killed: dict[str, int] = defaultdict(int)
        self.rows: tuple[Mapping[str, Any], ...] = ()

    def take(self, at: float, state: JobState, columns: Columns) -> None:
        """Take a sample of a time (unix seconds)."""
        self._begun = at if self._begun is None else self._begun
        for role in self._roles:
            self._take_cpu(at, role, columns)
            highest = max(
                (rank_peak for rank_peak in columns.get(f"peak/{role}", ()) if rank_peak is not None), default=0
            )
            if highest > (self._peaks[role][-1][1] if self._peaks[role] else 0):
                self._peaks[role].append((at, highest))
            killed = sum(fault.reason == Reason.OOM_KILLED and _role_of(fault) == role for fault in state.faults)
            self._killed[role] = max(killed, self._killed[role])  # a state keeps its last faults alone
        self.rows = tuple(self._row(at, role, state) for role in self._roles if role in state.job.roles)

    def _take_cpu(self, at: float, role: str, columns: Columns) -> None:
        letters = columns.get(f"accounts/{role}", "")
        for rank, used in enumerate(columns.get(f"cpu/{role}", ())):
            productive = letters[rank : rank + 1] == PRODUCTIVE
            rate = self._windows[role, rank].take(at, used, productive=productive)
            if rate is not None:
                self._rates[role][round(rate * 100)] += 1

    def _row(self, at: float, role: str, state: JobState) -> dict[str, Any]:
        spent = totals(state.ledger, role, max(state.ledger.at, micros(state, at))).get(Account.PRODUCTIVE, 0)
        peaks, rates = self._peaks[role], self._rates[role]
        use = ResourceUse(
            spent / 1e6 / max(1, state.job.roles[role].plan.replicas),
            peaks[-1][1] << 20 if peaks else 0,
            _growth(peaks, at if self._begun is None else self._begun, at),
            _usual(rates),
            rates.total(),
            self._killed[role],
        )
        return use.row(role)


def _usual(rates: Counter[int]) -> float:
    """Return the CPUs that nearly all measurements do not exceed; 0 without one."""
    count_left = int((rates.total() - 1) * USUAL) + 1
    for rate, count in sorted(rates.items()):
        count_left -= count
        if count_left <= 0:
            return rate / 100
    return 0.0


def _growth(peaks: list[tuple[float, int]], begun: float, now: float) -> float:
    """Return the share by which the highest peak grew in the last quarter of the time."""
    late = begun + (now - begun) * LATE
    before = [size for at, size in peaks if at <= late] or [size for _, size in peaks[:1]]
    return peaks[-1][1] / before[-1] - 1 if before else 0.0


def _role_of(fault: FaultRecord) -> str:
    return (fault.rank or fault.target).partition("/")[0]
