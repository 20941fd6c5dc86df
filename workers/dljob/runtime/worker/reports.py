"""Reports of a host's ranks, kept until PrimeMaster has acknowledged them: the host's end of the `watch` call."""

from __future__ import annotations

import threading

from dljob.master.state.views import Outcome
from dljob.runtime.process import guard
from dljob.runtime.process.messages import LoadResult, NewestVersion, Report, Serves


class Reports:
    """Numbered reports, and the one caller that waits for the next."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._reports: list[Report] = []
        self._seq = 0
        self._acked = 0
        self._epoch = 0
        self._turn = 0

    @property
    def epoch(self) -> int:
        """The epoch of the newest master that called."""
        return self._epoch

    def accept_epoch(self, epoch: int) -> bool:
        """Note a call of a master of this epoch; False when one of a newer epoch has called before."""
        with self._changed:
            if epoch < self._epoch:
                return False
            if epoch > self._epoch:
                self._epoch = epoch
                self._changed.notify_all()
            return True

    def add(
        self,
        rank: int,
        incarnation: int,
        pid: int,
        outcome: Outcome | None,
        serves: Serves | None = None,
        *,
        weights: NewestVersion | LoadResult | None = None,
    ) -> int:
        """Note that a rank became ready (None) or ended, or other news of it; return the report's number.

        Nothing is noted once this process ends itself, since that takes all its children along: PrimeMaster would take
        a rank that was killed this way for a failed one, and restart it on a node that may be gone.
        """
        with self._changed:
            if guard.ending():
                return self._seq
            self._seq += 1
            self._reports.append(Report(self._seq, rank, incarnation, pid, outcome, serves, weights))
            self._changed.notify_all()
            return self._seq

    def watch(self, epoch: int, acked: int) -> tuple[Report, ...]:
        """Wait for reports newer than `acked`.

        () when a master of a newer epoch, or a later call of the same master, has taken over.
        """
        if not self.accept_epoch(epoch):
            return ()
        with self._changed:
            self._turn += 1
            # Only the latest call may wait: an earlier one was lost on the way, and so would its answer be.
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
        """Wait until a report is acknowledged; False when that takes longer than `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._acked >= seq, timeout_s)
