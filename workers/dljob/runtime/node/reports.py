"""What happened to a host's ranks, kept until PrimeMaster has acknowledged it: the far end of `watch`."""

from __future__ import annotations

import threading

from dljob.master.state.views import Outcome
from dljob.runtime.process import guard
from dljob.runtime.process.messages import Report


class Reports:
    """Reports by number, and the one caller that waits for the next."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._reports: list[Report] = []
        self._seq = 0
        self._acked = 0
        self._epoch = 0
        self._turn = 0

    @property
    def epoch(self) -> int:
        """The newest master that was heard."""
        return self._epoch

    def heard(self, epoch: int) -> bool:
        """A master of this epoch speaks: False when a newer one was heard before."""
        with self._changed:
            if epoch < self._epoch:
                return False
            if epoch > self._epoch:
                self._epoch = epoch
                self._changed.notify_all()
            return True

    def add(self, rank: int, incarnation: int, pid: int, outcome: Outcome | None) -> int:
        """Write down that a rank became ready (None) or ended; the report's number.

        Nothing is written down once this process ends itself, which takes all below it along: a rank that is told of
        as killed, on a node that is gone, would be restarted there.
        """
        with self._changed:
            if guard.ending():
                return self._seq
            self._seq += 1
            self._reports.append(Report(self._seq, rank, incarnation, pid, outcome))
            self._changed.notify_all()
            return self._seq

    def watch(self, epoch: int, acked: int) -> tuple[Report, ...]:
        """Wait for reports newer than `acked`; () when a newer epoch, or a later call of the same one, took over."""
        if not self.heard(epoch):
            return ()
        with self._changed:
            self._turn += 1
            turn = self._turn
            self._acked = max(self._acked, acked)
            self._reports = [report for report in self._reports if report.seq > self._acked]
            self._changed.notify_all()
            while turn == self._turn and epoch == self._epoch:
                newer = tuple(report for report in self._reports if report.seq > acked)
                if newer:
                    return newer
                self._changed.wait()
            return ()

    def wait_acked(self, seq: int, timeout_s: float) -> bool:
        """Wait until a report was acknowledged; False when it was not in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._acked >= seq, timeout_s)
