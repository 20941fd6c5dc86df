"""The Lease at work: looked at, renewed, given up; and the fence, which lets nobody write who does not hold it.

`dljob.control.lease` decides. A holder that cannot renew stops acting and becomes a candidate again, in the same
process: an API server that is away for a minute must not cost a restart each time, which a kubelet makes slower.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

from dljob.control.lease import Candidate
from dljob.kube.api import LEASES, ApiError, Kube, NotThereError

log = logging.getLogger(__name__)

NAME = "dljob-operator"
"""Of the Lease, where the command line names none."""
END_SECONDS = 10.0
"""What acts ends within so long once it may not act any more; a process in which it does not ends as a whole."""


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # Linux has the former


class NotLeadingError(Exception):
    """A write that was not made: this operator does not hold the Lease (any more)."""


def clock() -> float:
    """Monotonic, and counts on while the machine sleeps: a Lease runs out meanwhile."""
    return time.clock_gettime(_CLOCK)


def own_identity() -> str:
    """Of this process alone: another one in the same pod waits like everybody else."""
    return f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4()}"


class Election:
    """One candidate for one Lease. `kube` is its own: a renewal waits for no other call."""

    def __init__(
        self,
        kube: Kube,
        candidate: Candidate,
        *,
        clock: Callable[[], float] = clock,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._kube = kube
        self._candidate = candidate
        self._clock = clock
        self._wall = wall
        self._said = ""
        self._look_first = False
        """The last renewal was refused: it is not known who holds the Lease."""

    @property
    def leads(self) -> bool:
        """Whether this operator may act now."""
        return self._candidate.leads(self._clock())

    @property
    def holder(self) -> str:
        """Who holds the Lease, as far as is known."""
        return self._candidate.holder

    def fence(self, method: str) -> None:
        """Called right before every call. Raises NotLeadingError where it would change something without the Lease."""
        if method != "GET" and not self.leads:
            raise NotLeadingError("this operator does not hold the Lease")

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """For ever: wait for the Lease, let `work` run while it is held, and end it when it is not.

        Raises whatever ended the work by itself.
        """
        acting: asyncio.Task[None] | None = None
        try:
            while True:
                if acting and not self.leads:
                    log.warning("not leading any more: %s", self._why())
                    acting = await _ended(acting)
                wait = await self._round()
                if self.leads and acting is None:
                    log.info("leading as %s", self._candidate.identity)
                    acting = asyncio.create_task(work(), name="acting")
                await self._rest(acting, wait)
        finally:
            if acting:
                await _ended(acting)

    async def release(self) -> None:
        """Give the Lease up, so that another takes it at once; nothing acts any more."""
        body = self._candidate.release(self._wall())
        self._candidate = self._candidate.released()
        if body is None:
            return
        try:
            async with asyncio.timeout(self._candidate.pace.retry):
                await self._put(body)
        except (ApiError, TimeoutError) as error:
            log.warning("the Lease could not be given up, and runs out by itself: %s", error)
        else:
            log.info("the Lease is given up")

    async def _rest(self, acting: asyncio.Task[None] | None, wait: float) -> None:
        """Wait, but no longer than the Lease lasts; and no longer than what acts does, which is to raise."""
        if acting is None:
            await asyncio.sleep(wait)
            return
        left = self._candidate.until - self._clock()
        done, _ = await asyncio.wait({acting}, timeout=max(0.0, min(wait, left)))
        if done:
            acting.result()
            raise RuntimeError("what acts ended by itself")

    async def _round(self) -> float:
        """Look or write once, and return the seconds until the next time."""
        led, pace = self.leads, self._candidate.pace
        # Half, so that a renewal which nobody answers leaves time for another.
        limit = min(pace.deadline / 2, self._candidate.until - self._clock()) if led else pace.deadline
        try:
            async with asyncio.timeout(max(limit, 0.0)):
                return await self._try(led=led)
        except TimeoutError:
            self._trouble(f"no answer within {limit:.1f} s")
        except ApiError as error:
            self._trouble(error.message)
            if error.status in (404, 409) and led and not self._look_first:
                self._look_first = True  # somebody was there: see who
                return 0.0
        return pace.look

    async def _try(self, *, led: bool) -> float:
        if not led or self._look_first:
            self._candidate = self._candidate.saw(await self._look(), self._clock())
            if led and not self.leads:
                return 0.0  # it was taken: stop first
        step = self._candidate.next(self._clock(), self._wall())
        if step.write is None:
            self._well()
            return step.wait
        sent = self._clock()
        lease = await self._put(step.write)
        if not led:
            log.info("the Lease is taken: %s", step.reason)
        self._candidate = self._candidate.wrote(lease, sent)
        self._well()
        return max(0.0, sent + self._candidate.pace.retry - self._clock())

    async def _look(self) -> dict[str, Any] | None:
        try:
            return await self._kube.get(LEASES, self._candidate.name, self._candidate.namespace)
        except NotThereError:
            return None

    async def _put(self, body: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        candidate = self._candidate
        if "resourceVersion" not in body["metadata"]:
            return await self._kube.create(LEASES, body, candidate.namespace)
        return await self._kube.replace(LEASES, body, candidate.namespace)

    def _trouble(self, words: str) -> None:
        if words != self._said:
            log.warning("the Lease %s/%s: %s", self._candidate.namespace, self._candidate.name, words)
        self._said = words

    def _well(self) -> None:
        self._said, self._look_first = "", False

    def _why(self) -> str:
        if self.holder and self.holder != self._candidate.identity:
            return f"{self.holder} holds the Lease"
        return f"the Lease could not be renewed: {self._said}"


async def _ended(acting: asyncio.Task[None]) -> None:
    """End what acts, and wait until it has ended."""
    acting.cancel()
    done, _ = await asyncio.wait({acting}, timeout=END_SECONDS)
    if not done:
        raise RuntimeError(f"what acts did not end within {END_SECONDS:g} s of losing the Lease")
    if not acting.cancelled() and (error := acting.exception()):
        raise error
