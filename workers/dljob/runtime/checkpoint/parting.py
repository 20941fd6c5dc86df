"""The last save of a node that goes: all that its ranks have copied comes to disk, and then they copy no more.

Whoever ends the pod asks for it (`dljob.runtime.leave`), over the socket that ranks use, so that neither Ray nor
PrimeMaster is needed; PrimeMaster does, when the head goes and all the job's nodes with it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from dljob.runtime.checkpoint.holding import Holding

STILL_S = 10.0
"""So long a copy that is being made when the last save begins may take."""
LOOK_S = 0.01
GONE_S = 1.0
HELD_S = 60.0
"""Ranks are held so long beyond the time that the last save had: then the node has stayed after all."""
ANSWER_S = 5.0
"""So long PrimeMaster may take in a last save to hear what is on disk; what it did not hear the next life tells it."""
SAVING = ("slots", "free")
"""What a rank asks that is about to save."""


class Parting:
    """One saver's. `flush` and `bring` are its own."""

    def __init__(
        self,
        changed: threading.Condition,
        held: Callable[[], list[Holding]],
        flush: Callable[..., str],
        bring: Callable[[str, float], str],
    ) -> None:
        self._changed = changed
        self._held = held
        self._flush = flush
        self._bring = bring
        self._began: float | None = None
        self._until = 0.0

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """What is asked by somebody who is no rank: `flush`, or `last`; what is not on disk, and what there was."""
        within = float(message["timeout_s"])
        failed = self.last(within) if message["op"] == "last" else self._flush(within, alive=True)
        with self._changed:
            newest = {held.place.name: whole[0][1].step for held in self._held() if (whole := held.whole())}
        return {"failed": failed, "steps": newest}

    def last(self, timeout_s: float) -> str:
        """Save all, once nobody copies any more; why not all is on disk, else empty."""
        end = time.monotonic() + timeout_s
        with self._changed:
            self._began = self._began or time.monotonic()
            self._until = end + HELD_S
            self._shut(True)
        still = min(end, time.monotonic() + STILL_S)
        while time.monotonic() < still and self._copying():
            time.sleep(LOOK_S)
        failed = self._flush(_left(end), alive=True)
        while not failed and self._unsaved() and time.monotonic() < end:  # what was busy with an older copy
            failed = self._flush(_left(end), alive=True)
        return failed or self._bring("", _left(end))

    def hold(self, rank: Holding, asked: str) -> None:
        """Let a rank that would save wait for its end, while the last save holds."""
        if asked not in SAVING:
            return
        with self._changed:
            while (left := self._until - time.monotonic()) > 0:
                if rank.ended():
                    return
                self._changed.wait(min(left, GONE_S))
            if self._began is not None:
                self._began = None
                self._shut(False)

    def impatient(self) -> bool:
        """Whether PrimeMaster has had its time to answer in a last save."""
        began = self._began
        return began is not None and time.monotonic() - began > ANSWER_S

    def _copying(self) -> bool:
        with self._changed:
            return any(held.writing() for held in self._held())

    def _unsaved(self) -> bool:
        with self._changed:
            return any(held.unsaved(all_of_it=held.place.save_on_exit) for held in self._held())

    def _shut(self, value: bool) -> None:  # noqa: FBT001 - a flag in memory
        for held in self._held():
            for slot in held.slots:
                slot.shut = value


def _left(end: float) -> float:
    return max(0.1, end - time.monotonic())
