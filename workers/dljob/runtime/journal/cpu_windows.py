"""CPU time of ranks as a rate, over windows in which they were productive. No I/O."""

from __future__ import annotations

from dljob.runtime.journal.samples import ACCOUNTS

PRODUCTIVE = ACCOUNTS["productive"]
WINDOW_S = 20.0
"""Least seconds over which CPU time becomes a rate, as it is measured every ten seconds."""
GAP_S = 300.0
"""Longest time between two samples over which something is computed; PrimeMaster was away for longer ones."""


class CpuWindow:
    """The window that is open for one rank."""

    __slots__ = ("_begun", "_last")

    def __init__(self) -> None:
        self._begun: tuple[float, int] | None = None
        self._last = (0.0, 0)

    def take(self, at: float, used: int | None, *, productive: bool) -> float | None:
        """Take a sample; return the CPUs of the window that it ends, else None.

        Args:
            at: Its time, in seconds.
            used: CPU time of the rank's process so far, in hundredths of a second; None: not known.
            productive: Whether the rank was productive.
        """
        if used is None or not productive:
            self._begun = None
        elif self._begun is None or used < self._last[1] or at - self._last[0] > GAP_S:
            self._begun = self._last = (at, used)  # the first, another process, which began at 0, or after a gap
        elif used > self._last[1]:  # only readings that are new: samples repeat the last one between two measurements
            self._last = (at, used)
            begun, before = self._begun
            if at - begun >= WINDOW_S:
                self._begun = self._last
                return (used - before) / 100 / (at - begun)
        return None
