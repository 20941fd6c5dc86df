"""Passes: take a key, observe, decide (purely), execute, write the status; at once on news, later on failure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from functools import partial

from dljob.kube.api import ApiError
from dljob.kube.head import HeadError
from dljob.reconcile.reconcile import reconcile
from dljob.reconcile.state.fields import bounded
from dljob.reconcile.state.model import Object, Observed, ReconcileResult, Settings, Submit, Trouble, label
from dljob_operator.controller.events import Recorder
from dljob_operator.controller.execute import ActionExecutor, StaleError, TakenError
from dljob_operator.controller.metrics import Metrics
from dljob_operator.controller.observe import Observer, OperatorMemory
from dljob_operator.controller.poller import Pollers
from dljob_operator.controller.startup import Startup
from dljob_operator.controller.turns import Turns
from dljob_operator.leader.lease import NotLeadingError
from dljob_operator.watch.clock import MACHINE, OperatorClock
from dljob_operator.watch.workqueue import Key, WorkQueue

log = logging.getLogger(__package__)

RESTLESS = 25
"""Consecutive passes that each changed something and called for another; more of them are a loop, and slowed down.

Passes that share one long piece of work, and leave less of it each time, do not count."""

NOT_LEADING = 1.0
"""Pause, in seconds, before a fenced-off pass is made again, in case this operator leads again by then."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts that a pass works with."""

    queue: WorkQueue
    observer: Observer
    executor: ActionExecutor
    pollers: Pollers
    recorder: Recorder
    metrics: Metrics
    startup: Startup


class Controller:
    """Makes the passes. `decide` is `reconcile` except in tests."""

    def __init__(
        self,
        parts: Parts,
        settings: Settings,
        *,
        decide: Callable[[Observed, Settings, float], ReconcileResult] = reconcile,
        clock: OperatorClock = MACHINE,
        served: Container[str] | None = None,
    ) -> None:
        self._parts = parts
        self._settings = settings
        self._served = served
        """The namespaces whose DLJobs get passes; None: all that are watched."""
        self._decide = decide
        self._clock = clock
        self._logged: dict[Key, str] = {}
        self.since: dict[Key, float] = {}
        """Start of each running pass, on the monotonic clock."""

    async def run(self, turns: Turns) -> None:
        """Make a pass for each key that is ready, as many concurrently as there are turns, until cancelled.

        An error that `_pass` does not expect ends all passes, and with them this operator's lead.
        """
        queue = self._parts.queue
        async with asyncio.TaskGroup() as passes:
            while True:
                key = await queue.get()
                try:
                    await turns.take()
                except asyncio.CancelledError:
                    # Cancelled while it waits for a turn: the queue outlives this lead, so the key must not stay busy.
                    queue.done(key)
                    raise
                # A task per pass, not a fixed set of workers: a pass that waits for a head lends its turn (ADR 65).
                pass_task = passes.create_task(self._pass(key), name=f"pass {key}")
                pass_task.add_done_callback(partial(self._release_turn, key, turns))

    def _release_turn(self, key: Key, turns: Turns, _task: asyncio.Task[None]) -> None:
        """Return the turn and the key, also of a pass that was cancelled before it began."""
        turns.give()
        self._parts.queue.done(key)

    async def _pass(self, key: Key) -> None:
        """Make one pass and handle its errors: a bug that one job triggers must not stop the passes of others."""
        queue, metrics = self._parts.queue, self._parts.metrics
        began = self.since[key] = self._clock.monotonic()
        result = "error"
        try:
            result = await self.step(key)
        except NotLeadingError:
            queue.add_after(key, NOT_LEADING)  # the new leader makes this pass
        except (ApiError, HeadError) as error:
            delay = queue.retry(key)
            log.warning("%s: %s; again in %.1f s", key, error.message, delay)
        except Exception:
            delay = queue.retry(key)
            log.exception("%s: the pass failed; again in %.1f s", key, delay)
        finally:
            del self.since[key]
            metrics.reconciled(result, self._clock.monotonic() - began)

    async def step(self, key: Key) -> str:
        """Make one pass; return its result in the metrics' words.

        Raises:
            ApiError: the API server refused something other than an action: the status, or a look at the logs.
        """
        try:
            return await self._step(key)
        except ApiError as error:
            master, _ = self._parts.pollers.views(key)
            if error.status != 422 or master is None or not master.snapshot:
                raise
            # A value that `reconcile.state.snapshot` lets through must not keep the job from its end, or its stop.
            log.warning("%s: decided again without what its head reports: %s", key, error.message)
            return await self._step(key, refused=error.message)

    async def _step(self, key: Key, *, refused: str = "") -> str:
        """Make one pass; `refused` is why the API server refuses a status with what the head reports."""
        parts = self._parts
        if self._served is not None and key.namespace not in self._served:
            # As if it were deleted: its RayCluster goes on, and nobody acts on it.
            self._forget(key)
            return "success"
        # 1. observe
        observed = await parts.observer.observe(key)
        if observed is None:
            # Deleted: nothing of it may reach a later job of this name.
            self._forget(key)
            return "success"
        observed_job, memory = observed
        if refused and observed_job.master:
            error_text = f"the API server refuses a status with what it reports: {bounded(refused)}"
            observed_job = replace(
                observed_job, master=replace(observed_job.master, snapshot={}, misbehaves=True, error=error_text)
            )
        # 2. decide
        outcome = self._decide(observed_job, self._settings, self._clock.wall())
        self._log(key, outcome)
        # 3. Events before actions: after a crash in between they are repeated, not lost.
        for event in outcome.events:
            await parts.recorder.tell(key, observed_job.job, event)
        written: Object | None = observed_job.job
        # 4. the status first when it names objects to create, so that a later operator finds the same names
        if outcome.written_first:
            written = await self._write(key, observed_job, outcome.status)
            if written is None:
                # The DLJob has changed since the decision: decide again, and act on nothing of it.
                return self._requeue(key, memory, outcome, failed=False, news=True)
        # 5. act, poll the head that this pass decided for, and write the status
        failed = await self._act(key, memory, outcome)
        # After a failed action it is unknown whether the submission was reached at all.
        submitted = "" if failed else next((a.id for a in outcome.actions if isinstance(a, Submit)), "")
        parts.pollers.follow(key, memory.uid, outcome.watch, submitted)
        if not outcome.written_first:
            written = await self._write(key, observed_job, outcome.status)
        if not failed:
            # Stages count once their actions have taken effect.
            parts.startup.passed(key, observed_job.cluster, outcome)
        # No news when the API server drops fields that its CRD lacks: it answers with the old status, and a pass at
        # once would repeat for ever.
        news = written is None or written.get("status") != observed_job.job.get("status")
        return self._requeue(key, memory, outcome, failed=failed, news=news or bool(outcome.actions))

    async def _act(self, key: Key, memory: OperatorMemory, outcome: ReconcileResult) -> bool:
        """Perform the actions in order until one fails; return whether one did."""
        for action in outcome.actions:
            action_label = label(action)
            try:
                await self._parts.executor.perform(key, memory, action)
            except StaleError as error:
                # Not a trouble: the DLJob has just changed, and the next pass decides on the new one.
                log.info("%s: %s: decided again", key, error.message)
                return True
            except (ApiError, HeadError, TakenError) as error:
                # The time of the first failure stays: policies ask how long an action has been failing.
                count, since = (
                    (b.count, b.since) if (b := memory.troubles.get(action_label)) else (0, self._clock.wall())
                )
                trouble = Trouble(action_label, error.status, error.message, count + 1, since)
                memory.troubles[action_label] = trouble
                log.warning("%s: %s failed (%d in a row): %s", key, action_label, trouble.count, error.message)
                # The later actions were decided for the case that this one succeeds.
                return True
            memory.troubles.pop(action_label, None)
            log.info("%s: %s is done", key, action_label, extra={"fields": {"dljob": str(key), "action": action_label}})
        return False

    async def _write(self, key: Key, observed_job: Observed, status: Object | None) -> Object | None:
        """Write the status, if any, and return the DLJob as stored; None: it had changed, and has been read anew."""
        if status is None:
            return observed_job.job
        try:
            return await self._parts.executor.write_status(key, observed_job.job, status)
        except ApiError as error:
            # 404: the DLJob is gone; 409: it has changed since it was observed. Either way this pass's view is old.
            if error.status not in (404, 409):
                raise
            await self._parts.executor.refresh(key)
            return None

    def _requeue(self, key: Key, memory: OperatorMemory, outcome: ReconcileResult, *, failed: bool, news: bool) -> str:
        """Queue the key for its next pass, and return the result in the metrics' words."""
        queue = self._parts.queue
        # Progress in a long piece of work, such as the deletion of many pods, is no loop.
        if not 0 < memory.cleared_clusters > outcome.postponed:
            memory.unrest += 1
        # A failure has its own backoff, and a pass without news ends the row.
        if failed or not news:
            memory.unrest = 0
        memory.cleared_clusters = outcome.postponed
        restless = memory.unrest > RESTLESS
        if restless:
            log.error("%s: passes follow each other without end: %s", key, outcome.reason)
        if failed or restless:
            queue.retry(key)  # not earlier, whatever the decision asked for: it assumed that all actions succeed
            return "error"
        for delay in (outcome.requeue, memory.look_again):
            if delay is not None:
                queue.add_after(key, delay)
        # A pass without a failure ends the backoff.
        queue.forget(key)
        if news:
            queue.add(key)
        return "success" if outcome.requeue is None else "requeue_after"

    def _forget(self, key: Key) -> None:
        """Forget a deleted DLJob."""
        parts = self._parts
        parts.observer.forget(key)
        parts.recorder.forget(key)
        parts.startup.forget(key)
        parts.pollers.follow(key, "", None)
        parts.queue.drop(key)
        self._logged.pop(key, None)

    def _log(self, key: Key, outcome: ReconcileResult) -> None:
        """Log the reason when it differs from the last one."""
        if self._logged.get(key) != outcome.reason:
            self._logged[key] = outcome.reason
            log.info("%s: %s", key, outcome.reason, extra={"fields": {"dljob": str(key)}})
