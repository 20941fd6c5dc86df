"""Pollers of PrimeMaster and Ray: one task per watched job, which long-polls its gateway.

The gateway answers when something changed, so a change is known at once, and an idle job costs one request each 25 s.
When the gateway does not answer, Ray's Job API is asked why.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from dljob.kube.gateway import GatewayClient
from dljob.kube.head import HeadError, MisbehavesError, UnknownError
from dljob.kube.ray_jobs import JobApi, refusal
from dljob.reconcile.state import names
from dljob.reconcile.state.fields import bounded, part, text
from dljob.reconcile.state.model import MasterView, Object, RayJobView, Watch
from dljob.reconcile.state.snapshot import MAX_TEXT, digest, places, served, significant
from dljob.tasks import ErrorLog
from dljob_operator.controller.heads import Heads
from dljob_operator.watch.clock import MACHINE, OperatorClock
from dljob_operator.watch.workqueue import Key, WorkQueue

log = logging.getLogger(__package__)

WAIT = 25.0
"""Long-poll timeout of the gateway, in seconds."""
PAUSE = 0.25
"""Pause between two unimportant answers, in seconds: progress comes in bursts."""
BURST, EVERY = 10, 1.0
"""Important answers of a head that are followed by the next question at once, and the seconds per answer after them."""
REMIND = 15.0
"""Shortest interval, in seconds, between two passes for mere progress."""
LEFT_ALONE, LEFT_ALONE_LONGEST = 60.0, 3600.0
"""Pause, in seconds, for a head that misbehaves; it doubles each time in a row, up to the longest."""
FEW_PLACES = 16
"""Most placements accepted before any pod is known; later twice the number of pods."""
REMIND_SILENT = 5.0
"""Shortest interval, in seconds, between two passes for a silent gateway, whose silence is measured by them."""
FIRST_BACKOFF, LONGEST_BACKOFF = 0.2, 5.0
STARTING_BACKOFF = 0.5
"""Longest backoff, in seconds, while the launcher starts and PrimeMaster has not answered yet."""
_ENDED = ("FAILED", "STOPPED", "SUCCEEDED")


@dataclass(slots=True)
class HeadReport:
    """Last answers of one job's head."""

    uid: str
    watch: Watch
    began: float
    snapshot: Object = field(default_factory=dict[str, object])
    placement: tuple[Object, ...] = ()
    endpoints: Mapping[str, tuple[Object, ...]] | None = None
    answered_at: float = 0.0
    """Monotonic time of PrimeMaster's last answer; 0: never."""
    error: str = ""
    ray_job: RayJobView | None = None
    brought: float = 0.0
    """Monotonic time when its key was last queued for something that could wait."""
    failures: int = 0
    misbehaved: int = 0
    """Answers that no head of dljob gives, since the last time that all it answered was accepted."""
    spent: float = -math.inf
    """Monotonic time at which all its important answers so far would have come at their slowest pace."""
    places_due: bool = False
    """Whether a question for the placement is unanswered."""

    @property
    def misbehaves(self) -> bool:
        """Whether the last answer was one that no head of dljob gives."""
        return self.misbehaved > 0 and bool(self.error)


def _view(report: HeadReport, age: float) -> MasterView:
    return MasterView(report.snapshot, report.placement, age, report.error, report.misbehaves, report.endpoints)


class Pollers:
    """The polling tasks, and the last answers."""

    def __init__(
        self,
        heads: Heads,
        queue: WorkQueue,
        pods: Callable[[Key], int] = lambda _cluster: sys.maxsize // 2,
        clock: OperatorClock = MACHINE,
    ) -> None:
        """Start without tasks; `pods` counts the pods of a RayCluster."""
        self._heads = heads
        self._pods = pods
        self._queue = queue
        self._now, self._jitter = clock.monotonic, clock.jitter
        self._reports: dict[Key, HeadReport] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def follow(self, key: Key, uid: str, watch: Watch | None, submitted: str = "") -> None:
        """Poll the head that `watch` names; None stops. `submitted` is the id that Ray has just accepted."""
        report = self._reports.get(key)
        # Another attempt, address or submission: answers of the old head must not count for the new one.
        if watch is None or (report and (report.uid, report.watch) != (uid, watch)):
            self._stop(key)
            report = None
        if watch is None:
            return
        if report is None:
            report = self._reports[key] = HeadReport(uid, watch, self._now())
        if submitted:
            # Not asked again: until the poller reaches Ray, "no such submission" from before would start it twice.
            report.ray_job = RayJobView(submitted, "PENDING", session=report.ray_job.session if report.ray_job else "")
        # Missing for a new head, and after a task that ended by a bug (`_task_ended`).
        if key not in self._tasks:
            poll_task = self._tasks[key] = asyncio.create_task(self._ask(key, report), name=f"poll {key}")
            poll_task.add_done_callback(partial(self._task_ended, key))

    def views(self, key: Key) -> tuple[MasterView | None, RayJobView | None]:
        """Return the last answers of PrimeMaster and of Ray, with their age."""
        report = self._reports.get(key)
        if report is None:
            return None, None
        if not report.answered_at and not report.error:
            # PrimeMaster has neither answered nor failed yet: only Ray's answer counts.
            return None, report.ray_job
        # Before the first answer its silence counts from the beginning of the polling.
        age = self._now() - (report.answered_at or report.began)
        return _view(report, age), report.ray_job

    async def close(self) -> None:
        """Stop all polling."""
        tasks = list(self._tasks.values())
        for key in list(self._tasks):
            self._stop(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _stop(self, key: Key) -> None:
        self._reports.pop(key, None)
        # Removed before the cancellation: so `_task_ended` sees that this end was wanted.
        task = self._tasks.pop(key, None)
        if task:
            task.cancel()

    def _task_ended(self, key: Key, task: asyncio.Task[None]) -> None:
        """Log a task that ended by a bug, and let the job's next pass start another one."""
        if task.cancelled() or self._tasks.get(key) is not task:
            return
        del self._tasks[key]
        log.error("%s: polling of its head failed; again in %.0f s", key, LONGEST_BACKOFF, exc_info=task.exception())
        self._queue.add_after(key, LONGEST_BACKOFF)

    async def _ask(self, key: Key, report: HeadReport) -> None:
        head_place = (key.namespace, report.uid, report.watch.cluster, report.watch.address)
        gateway, ray = self._heads.gateway(*head_place), self._heads.ray(*head_place)
        errors = ErrorLog(f"{key}: the reading of what its head answers", log)
        while True:
            try:
                # Ray is asked only while PrimeMaster is silent: it alone knows why a launcher ended.
                if report.error or not report.answered_at:
                    await self._hear_ray(key, report, ray)
                weighty = await self._hear_master(key, report, gateway)
                errors.worked()
                pause = self._pace(report) if weighty else PAUSE
            except MisbehavesError as error:
                pause = self._leave_alone(key, report, error)
            except HeadError as error:
                pause = self._missed(key, report, error)
            except Exception as error:  # noqa: BLE001 - an unreadable answer must not end the polling
                errors.failed(error)
                # As good as silence: a head that says nothing of use must not hold up its job's stop and deadline.
                pause = self._missed(key, report, HeadError(0, f"unreadable answer: {type(error).__name__}"))
            await asyncio.sleep(pause)

    def _pace(self, report: HeadReport) -> float:
        """Return the pause after an important answer: each costs a pass and a write, and a head could give one always.

        What changes during the pause is in the next answer.
        """
        now = self._now()
        report.spent = max(report.spent, now - BURST * EVERY) + EVERY
        return max(0.0, report.spent - now)

    # -- PrimeMaster

    async def _hear_master(self, key: Key, report: HeadReport, gateway: GatewayClient) -> bool:
        """Poll PrimeMaster once; return whether the answer is important, that is, needs a pass now."""
        known = report.snapshot.get("version", 0)
        # After an error no wait: a gateway that is back must show at once.
        snapshot = digest(await gateway.status(report.watch.job, after=known, wait=0.0 if report.error else WAIT))
        # A RayCluster that outlives attempts answers for the ended one until this one's PrimeMaster begins. That counts
        # as silence: only Ray knows what becomes of this one's launcher.
        if (attempt := snapshot.get("attempt")) != report.watch.attempt:
            raise HeadError(
                0, f"PrimeMaster of attempt {report.watch.attempt} has not begun: attempt {attempt} answers"
            )
        marks = part(snapshot, "services")
        # Asked before the snapshot counts as known: after a failure all is asked again.
        if not marks or marks != part(report.snapshot, "services"):
            report.endpoints = served(await gateway.endpoints(report.watch.job)) if marks else {}
        back = bool(report.error) or not report.answered_at
        # The same changes are written to the status at once; a property test keeps the two in step (ADR 9).
        weighty = back or significant(report.snapshot, snapshot)
        news = snapshot != report.snapshot
        report.snapshot, report.answered_at = snapshot, self._now()
        report.error, report.failures = "", 0
        asked = (weighty or report.places_due) and bool(part(snapshot, "placement"))
        places_known = asked and await self._places(key, report, gateway)
        # Not while the placement is owed: a good snapshot before each bad one must not begin the row of pauses anew.
        if not report.places_due:
            report.misbehaved = 0
        if weighty or places_known:
            self._queue.add(key)
        elif news:
            self._remind(key, report, REMIND)
        return weighty

    async def _places(self, key: Key, report: HeadReport, gateway: GatewayClient) -> bool:
        """Ask for the placement of units; return whether it is known now, else the next snapshot asks again.

        More placements than the RayCluster has pods for are rejected as a whole: a partial placement would mean that
        the other pods hold nothing.
        """
        # Before the call: a question that fails is repeated with the next snapshot.
        report.places_due = True
        try:
            unit_places = places(await gateway.placement(report.watch.job))
        except MisbehavesError:
            # A HeadError too, but `_ask` handles it: this head is left alone.
            raise
        except HeadError as error:
            log.info("%s: placement: %s", report.watch.cluster, error)
            return False
        known = self._pods(Key(key.namespace, report.watch.cluster))
        report.places_due = len(unit_places) > max(FEW_PLACES, 2 * known)
        report.placement = () if report.places_due else unit_places
        return not report.places_due

    def _leave_alone(self, key: Key, report: HeadReport, error: MisbehavesError) -> float:
        """Record an answer that no head of dljob gives; return the pause before the next question."""
        log.warning("%s: its head misbehaves: %s", key, error.message)
        # At once for the condition HeadMisbehaves; further answers of the kind change nothing.
        if not report.misbehaves:
            self._queue.add(key)
        report.error = error.message
        report.misbehaved += 1
        return min(LEFT_ALONE_LONGEST, LEFT_ALONE * 2.0 ** min(report.misbehaved - 1, 20))

    def _missed(self, key: Key, report: HeadReport, error: HeadError) -> float:
        """Record that PrimeMaster did not answer; return the pause before the next question."""
        # The first failure queues a pass at once, later ones at most every few seconds.
        if not report.error:
            self._queue.add(key)
        report.error = error.message
        report.failures += 1
        self._remind(key, report, REMIND_SILENT)
        longest = LONGEST_BACKOFF if report.answered_at else STARTING_BACKOFF
        # No launcher runs, so nothing starts that would be worth asking for often.
        if report.ray_job is None or report.ray_job.status in (*_ENDED, "MISSING", ""):
            longest = LONGEST_BACKOFF
        # The cap on the exponent keeps the power finite during a silence of days.
        pause = min(longest, FIRST_BACKOFF * 1.5 ** min(report.failures - 1, 20))
        # Hundreds of gateways may fall silent together, with a node or a network.
        return pause * self._jitter()

    def _remind(self, key: Key, report: HeadReport, every: float) -> None:
        # Rate limit per job: a pass now, or the one that is due after the interval.
        now = self._now()
        if now >= report.brought + every:
            report.brought = now
            self._queue.add(key)
        else:
            self._queue.add_after(key, report.brought + every - now)

    # -- Ray's Job API

    async def _hear_ray(self, key: Key, report: HeadReport, ray: JobApi) -> None:
        """Ask Ray about the submission; only a change of it calls for a pass."""
        old = report.ray_job
        try:
            new = await self._ray_view(report, ray)
        except MisbehavesError:
            # Handled by `_ask`, as above.
            raise
        except HeadError as error:
            # Ray does not answer: its last words about the submission stay.
            before = old or RayJobView(report.watch.submission, "")
            new = replace(before, error=error.message)
        if report.ray_job is not old:
            return  # it was submitted meanwhile: "no such submission" may be an answer from before
        report.ray_job = new
        # An error alone is no news of the submission.
        if old is None or replace(old, error="") != replace(new, error=""):
            self._queue.add(key)

    async def _ray_view(self, report: HeadReport, ray: JobApi) -> RayJobView:
        # Everything from the head is cut to a length: user code runs there, and could fill the operator's memory.
        submission, session = report.watch.submission, bounded(await ray.session(), 256)
        try:
            submission_fields = await ray.get(submission)
        except UnknownError:
            return RayJobView(submission, "MISSING", session=session)
        code = submission_fields.get("driver_exit_code")
        view = RayJobView(
            submission,
            bounded(str(submission_fields.get("status") or ""), 64),
            message=bounded(str(submission_fields.get("message") or ""), MAX_TEXT),
            exit_code=code if isinstance(code, int) else None,
            spec=bounded(text(submission_fields, "metadata", names.SPEC_HASH), 64),
            session=session,
        )
        if view.status not in _ENDED:
            return view
        # A launcher that refuses a job writes why as its last line.
        tail = await ray.tail(submission)
        told_last = {name: bounded(words, MAX_TEXT) for name, words in refusal(tail).items()}
        return replace(view, tail=tail[-4 * MAX_TEXT :], refusal=told_last)
