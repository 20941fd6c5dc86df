"""The Lease at work, on an API server in memory and a clock that the tests turn."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import pytest
from fake_cluster import FakeCluster, client_of

from dljob.kube.api import Kube
from dljob.reconcile.leadership.lease import Candidate, LeaseTiming
from dljob_operator.leader import lease as lease_module
from dljob_operator.leader.lease import Election, NotLeadingError

FAST = LeaseTiming(duration=1, retry=0.2)
"""A Lease lasts whole seconds."""
LEASE = "/apis/coordination.k8s.io/v1/namespaces/default/leases/dljob"


@dataclass
class Replica:
    """One candidate, and whether it acts."""

    name: str
    kube: Kube
    pace: LeaseTiming = FAST
    acts: bool = False
    terms: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.election = Election(self.kube, Candidate(self.name, "dljob", "default", self.pace))

    async def work(self) -> None:
        self.acts, self.terms = True, self.terms + 1
        self.news.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.acts = False
            self.news.set()

    def start(self) -> Replica:
        self.task = asyncio.create_task(self.election.run(self.work))
        return self

    async def until(self, *, acts: bool) -> None:
        async with asyncio.timeout(10):
            while self.acts != acts:
                self.news.clear()
                await self.news.wait()

    async def end(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class Place:
    """An API server with one Lease, and candidates for it."""

    def __init__(self) -> None:
        self.fake = FakeCluster()
        self.replicas: list[Replica] = []
        self.server: Any = None

    def replica(self, name: str, pace: LeaseTiming = FAST) -> Replica:
        made = Replica(name, client_of(self.server), pace)
        self.replicas.append(made)
        return made.start()

    @property
    def holder(self) -> str:
        return self.fake.one("leases", "dljob")["spec"]["holderIdentity"]

    def hold(self, holder: str) -> None:
        """Write the Lease by hand."""
        old = self.fake.one("leases", "dljob")
        self.fake.put("leases", {**old, "spec": {**old["spec"], "holderIdentity": holder}})


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    made = Place()
    made.server = await made.fake.serve()
    yield made
    for replica in made.replicas:
        await replica.end()
        await replica.kube.close()
    await made.server.close()


async def test_a_standby_asks_for_nothing_while_the_holder_renews_the_lease(place: Place) -> None:
    a = place.replica("a", LeaseTiming(duration=9, retry=0.2))
    await a.until(acts=True)
    b = place.replica("b", LeaseTiming(duration=9, retry=0.2))
    async with asyncio.timeout(10):
        while not b.election._watch.live:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    place.fake.calls.clear()
    async with asyncio.timeout(10):
        while place.fake.calls.count(("PUT", LEASE)) < 10:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert set(place.fake.calls) == {("PUT", LEASE)}
    assert (b.election.holder, b.terms) == ("a", 0)


@pytest.mark.parametrize("how", ["it is not served", "it ends", "it is silent"])
async def test_a_standby_without_a_watch_finds_a_lease_that_is_not_renewed(
    place: Place, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    a, b = place.replica("a"), Replica("b", client_of(place.server))
    await a.until(acts=True)
    changes = b.kube.changes

    async def first_only(*args: Any, **options: Any) -> AsyncIterator[Any]:
        async with aclosing(changes(*args, **options)) as stream:
            async for change in stream:
                yield change
                if how == "it is silent":
                    await asyncio.Event().wait()
                return

    if how == "it is not served":
        place.fake.fail("GET", "/leases$", 403, times=10**6)
    else:
        monkeypatch.setattr(b.kube, "changes", first_only)
    place.replicas.append(b.start())
    async with asyncio.timeout(10):
        while b.election.holder != "a":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await asyncio.sleep(2 * FAST.duration)
    assert not b.terms, "the holder renews, whatever the watch says"
    await a.end()
    await b.until(acts=True)


async def test_a_lease_is_released_though_the_answer_to_its_renewal_was_not_awaited(place: Place) -> None:
    lasts = LeaseTiming(duration=60, retry=0.2)
    a = place.replica("a", lasts)
    await a.until(acts=True)
    await a.end()
    place.hold("a")  # as the renewal has it, whose answer did not come in time: a newer version
    await a.election.release()
    assert not place.holder


async def test_a_lease_that_another_took_meanwhile_is_not_released(place: Place) -> None:
    a = place.replica("a")
    await a.until(acts=True)
    await a.end()
    place.hold("b")
    await a.election.release()
    assert place.holder == "b"


async def test_a_lease_that_was_deleted_meanwhile_is_not_made_again_to_release_it(place: Place) -> None:
    a = place.replica("a")
    await a.until(acts=True)
    await a.end()
    place.fake.take("leases", "dljob")
    await a.election.release()
    assert not place.fake.names("leases")


async def test_a_lease_that_cannot_be_released_is_told_and_left_to_expire(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    a = place.replica("a")
    await a.until(acts=True)
    await a.end()
    place.fake.fail("PUT", "leases", 503, times=10**6)
    await a.election.release()
    assert "could not be released and will expire" in caplog.text
    assert place.holder == "a"


async def test_a_holder_that_cannot_renew_stops_in_time_and_leads_again_when_it_can(place: Place) -> None:
    a = place.replica("a")
    await a.until(acts=True)
    place.fake.fail("*", "leases", 503, times=10**6)
    await a.until(acts=False)
    with pytest.raises(NotLeadingError):
        a.election.fence("DELETE")
    assert a.task is not None
    assert not a.task.done(), "an API server that is away ends no process"
    place.fake.faults.clear()
    await a.until(acts=True)
    assert a.terms == 2
    assert place.fake.one("leases", "dljob")["spec"]["leaseTransitions"] == 0


async def test_an_api_server_that_does_not_answer_is_not_waited_for_longer_than_the_lease_lasts(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = place.replica("a")
    await a.until(acts=True)

    async def never(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(a.kube, "replace", never)
    await a.until(acts=False)


async def test_one_lost_answer_costs_no_leadership(place: Place) -> None:
    a = place.replica("a", LeaseTiming(duration=60, retry=0.2))  # so that a busy machine loses it nothing either
    await a.until(acts=True)
    place.fake.fail("PUT", "leases", 500, times=1, after=True)  # the next renewal has an old version then
    version = place.fake.version
    async with asyncio.timeout(10):
        while place.fake.version < version + 4:  # noqa: ASYNC110 - an API server tells nobody
            await asyncio.sleep(0.01)
    assert (a.acts, a.terms) == (True, 1)


async def test_a_lease_that_is_deleted_is_made_again(place: Place) -> None:
    a = place.replica("a")
    await a.until(acts=True)
    place.fake.take("leases", "dljob")
    async with asyncio.timeout(10):
        while not place.fake.names("leases"):  # noqa: ASYNC110 - an API server tells nobody
            await asyncio.sleep(0.01)
    await a.until(acts=True)
    assert place.holder == "a"


async def test_refused_renewals_do_not_become_a_storm(place: Place) -> None:
    a = place.replica("a")
    await a.until(acts=True)
    place.fake.fail("PUT", "leases", 409, times=10**6)
    place.fake.calls.clear()
    await asyncio.sleep(0.3)
    assert len(place.fake.calls) < 30


async def test_work_that_ends_or_fails_by_itself_is_told(place: Place) -> None:
    async def breaks() -> None:
        raise ZeroDivisionError

    async def ends() -> None: ...

    for work, error in ((breaks, ZeroDivisionError), (ends, RuntimeError)):
        election = Election(client_of(place.server), Candidate("a", "dljob", "default", FAST))
        with pytest.raises(error):
            await asyncio.wait_for(election.run(work), 10)
        await election.release()
        await election._kube.close()


async def test_work_that_fails_while_it_is_ended_is_told(place: Place) -> None:
    begun = asyncio.Event()

    async def breaks_at_the_end() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise ZeroDivisionError

    election = Election(client_of(place.server), Candidate("a", "dljob", "default", FAST))
    running = asyncio.create_task(election.run(breaks_at_the_end))
    await asyncio.wait_for(begun.wait(), 10)
    running.cancel()
    with pytest.raises(ZeroDivisionError):
        await running
    await election._kube.close()


async def test_work_that_does_not_end_takes_the_process_with_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "END_SECONDS", 0.05)
    over = asyncio.Event()

    async def stubborn() -> None:
        while not over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await over.wait()

    election = Election(client_of(place.server), Candidate("a", "dljob", "default", FAST))
    running = asyncio.create_task(election.run(stubborn))
    async with asyncio.timeout(10):
        while not place.fake.names("leases"):  # noqa: ASYNC110 - an API server tells nobody
            await asyncio.sleep(0.01)
    place.hold("thief")
    with pytest.raises(RuntimeError, match="did not end within"):
        await asyncio.wait_for(running, 10)
    over.set()
    await election._kube.close()


def test_each_process_has_an_identity_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAME", "dljob-0")
    first, second = lease_module.own_identity(), lease_module.own_identity()
    assert first.startswith("dljob-0_")
    assert first != second
