"""The last save of a node that is drained: all copies of its ranks go to disk, and then the ranks save no more.

The preStop hook of the pod asks for it (`dljob.runtime.node.prestop`), on the socket that ranks use, so that neither
Ray nor PrimeMaster is needed. PrimeMaster asks for it when the head goes, and all nodes of the job with it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from dljob.runtime.checkpoint.holding import Holding

STILL_S = 10.0
"""Seconds for a rank to finish a copy that it is making when the last save begins."""
LOOK_S = 0.01
GONE_S = 1.0
HELD_S = 60.0
"""Seconds for which ranks are held beyond the deadline of the last save: after them the node has stayed after all."""
ANSWER_S = 5.0
"""Seconds for PrimeMaster, in a last save, to record a checkpoint; without an answer, the next run reports it."""
SAVING = ("slots", "free")
"""Requests of a rank that is about to save."""


class FinalSave:
    """The last save of one saver. `flush` and `bring` are the saver's own."""

    def __init__(
        self,
        changed: threading.Condition,
        holdings: Callable[[], list[Holding]],
        flush: Callable[..., str],
        bring: Callable[[str, float], str],
    ) -> None:
        self._changed = changed
        self._holdings = holdings
        self._flush = flush
        self._bring = bring
        self._began: float | None = None
        self._until = 0.0

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Answer `flush` or `last`, from a process that is no rank, with the unsaved copies and the newest steps."""
        within = float(message["timeout_s"])
        failed = self.save_all(within) if message["op"] == "last" else self._flush(within, alive=True)
        with self._changed:
            newest = {h.place.name: copies[0][1].step for h in self._holdings() if (copies := h.whole_copies())}
        return {"failed": failed, "steps": newest}

    def save_all(self, timeout_s: float) -> str:
        """Save everything once no rank copies any more; return why not all is on disk, else empty."""
        end = time.monotonic() + timeout_s
        with self._changed:
            # 1. No new copies: ranks see the flag in the shared memory at their next save, and then wait in `hold`.
            self._began = self._began or time.monotonic()
            # The hook of a pod and PrimeMaster may both order it: ranks are held for the longer one.
            self._until = max(self._until, end + HELD_S)
            self._set_shut(True)
        # 2. Copies that have begun may end: they are the newest, and a torn one is worth nothing.
        still = min(end, time.monotonic() + STILL_S)
        while time.monotonic() < still and self._is_copying():
            time.sleep(LOOK_S)
        failed = self._flush(_remaining(end), alive=True)
        # Again while there are any: their writers were busy with older copies.
        while not failed and self._has_unsaved() and time.monotonic() < end:
            failed = self._flush(_remaining(end), alive=True)
        return failed or self._bring("", _remaining(end))

    def hold(self, rank: Holding, asked: str) -> None:
        """Block a rank that wants to save until its end, or until the node turns out to stay."""
        if asked not in SAVING:
            return
        with self._changed:
            while (remaining_s := self._until - time.monotonic()) > 0:
                if rank.ended():
                    return
                self._changed.wait(min(remaining_s, GONE_S))
            if self._began is not None:
                self._began = None
                # The node has stayed after all: ranks save again.
                self._set_shut(False)

    def impatient(self) -> bool:
        """Return whether PrimeMaster has used up its time to answer during a last save."""
        began = self._began
        return began is not None and time.monotonic() - began > ANSWER_S

    def _is_copying(self) -> bool:
        with self._changed:
            return any(holding.writing() for holding in self._holdings())

    def _has_unsaved(self) -> bool:
        with self._changed:
            return any(holding.unsaved_copies(all_of_it=holding.place.save_on_exit) for holding in self._holdings())

    def _set_shut(self, value: bool) -> None:  # noqa: FBT001 - a flag in memory
        for holding in self._holdings():
            for slot in holding.slots:
                slot.shut = value


def _remaining(end: float) -> float:
    return max(0.1, end - time.monotonic())
