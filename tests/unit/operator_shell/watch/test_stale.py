"""Operators that see the past: watches that lag, skip states and lose deletions, and caches that go back at a restart.

Stories are drawn; what is told to whom, and when, is a part of them. The API server is the truth, and refuses what
rests on an older version. After each step and at the end the laws hold, whatever two operators believed meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from fake_cluster import FakeCluster
from hypothesis import example, given, settings
from hypothesis import strategies as st
from shell_kit import JOB, UID, Shell, dljob, run_head, shell
from stub_head import StubHead

from dljob.kube.api import DLJOBS, PODS, ApiError
from dljob.kube.head import HeadError
from dljob.kube.kuberay_client import RayClusters
from dljob.kube.objects import Objects
from dljob.reconcile.state import names
from dljob.reconcile.state.model import MasterView, RayJobView, Watch
from dljob_operator.controller.poller import Pollers
from dljob_operator.watch.relist import Relist, ResyncSource

LIMIT = 2
KINDS = ("dljobs", "rayclusters", "pods")
Step = tuple[Any, ...]


class At:
    """What the head says, without delay: a poll that lags is the matter of other tests."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self._watch: Watch | None = None

    def follow(self, _key: object, _uid: str, watch: Watch | None, _submitted: str = "") -> None:
        self._watch = watch

    def views(self, _key: object) -> tuple[MasterView | None, RayJobView | None]:
        watch, head = self._watch, self._truth.head
        if watch is None:
            return None, None
        if watch.cluster != self._truth.on:
            return MasterView({}, (), 0.0, "no answer"), RayJobView(watch.submission, "", error="no answer")
        job = head.jobs.get(watch.submission)
        ray = RayJobView(watch.submission, job["status"] if job else "MISSING", session=head.session)
        snapshot = head.snapshots.get(watch.job)
        return (MasterView(snapshot) if snapshot else MasterView({}, (), 0.0, "404")), ray

    async def close(self) -> None:
        """There is nothing to end."""


@dataclass
class Truth:
    """What there really is."""

    fake: FakeCluster = field(default_factory=FakeCluster)
    head: StubHead = field(default_factory=StubHead)
    on: str = ""
    """The RayCluster whose head it is."""
    sessions: Any = field(default_factory=lambda: itertools.count(1))
    now: float = 1_800_000_000.0
    """The time of day: it passes when a story says so, and in the calm at its end."""

    def clusters(self) -> list[str]:
        return self.fake.names("rayclusters")

    @property
    def status(self) -> dict[str, Any]:
        found = self.fake.objects.get(("dljobs", *JOB))
        return (found or {}).get("status") or {}

    # -- nature

    def head_up(self) -> None:
        """KubeRay and the kubelet bring the head of a RayCluster up, or another container in its place."""
        attempt = next((a for a in range(1, 9) if names.cluster_name("hello", UID, a) in self.clusters()), 0)
        if attempt:
            number = next(self.sessions)
            self.on, self.head.session = names.cluster_name("hello", UID, attempt), f"session_{number}"
            self.head.jobs.clear()
            self.head.snapshots.clear()
            run_head(self.fake, self.head, attempt=attempt, container=f"containerd://{number}")

    def needs_head(self) -> bool:
        return bool(self.clusters()) and (self.on not in self.clusters() or not self.fake.names("pods"))

    def runs(self) -> None:
        if self.head.jobs and self.on in self.clusters():
            self.head.say(names.job_uid(UID), phase="Running", epoch=1)

    def ends(self) -> None:
        if self.head.jobs and self.on in self.clusters():
            self.head.say(names.job_uid(UID), phase="Succeeded", reason="Completed", message="it is done")

    def cluster_deleted(self) -> None:
        for name in self.clusters():
            self.fake.take("rayclusters", name)

    def restart_ordered(self) -> None:
        body = self.fake.one("dljobs", "hello")
        order = {names.RESTART: f"{len(self.fake.log)}"}
        self.fake.put("dljobs", {**body, "metadata": {**body["metadata"], "annotations": order}})

    def edited(self) -> None:
        body = self.fake.one("dljobs", "hello")
        env = {"env_vars": {"AT": f"{len(self.fake.log)}"}}
        self.fake.put("dljobs", {**body, "spec": {**body["spec"], "runtimeEnv": env}})


NATURE: dict[str, Callable[[Truth], None]] = {
    "head up": lambda truth: truth.head_up() if truth.needs_head() else None,
    "head again": Truth.head_up,
    "runs": Truth.runs,
    "ends": Truth.ends,
    "cluster deleted": Truth.cluster_deleted,
    "restart ordered": Truth.restart_ordered,
    "edited": Truth.edited,
}


@dataclass
class Eyes:
    """An operator, and how far each of its watches has told it."""

    it: Shell
    told: dict[str, int]

    def tell(self, plural: str, count: int, skips: int, *, loses: bool) -> None:
        """So many more changes of a kind; states that are not an object's last may be skipped, deletions lost."""
        log = [(n, *change) for n, change in enumerate(self.it.fake.log) if change[2] == plural]
        new = [each for each in log if each[0] >= self.told[plural]][:count]
        for bit, (number, _, kind, _, body) in enumerate(new):
            self.told[plural] = number + 1
            later = any(n > number and b["metadata"]["uid"] == body["metadata"]["uid"] for n, *_, b in log)
            if (kind == "DELETED" and loses) or (later and skips >> bit & 1):
                continue
            self._hear(plural, kind, body)

    def _hear(self, plural: str, kind: str, body: dict[str, Any]) -> None:
        cache, meta = self.it.cache, body["metadata"]
        put = {"dljobs": cache.put_job, "rayclusters": cache.put_cluster, "pods": cache.put_pod}
        drop = {"dljobs": cache.drop_job, "rayclusters": cache.drop_cluster, "pods": cache.drop_pod}
        where = type(JOB)(meta["namespace"], meta["name"])
        key = drop[plural](where, meta["uid"]) if kind == "DELETED" else put[plural](body)
        if key:
            self.it.queue.add(key)

    def begin(self, back: int) -> None:
        """Its first list, of so many changes ago."""
        past = self.it.fake.log[: max(1, len(self.it.fake.log) - back)]
        there: dict[tuple[str, str], dict[str, Any]] = {}
        for _, kind, plural, body in past:
            if kind == "DELETED":
                there.pop((plural, body["metadata"]["name"]), None)
            else:
                there[plural, body["metadata"]["name"]] = body
        for (plural, _), body in there.items():
            if plural in KINDS:
                self._hear(plural, "ADDED", body)
        self.told = dict.fromkeys(KINDS, len(past))

    async def relist(self) -> None:
        """What the operator does now and then."""
        it = self.it
        missed = Relist(it.queue, (None,), lambda _kind, _count: None)
        for source in (
            ResyncSource(Objects(it.kube, DLJOBS), "", it.cache.jobs, it.cache.put_job, it.cache.drop_job),
            ResyncSource(RayClusters(it.kube), "", it.cache.clusters, it.cache.put_cluster, it.cache.drop_cluster),
            ResyncSource(Objects(it.kube, PODS), "", it.cache.pods, it.cache.put_pod, it.cache.drop_pod),
        ):
            await missed.once(source)

    async def work(self) -> None:
        """One pass, also for no reason; what it raises brings it again."""
        key = self.it.queue.take()
        with contextlib.suppress(ApiError, HeadError):
            await self.it.controller.step(key or JOB)
        if key:
            self.it.queue.done(key)


class Story:
    """One truth and two pairs of eyes."""

    def __init__(self) -> None:
        self.truth = Truth()
        self.eyes: list[Eyes] = []
        self._stacks: list[contextlib.AsyncExitStack] = []

    async def begin(self, back: int = 0, who: int | None = None) -> None:
        """An operator begins, in the place of another one."""
        stack = contextlib.AsyncExitStack()
        made = shell(
            self.truth.fake,
            self.truth.head,
            pollers_of=lambda _heads, _queue: cast("Pollers", At(self.truth)),
            clock=lambda: self.truth.now,
        )
        eyes = Eyes(await stack.enter_async_context(made), {})
        eyes.begin(back)
        if who is None:
            self.eyes.append(eyes)
            self._stacks.append(stack)
        else:
            await self._stacks[who].aclose()
            self.eyes[who], self._stacks[who] = eyes, stack

    async def close(self) -> None:
        for stack in self._stacks:
            await stack.aclose()

    async def do(self, step: Step) -> None:
        match step:
            case ("pass", who):
                await self.eyes[who].work()
            case ("tell", who, plural, count, skips, loses):
                self.eyes[who].tell(plural, count, skips, loses=loses)
            case ("relist", who):
                await self.eyes[who].relist()
            case ("restart", who, back):
                await self.begin(back, who)
            case ("later", seconds):
                self.truth.now += seconds
            case ("nature", what):
                NATURE[what](self.truth)
        self.lawful()

    async def calm(self) -> None:
        """Everything is told, nothing befalls, and the job may end."""
        for _ in range(40):
            self.truth.now += 1.0
            NATURE["head up"](self.truth)
            self.truth.runs()
            self.truth.ends()
            for eyes in self.eyes:
                await eyes.relist()
                for _ in range(12):
                    await eyes.work()
                    self.lawful()
            if self.truth.status.get("completionTime") and not self.truth.clusters():
                return
        raise AssertionError(f"no end: {self.truth.status}")

    # -- laws

    def lawful(self) -> None:
        """What holds at every moment."""
        fake, head = self.truth.fake, self.truth.head
        assert len(self.truth.clusters()) <= 1, "two RayClusters at a time"
        ids = [posted["submission_id"] for posted in head.posted]
        assert len(set(ids)) == len(ids), f"an attempt was submitted twice: {ids}"
        last: dict[str, Any] = {}
        for _, kind, plural, body in fake.log:
            now = body.get("status") or {}
            if (kind, plural) == ("ADDED", "rayclusters"):
                own = names.cluster_name("hello", UID, last.get("attempt") or 1)
                assert body["metadata"]["name"] == own, "machines for an attempt that was given up"
                assert not last.get("completionTime"), "machines for a job that is over"
            if plural != "dljobs" or kind == "DELETED" or now == last:
                continue
            assert (now.get("attempt") or 1) - (last.get("attempt") or 1) in (0, 1), "attempts grow one by one"
            assert not last.get("completionTime") or now.get("phase") == last["phase"], "the end is the end"
            assert now.get("restarts", {}).get("cluster", 0) <= LIMIT, "more restarts than allowed"
            last = now


@contextlib.asynccontextmanager
async def told(steps: Sequence[Step]) -> AsyncIterator[Story]:
    """A story as it stands after its steps."""
    story = Story()
    body = dljob(faultTolerance={"maxClusterRestarts": LIMIT, "leaseSeconds": 5})
    story.truth.fake.put("dljobs", {**body, "metadata": {"name": "hello", "uid": UID}})
    try:
        await story.begin()
        await story.begin()
        for step in steps:
            await story.do(step)
        yield story
    finally:
        await story.close()


async def to_the_end(steps: Sequence[Step]) -> None:
    """A story, its end, and the rest after it."""
    async with told(steps) as story:
        await story.calm()
        status = story.truth.status
        assert status["phase"] == "Succeeded" or status["reason"] == "ClusterRestartsExhausted", status
        fake = story.truth.fake
        for eyes in story.eyes:
            await eyes.relist()
            await eyes.work()
        writes = len(fake.writes)
        for seconds in (0.0, 20.0, 4000.0):
            story.truth.now += seconds
            for eyes in story.eyes:
                await eyes.relist()
                for _ in range(3):
                    await eyes.work()
        assert len(fake.writes) == writes, f"writes at rest: {fake.writes[writes:]}"
        fake.take("dljobs", "hello")
        for eyes in story.eyes:
            await eyes.work()  # of what they have not been told they may still believe in
            await eyes.relist()
            await eyes.work()
        assert story.truth.clusters() == []


who = st.integers(0, 1)
STEPS = st.one_of(
    st.tuples(st.just("pass"), who),
    st.tuples(st.just("pass"), who),
    st.tuples(
        st.just("tell"),
        who,
        st.sampled_from(KINDS),
        st.integers(1, 8),
        st.integers(0, 255),
        st.sampled_from([False, False, True]),
    ),
    st.tuples(st.just("tell"), who, st.sampled_from(KINDS), st.just(99), st.just(0), st.just(False)),
    st.tuples(st.just("relist"), who),
    st.tuples(st.just("restart"), who, st.integers(0, 12)),
    st.tuples(st.just("later"), st.sampled_from([1.0, 20.0, 400.0])),
    st.tuples(st.just("nature"), st.sampled_from(sorted(NATURE))),
)

BACK_BEFORE_THE_FIRST = (
    *[("pass", 0)] * 3,
    ("nature", "cluster deleted"),
    *[("tell", 0, plural, 99, 0, False) for plural in KINDS],
    *[("pass", 0)] * 4,
    ("restart", 1, 99),
    *[("pass", 1)] * 3,
)
"""The operator that begins believes that nothing was made yet, and the second attempt's RayCluster is there."""

ENDED_BY_ANOTHER = (
    ("nature", "cluster deleted"),
    ("tell", 1, "dljobs", 7, 231, True),
    ("tell", 1, "pods", 99, 0, False),
    ("restart", 1, 4),
    ("nature", "runs"),
    ("nature", "runs"),
)
"""The operator that did not save the logs looked for them before the other one did."""


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(STEPS, max_size=50))
@example(BACK_BEFORE_THE_FIRST)
def test_stale_caches_break_no_law_and_lead_to_the_same_end(steps: Sequence[Step]) -> None:
    asyncio.run(to_the_end(steps))


def test_an_operator_that_begins_in_the_past_makes_no_cluster_of_an_attempt_that_is_over() -> None:
    asyncio.run(to_the_end(BACK_BEFORE_THE_FIRST))


def test_a_stale_operator_keeps_the_note_on_logs_saved_by_another() -> None:
    asyncio.run(to_the_end(ENDED_BY_ANOTHER))
