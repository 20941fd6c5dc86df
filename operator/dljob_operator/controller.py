"""The workers: take a key, observe, decide (purely), execute, write the status; again on news, later on failure."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from dljob.control.model import Object, Observed, Outcome, Settings, Submit, Trouble, label
from dljob.control.reconcile import reconcile
from dljob.kube.api import ApiError
from dljob.kube.head import HeadError
from dljob_operator.events import Recorder
from dljob_operator.execute import Hands, StaleError, TakenError
from dljob_operator.lease import NotLeadingError
from dljob_operator.metrics import Metrics
from dljob_operator.observe import Memory, Observer
from dljob_operator.poller import Pollers
from dljob_operator.startup import Startup
from dljob_operator.workqueue import Key, WorkQueue

log = logging.getLogger(__name__)

RESTLESS = 25
"""Passes in a row that each changed something and called for another: so many are a loop, and are slowed down.

Passes that share one long piece of work, and leave less of it each time, are none."""

NOT_LEADING = 1.0
"""Seconds after which a pass that was fenced off is made again, should this operator still act then."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a pass works with."""

    queue: WorkQueue
    observer: Observer
    hands: Hands
    pollers: Pollers
    recorder: Recorder
    metrics: Metrics
    startup: Startup


class Controller:
    """Runs passes. `decide` is `reconcile`, but for tests."""

    def __init__(
        self,
        parts: Parts,
        settings: Settings,
        *,
        decide: Callable[[Observed, Settings, float], Outcome] = reconcile,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._parts = parts
        self._settings = settings
        self._decide = decide
        self._clock = clock
        self._said: dict[Key, str] = {}
        self.since: dict[Key, float] = {}
        """When each running pass began, on the monotonic clock."""

    async def work(self) -> None:
        """One worker, for ever."""
        queue, metrics = self._parts.queue, self._parts.metrics
        while True:
            key = await queue.get()
            began = self.since[key] = time.monotonic()
            result = "error"
            try:
                result = await self.step(key)
            except NotLeadingError:
                queue.add_after(key, NOT_LEADING)  # whoever leads goes on with it
            except (ApiError, HeadError) as error:
                delay = queue.retry(key)
                log.warning("%s: %s; again in %.1f s", key, error.message, delay)
            except Exception:  # a bug in one job's pass must not stop the others'
                delay = queue.retry(key)
                log.exception("%s: the pass failed; again in %.1f s", key, delay)
            finally:
                del self.since[key]
                queue.done(key)
                metrics.reconciled(result, time.monotonic() - began)

    async def step(self, key: Key) -> str:
        """One pass; returns its result as the metrics call it.

        Raises:
            ApiError: The API server refused what is not an action: the status, or a look at the logs.
        """
        parts = self._parts
        observed = await parts.observer.observe(key)
        if observed is None:
            self._forget(key)
            return "success"
        seen, memory = observed
        outcome = self._decide(seen, self._settings, self._clock())
        self._log(key, outcome)
        # Told before it is done: who dies in between tells it once more, and not never.
        for event in outcome.events:
            await parts.recorder.tell(key, seen.job, event)
        written: Object | None = seen.job
        if outcome.written_first:
            written = await self._write(key, seen, outcome.status)
            if written is None:
                return self._again(key, memory, outcome, failed=False, news=True)
        failed = await self._act(key, memory, outcome)
        submitted = "" if failed else next((a.id for a in outcome.actions if isinstance(a, Submit)), "")
        parts.pollers.follow(key, memory.uid, outcome.watch, submitted)
        if not outcome.written_first:
            written = await self._write(key, seen, outcome.status)
        if not failed:
            parts.startup.passed(key, seen.cluster, outcome)
        # There is no news when the API server drops what is written, since its CRD lacks the field: it answers with
        # what it had, and whoever tried again at once would try for ever.
        news = written is None or written.get("status") != seen.job.get("status")
        return self._again(key, memory, outcome, failed=failed, news=news or bool(outcome.actions))

    async def _act(self, key: Key, memory: Memory, outcome: Outcome) -> bool:
        """Make the actions come true until one fails; returns whether one did."""
        for action in outcome.actions:
            what = label(action)
            try:
                await self._parts.hands.perform(key, memory, action)
            except StaleError as error:
                log.info("%s: %s: decided again", key, error.message)
                return True
            except (ApiError, HeadError, TakenError) as error:
                before = memory.troubles.get(what)
                trouble = Trouble(what, error.status, error.message, before.count + 1 if before else 1)
                memory.troubles[what] = trouble
                log.warning("%s: %s failed (%d in a row): %s", key, what, trouble.count, error.message)
                return True
            memory.troubles.pop(what, None)
        return False

    async def _write(self, key: Key, seen: Observed, status: Object | None) -> Object | None:
        """Write the status, if it is to be; returns the DLJob as it is then. None: it had changed, and is read anew."""
        if status is None:
            return seen.job
        try:
            return await self._parts.hands.write_status(key, seen.job, status)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            await self._parts.hands.refresh(key)
            return None

    def _again(self, key: Key, memory: Memory, outcome: Outcome, *, failed: bool, news: bool) -> str:
        """When the key comes back."""
        queue = self._parts.queue
        if not 0 < memory.left > outcome.left:
            memory.unrest += 1
        if failed or not news:
            memory.unrest = 0
        memory.left = outcome.left
        restless = memory.unrest > RESTLESS
        if restless:
            log.error("%s: does not come to rest: %s", key, outcome.reason)
        if failed or restless:
            queue.retry(key)  # and not before: what it asked for supposed that all went well
            return "error"
        for delay in (outcome.requeue, memory.look_again):
            if delay is not None:
                queue.add_after(key, delay)
        queue.forget(key)
        if news:
            queue.add(key)
        return "success" if outcome.requeue is None else "requeue_after"

    def _forget(self, key: Key) -> None:
        """The DLJob is gone, and so is all that was remembered of it."""
        parts = self._parts
        parts.observer.forget(key)
        parts.recorder.forget(key)
        parts.startup.forget(key)
        parts.pollers.follow(key, "", None)
        parts.queue.drop(key)
        self._said.pop(key, None)

    def _log(self, key: Key, outcome: Outcome) -> None:
        """Log why, when it is not what was said before."""
        if self._said.get(key) != outcome.reason:
            self._said[key] = outcome.reason
            log.info("%s: %s", key, outcome.reason)


async def run_workers(controller: Controller, count: int) -> None:
    """So many workers, until cancelled; a worker that ends takes the others with it."""
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(controller.work(), name=f"worker {number}")
