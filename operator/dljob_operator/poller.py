"""What PrimeMaster and Ray say of each job that is to be asked after: one task a job, waiting at its gateway.

The gateway answers when something changed, so a change is known at once and a job at rest costs a request each 25 s.
When it does not answer, Ray's Job API is asked why.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from dataclasses import dataclass, field, replace

from dljob.control import names
from dljob.control.fields import part, text
from dljob.control.follow import significant
from dljob.control.model import MasterView, Object, RayJobView, Watch
from dljob.kube.gateway import Gateway
from dljob.kube.head import HeadError, UnknownError
from dljob.kube.ray_jobs import RayJobs, refusal
from dljob_operator.heads import Heads
from dljob_operator.workqueue import Key, WorkQueue

log = logging.getLogger(__name__)

WAIT = 25.0
"""Seconds that a gateway may wait for news."""
PAUSE = 0.25
"""Seconds between two answers that say nothing of weight: progress comes in bursts."""
REMIND = 15.0
"""Progress brings its job up at most that often, in seconds."""
REMIND_SILENT = 5.0
"""So does a gateway that does not answer: how long it has been silent counts."""
FIRST_BACKOFF, LONGEST_BACKOFF = 0.2, 5.0
STARTING_BACKOFF = 0.5
"""The longest pause while the launcher starts, until PrimeMaster has spoken."""
_ENDED = ("FAILED", "STOPPED", "SUCCEEDED")


@dataclass(slots=True)
class Told:
    """What the head of one job has said."""

    uid: str
    watch: Watch
    began: float
    snapshot: Object = field(default_factory=dict[str, object])
    placement: tuple[Object, ...] = ()
    heard: float = 0.0
    """When PrimeMaster last answered; 0: never."""
    error: str = ""
    ray_job: RayJobView | None = None
    brought: float = 0.0
    """When its key was last brought up for something that could wait."""
    failures: int = 0
    places_due: bool = False
    """The placement was asked for, and not answered."""


class Pollers:
    """The tasks, and what they heard."""

    def __init__(self, heads: Heads, queue: WorkQueue) -> None:
        self._heads = heads
        self._queue = queue
        self._told: dict[Key, Told] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def follow(self, key: Key, uid: str, watch: Watch | None, submitted: str = "") -> None:
        """Ask whom the watch names about a job; None: nobody. `submitted`: the id that Ray has just taken."""
        told = self._told.get(key)
        if watch is None or (told and (told.uid, told.watch) != (uid, watch)):
            self._stop(key)
            told = None
        if watch is None:
            return
        if told is None:
            told = self._told[key] = Told(uid, watch, time.monotonic())
        if submitted:
            told.ray_job = RayJobView(submitted, "PENDING", session=told.ray_job.session if told.ray_job else "")
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(self._ask(key, told), name=f"poll {key}")

    def views(self, key: Key) -> tuple[MasterView | None, RayJobView | None]:
        """What was heard, with its age."""
        told = self._told.get(key)
        if told is None:
            return None, None
        if not told.heard and not told.error:
            return None, told.ray_job
        age = time.monotonic() - (told.heard or told.began)
        return MasterView(told.snapshot, told.placement, age, told.error), told.ray_job

    async def close(self) -> None:
        """Ask nobody any more."""
        tasks = list(self._tasks.values())
        for key in list(self._tasks):
            self._stop(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _stop(self, key: Key) -> None:
        self._told.pop(key, None)
        task = self._tasks.pop(key, None)
        if task:
            task.cancel()

    async def _ask(self, key: Key, told: Told) -> None:
        where = (told.uid, told.watch.cluster, told.watch.address)
        gateway, ray = self._heads.gateway(*where), self._heads.ray(*where)
        while True:
            try:
                if told.error or not told.heard:
                    await self._hear_ray(key, told, ray)
                weighty = await self._hear_master(key, told, gateway)
                pause = 0.0 if weighty else PAUSE
            except HeadError as error:
                pause = self._missed(key, told, error)
            except Exception:  # one answer that makes no sense must not end the asking
                log.exception("%s: the answer of its head cannot be read", key)
                pause = LONGEST_BACKOFF
            await asyncio.sleep(pause)

    # -- PrimeMaster

    async def _hear_master(self, key: Key, told: Told, gateway: Gateway) -> bool:
        """One long poll; returns whether it brought something that does not wait."""
        known = told.snapshot.get("version", 0)
        snapshot = await gateway.status(told.watch.job, after=known, wait=0.0 if told.error else WAIT)
        back = bool(told.error) or not told.heard
        weighty = back or significant(told.snapshot, snapshot)
        news = snapshot != told.snapshot
        told.snapshot, told.heard, told.error, told.failures = snapshot, time.monotonic(), "", 0
        found = (weighty or told.places_due) and bool(part(snapshot, "placement")) and await self._places(told, gateway)
        if weighty or found:
            self._queue.add(key)
        elif news:
            self._remind(key, told, REMIND)
        return weighty

    async def _places(self, told: Told, gateway: Gateway) -> bool:
        """Ask where the units are; returns whether that is known now, else the next snapshot asks again."""
        told.places_due = True
        try:
            told.placement = tuple((await gateway.placement(told.watch.job))["nodes"])
        except HeadError as error:
            log.info("%s: placement: %s", told.watch.cluster, error)
        else:
            told.places_due = False
        return not told.places_due

    def _missed(self, key: Key, told: Told, error: HeadError) -> float:
        """PrimeMaster did not answer; returns the pause before it is asked again."""
        if not told.error:
            self._queue.add(key)
        told.error = error.message
        told.failures += 1
        self._remind(key, told, REMIND_SILENT)
        longest = LONGEST_BACKOFF if told.heard else STARTING_BACKOFF
        if told.ray_job is None or told.ray_job.status in (*_ENDED, "MISSING", ""):
            longest = LONGEST_BACKOFF
        pause = min(longest, FIRST_BACKOFF * 1.5 ** min(told.failures - 1, 20))
        return pause * random.uniform(0.8, 1.2)  # noqa: S311 - jitter

    def _remind(self, key: Key, told: Told, every: float) -> None:
        now = time.monotonic()
        if now >= told.brought + every:
            told.brought = now
            self._queue.add(key)
        else:
            self._queue.add_after(key, told.brought + every - now)

    # -- Ray's Job API

    async def _hear_ray(self, key: Key, told: Told, ray: RayJobs) -> None:
        """Ask Ray about the submission; it counts only when something of it changed."""
        old = told.ray_job
        try:
            new = await self._ray_view(told, ray)
        except HeadError as error:
            before = old or RayJobView(told.watch.submission, "")
            new = replace(before, error=error.message)
        if told.ray_job is not old:
            return  # it was submitted meanwhile: "no such submission" may be of before
        told.ray_job = new
        if old is None or replace(old, error="") != replace(new, error=""):
            self._queue.add(key)

    async def _ray_view(self, told: Told, ray: RayJobs) -> RayJobView:
        submission, session = told.watch.submission, await ray.session()
        try:
            said = await ray.get(submission)
        except UnknownError:
            return RayJobView(submission, "MISSING", session=session)
        view = RayJobView(
            submission,
            str(said.get("status") or ""),
            message=str(said.get("message") or ""),
            exit_code=said.get("driver_exit_code"),
            spec=text(said, "metadata", names.SPEC_HASH),
            session=session,
        )
        if view.status not in _ENDED:
            return view
        tail = await ray.tail(submission)
        return replace(view, tail=tail, refusal=refusal(tail))
