"""One look at a job for all readers of its page: the source is asked once, whoever waits."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from dljob.errors import DLJobError
from dljob.report.live.document import LiveDocument
from dljob.report.live.sources import LiveSource, OlderEvents, SourceSilentError
from dljob.runtime.journal.event_file import EarlierEvents

T = TypeVar("T")

LOOK_S = 1.1
"""Shortest time, in seconds, between two looks: a page need not change more often."""
FEW, READER_S, MOST_S = 10, 0.02, 1.8
"""Readers for whom looks are so close; seconds that each further one adds, as each look is answered to each reader; and
the longest pause, in seconds: a page shows what happened within 2 s."""
QUIET_S = 2.0
"""Longest time, in seconds, between two looks: steps and times change without an event."""
LONGEST_S = 25.0
"""Longest time, in seconds, that a reader waits for news."""
UNREAD_S = 90.0
"""Seconds after the last question in which looks go on without a reader."""
AWAY_S = 0.5
"""Pause, in seconds, after no answer."""


def pause_s(readers: int) -> float:
    """Return the seconds between two looks for a number of readers."""
    return min(MOST_S, LOOK_S + READER_S * max(0, readers - FEW))


class JobFeed:
    """The document of a job, kept up to date while somebody reads it."""

    def __init__(self, source: LiveSource, document: LiveDocument) -> None:
        self._source = source
        self.document = document
        self._away: dict[str, str] = {}
        """Question -> why it has no answer now."""
        self.away_since: float | None = None
        """Since when there is trouble (unix seconds)."""
        self._changed = asyncio.Condition()
        self._searching = asyncio.Lock()
        self._woken, self._looked, self._asked = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._asked_at = time.monotonic()
        self._readers = 0
        """Questions since the last look: each reader asks once, and is answered by the next look."""

    @property
    def trouble(self) -> str:
        """Why the job does not answer now; empty while it does."""
        return next(iter(self._away.values()), "")

    async def run(self) -> None:
        """Look at the job until it is over; with a pause while nobody reads."""
        listening = asyncio.create_task(self._listen())
        try:
            while not self._source.over:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), QUIET_S)
                self._woken.clear()
                pause, self._readers = pause_s(self._readers), 0
                await self._look()
                if listening.done():
                    await listening  # it ends by an exception alone, which ends this too
                self._looked.set()
                await asyncio.sleep(pause)
                if time.monotonic() - self._asked_at > UNREAD_S:
                    self._asked.clear()
                    await self._asked.wait()
        finally:
            listening.cancel()
        # The last page says how the job ended: PrimeMaster's silence is no trouble then.
        self._away.clear()

    async def answer(self, known: str) -> bytes | None:
        """Return what changed since a version, as soon as anything did; None after LONGEST_S.

        Raises:
            SourceSilentError: the job does not answer.
        """
        self._asked_at = time.monotonic()
        self._asked.set()
        self._readers += 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_S), self._changed:
                if self.trouble and known == self.document.version:
                    await self._changed.wait()  # the reader may know of it: told again by each look, and no more often
                await self._changed.wait_for(lambda: known != self.document.version or self.trouble)
        if known == self.document.version and self.trouble:
            raise SourceSilentError(self.trouble)
        return self.document.answer(known)

    async def older(self, asked: OlderEvents) -> EarlierEvents:
        """Return earlier events. One question at a time: each may read megabytes."""
        async with self._searching:
            return await in_thread(lambda: self._source.older(asked))

    async def _look(self) -> None:
        try:
            await in_thread(lambda: self._source.look(self.document))
        except (SourceSilentError, DLJobError, OSError) as error:
            self._away["status"] = str(error)
        else:
            self._away.pop("status", None)
        if not self._away:
            self.away_since = None
        elif self.away_since is None:
            self.away_since = time.time()
        async with self._changed:
            self._changed.notify_all()

    async def _listen(self) -> None:
        """Wake the look for each event. An answer before that look would tell the same event again."""
        while True:
            self._looked.clear()
            try:
                await in_thread(self._source.wait)
            except (SourceSilentError, DLJobError, OSError) as error:
                self._away["events"] = str(error)
                await asyncio.sleep(AWAY_S)
            else:
                self._away.pop("events", None)
            self._woken.set()
            await self._looked.wait()


async def in_thread(call: Callable[[], T]) -> T:
    """Run a blocking call in a thread that does not outlive the process: Ctrl-C need not wait for its answer."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(set_: Callable[[Any], None], value: object) -> None:
        if not future.done():
            set_(value)

    def run() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - it is raised where the call is awaited
                loop.call_soon_threadsafe(settle, future.set_exception, error)
            else:
                loop.call_soon_threadsafe(settle, future.set_result, result)

    threading.Thread(target=run, daemon=True, name="dljob-look").start()
    return await future
