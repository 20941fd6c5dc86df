"""Leader election: the Lease is read, renewed and released here; a fence stops writes without it.

`dljob.reconcile.leadership.lease` decides. A holder that cannot renew stops acting and becomes a candidate again in the
same process: an API server that is away for a minute must not cost restarts, which a kubelet slows down each time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any

from dljob.kube.api import AGAIN, LEASES, ApiError, Json, Kube, NotThereError
from dljob.reconcile.leadership.lease import Candidate
from dljob.tasks import ErrorLog
from dljob_operator.leader.releases import Releases

log = logging.getLogger(__package__)

NAME = "dljob-operator"
"""Name of the Lease by default."""
END_SECONDS = 10.0
"""Time, in seconds, for the leader's tasks to end once the Lease is lost; if they do not, the process ends."""


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # Linux has the former


class NotLeadingError(Exception):
    """A write was not made, because this operator does not hold the Lease (any more)."""


def clock() -> float:
    """Return a monotonic time that counts on while the machine sleeps, as a Lease expires meanwhile."""
    return time.clock_gettime(_CLOCK)


def own_identity() -> str:
    """Return an identity of this process alone: another one in the same pod waits like every candidate."""
    return f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4()}"


class LeaseWatch:
    """The changes of one Lease: a waiting candidate asks the API server for nothing while the holder renews it."""

    def __init__(self, kube: Kube, name: str, namespace: str) -> None:
        self._kube = kube
        self._name = name
        self._namespace = namespace
        self._newest: Json | None = None
        self._news = asyncio.Event()
        self.live = False
        """Whether a stream reports the changes; without one the candidate has to look by itself."""

    async def run(self) -> None:
        """Follow the Lease until cancelled."""
        errors = ErrorLog("the watch of the Lease", log)
        fields = f"metadata.name={self._name}"
        while True:
            try:
                async with aclosing(self._kube.changes(LEASES, self._namespace, fields=fields)) as changes:
                    async for kind, lease in changes:
                        self.live = True
                        self._newest = None if kind == "DELETED" else lease
                        self._news.set()
                errors.worked()
            except Exception as error:  # noqa: BLE001 - one unreadable event must not end the watch
                errors.failed(error)
            self.live = False
            self._news.set()
            await asyncio.sleep(AGAIN)

    def take(self) -> Json | None:
        """Return the newest state that was not taken yet; None: nothing was reported, so the Lease has to be read."""
        self._news.clear()
        newest, self._newest = self._newest, None
        return newest

    async def wait(self, seconds: float) -> None:
        """Wait for news, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()


class Election:
    """One candidate for one Lease. `kube` is a client of its own, so that a renewal waits behind no other call.

    `others` are other releases: while one of them serves the same namespaces, this Lease is held and nothing acts.
    """

    def __init__(
        self,
        kube: Kube,
        candidate: Candidate,
        *,
        others: Releases | None = None,
        clock: Callable[[], float] = clock,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._kube = kube
        self._candidate = candidate
        self._clock = clock
        self._wall = wall
        self._others = others
        self._watch = LeaseWatch(kube, candidate.name, candidate.namespace)
        self._alone = others is None
        """Whether no other release was found to act since this Lease is held."""
        self._last_log = ""
        self._observes_first = False
        """Whether the last renewal was refused, so that the holder is not known."""

    @property
    def leads(self) -> bool:
        """Whether this operator may act now."""
        return self._alone and self._holds

    @property
    def _holds(self) -> bool:
        return self._candidate.leads(self._clock())

    @property
    def holder(self) -> str:
        """Holder of the Lease, as far as known."""
        return self._candidate.holder

    def fence(self, method: str) -> None:
        """Check the Lease right before every call. Raises NotLeadingError for a write without it."""
        # Reads are allowed: a standby keeps its caches filled.
        if method != "GET" and not self.leads:
            raise NotLeadingError("this operator does not hold the Lease")

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Wait for the Lease, run `work` while it is held, end the work when it is lost, and begin again, for ever.

        Raises the error of work that ended by itself.
        """
        acting: asyncio.Task[None] | None = None
        watching = asyncio.create_task(self._watch.run(), name="watch of the Lease")
        try:
            while True:
                # The old tasks end before the Lease is tried again: two generations of them must never act at once.
                if acting and not self.leads:
                    log.warning("not leading any more: %s", self._reason_of_loss())
                    acting = await _ended(acting)
                wait = await self._round()
                if self.leads and acting is None:
                    log.info("leading as %s", self._candidate.identity)
                    acting = asyncio.create_task(work(), name="acting")
                await self._rest(acting, wait)
        finally:
            watching.cancel()
            if acting:
                await _ended(acting)

    async def release(self) -> None:
        """Give the Lease up, so that another candidate takes it at once; the caller has ended the work."""
        # First here, then at the server: from now on the fence refuses, whatever happens to the call.
        self._candidate = self._candidate.released()
        try:
            # Bounded: the process is ending, and a Lease that is not released expires by itself.
            async with asyncio.timeout(self._candidate.pace.retry):
                released = await self._release_newest()
        except (ApiError, TimeoutError) as error:
            log.warning("the Lease could not be released and will expire: %s", error)
        else:
            if released:
                log.info("the Lease is released")

    async def _release_newest(self) -> bool:
        """Write the Lease without a holder; return whether it was ours."""
        try:
            return await self._put_released()
        except ApiError as error:
            if error.status not in (404, 409):
                raise
        # The end came between a renewal and its answer: the server has a newer version, perhaps another's.
        self._candidate = self._candidate.saw(await self._read_lease(), self._clock())
        return await self._put_released()

    async def _put_released(self) -> bool:
        body = self._candidate.release(self._wall())
        if body is not None:
            await self._put(body)
        return body is not None

    async def _rest(self, acting: asyncio.Task[None] | None, wait: float) -> None:
        """Wait, but not past the end of the Lease, nor past the end of the work, whose error is raised."""
        if acting is None:
            if self._holds:  # it stands by for another release: its own renewals are no news
                await asyncio.sleep(wait)
            else:
                await self._watch.wait(wait if self._watch.live else min(wait, self._candidate.pace.poll_seconds))
            return
        # `until` is two thirds of the duration: the holder stops before any candidate may take the Lease (ADR 37).
        seconds_left = self._candidate.until - self._clock()
        done, _ = await asyncio.wait({acting}, timeout=max(0.0, min(wait, seconds_left)))
        if done:
            acting.result()
            raise RuntimeError("the leader's tasks ended unexpectedly")

    async def _round(self) -> float:
        """Read or write the Lease once; return the seconds until the next time."""
        led, pace = self._holds, self._candidate.pace
        # Half the deadline, so that a renewal without an answer leaves time for another.
        limit = min(pace.deadline / 2, self._candidate.until - self._clock()) if led else pace.deadline
        # A candidate has not looked for other releases since it last led, and must not act before it has.
        if not led and self._others:
            self._alone = False
            self._others.forget_logged()
        try:
            async with asyncio.timeout(max(limit, 0.0)):
                wait = await self._try(led=led)
                await self._observe_others()
                self._well()
                return wait
        except TimeoutError:
            self._trouble(f"no answer within {limit:.1f} s")
        except ApiError as error:
            self._trouble(error.message)
            if error.status in (404, 409) and led and not self._observes_first:
                self._observes_first = True  # another candidate wrote it: read it before the next write
                return 0.0
        return pace.poll_seconds

    async def _try(self, *, led: bool) -> float:
        news = self._watch.take()
        if not led or self._observes_first:
            # Read where the watch reported no renewal in time: it may be dead, and the Lease alive.
            lease = news if news and not led else await self._read_lease()
            self._candidate = self._candidate.saw(lease, self._clock())
            if led and not self._holds:
                return 0.0  # it was taken: `run` must stop the work first
        step = self._candidate.next(self._clock(), self._wall())
        if step.write is None:
            return step.wait
        # The Lease counts from the time of sending: others count from when they see it, which is later.
        sent = self._clock()
        lease = await self._put(step.write)
        if not led:
            log.info("the Lease is taken: %s", step.reason)
        self._candidate = self._candidate.wrote(lease, sent)
        # From the sending, so that a slow answer does not stretch the interval of renewals.
        return max(0.0, sent + self._candidate.pace.retry - self._clock())

    async def _observe_others(self) -> None:
        """Look for another release that acts; announce in the Lease that this one acts, or stands by."""
        others = self._others
        if others is None:
            return
        if self._alone or not self._holds:
            if others.is_due:
                await others.refresh(everywhere=self._alone)
                others.warn(self._candidate.lease or {}, acts=self._alone)
            return
        await others.refresh()
        reason = others.ask(self._candidate.lease or {})
        if not reason and not self._candidate.acts:
            # Announce it, then look once more: of two releases that start together, at least one sees the other.
            await self._claim("")
            await others.refresh()
            reason = others.ask(self._candidate.lease or {})
        if reason != self._candidate.stands_by:
            await self._claim(reason)
        self._alone = not reason

    async def _claim(self, stands_by: str) -> None:
        sent = self._clock()
        lease = await self._put(self._candidate.claim(self._wall(), stands_by=stands_by))
        self._candidate = self._candidate.wrote(lease, sent)

    async def _read_lease(self) -> dict[str, Any] | None:
        try:
            return await self._kube.get(LEASES, self._candidate.name, self._candidate.namespace)
        except NotThereError:
            return None

    async def _put(self, body: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        candidate = self._candidate
        # Never a blind write: without a resourceVersion the Lease must not exist yet, with one it must be unchanged.
        if "resourceVersion" not in body["metadata"]:
            return await self._kube.create(LEASES, body, candidate.namespace)
        return await self._kube.replace(LEASES, body, candidate.namespace)

    def _trouble(self, words: str) -> None:
        # Once for each trouble: a round follows every few seconds.
        if words != self._last_log:
            log.warning("the Lease %s/%s: %s", self._candidate.namespace, self._candidate.name, words)
        self._last_log = words

    def _well(self) -> None:
        self._last_log, self._observes_first = "", False

    def _reason_of_loss(self) -> str:
        if self.holder and self.holder != self._candidate.identity:
            return f"{self.holder} holds the Lease"
        return f"the Lease could not be renewed: {self._last_log}"


async def _ended(acting: asyncio.Task[None]) -> None:
    """End the work, and wait until it has ended."""
    acting.cancel()
    done, _ = await asyncio.wait({acting}, timeout=END_SECONDS)
    if not done:
        raise RuntimeError(f"the leader's tasks did not end within {END_SECONDS:g} s of losing the Lease")
    if not acting.cancelled() and (error := acting.exception()):
        raise error
