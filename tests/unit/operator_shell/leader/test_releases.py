"""Two releases of the operator on an API server in memory: one acts, the other stands by and says for whom."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fake_cluster import FakeCluster, client_of
from test_lease import FAST, Replica

from dljob.reconcile.leadership.lease import Candidate, LeaseTiming
from dljob.reconcile.leadership.releases import Installation
from dljob.reconcile.state.names import MANAGER
from dljob_operator.controller.metrics import Metrics
from dljob_operator.leader.lease import Election, clock
from dljob_operator.leader.releases import Releases

STEADY = LeaseTiming(duration=15, retry=0.2)
"""Does not lapse where this process waits for a CPU: all releases of a test share its one event loop."""


class One(Replica):
    """A replica of a release, in a namespace of its own."""

    def __init__(
        self, server: Any, space: str, version: str, serves: tuple[str, ...], *, renews: LeaseTiming, key: str
    ) -> None:
        self.space, self.version, self.serves, self.renews, self.key = space, version, serves, renews, key
        super().__init__(space, client_of(server))

    def __post_init__(self) -> None:
        self.metrics = Metrics(self.version)
        release = Installation(self.space, "dljob", version=self.version, serves=self.serves, key=self.key)
        self.others = Releases(self.kube, release, FAST, self.metrics.other_release, clock=clock)
        candidate = Candidate(f"{self.name}-{id(self)}", "dljob", self.space, self.renews, notes=release.notes())
        self.election = Election(self.kube, candidate, others=self.others)

    async def waits(self) -> None:
        """Wait until it has seen who holds the Lease."""
        async with asyncio.timeout(10):
            while not self.election.holder:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def idles(self) -> None:
        """Wait until it stands by."""
        async with asyncio.timeout(10):
            while not self.others.stands_by or self.others.stands_by != self.election._candidate.stands_by:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not self.acts


class Place:
    """An API server, and releases on it."""

    def __init__(self) -> None:
        self.fake = FakeCluster()
        self.ones: list[One] = []
        self.server: Any = None

    def binding(self, space: str, **labels: str) -> None:
        """What an administrator's installation for the whole cluster leaves."""
        told = {"app.kubernetes.io/component": "operator", "helm.sh/chart": "dljob-0.1.0", **labels}
        subjects = [{"kind": "ServiceAccount", "name": "dljob", "namespace": space}]
        self.fake.put("clusterrolebindings", {"metadata": {"name": space, "labels": told}, "subjects": subjects}, "")

    def release(
        self,
        space: str,
        version: str = "0.1.0",
        serves: tuple[str, ...] = (),
        renews: LeaseTiming = STEADY,
        key: str = "k1",
    ) -> One:
        if not serves:
            self.binding(space)
        made = One(self.server, space, version, serves, renews=renews, key=key)
        self.ones.append(made)
        made.start()
        return made

    def notes(self, space: str) -> dict[str, str]:
        return self.fake.one("leases", "dljob", space)["metadata"]["annotations"]

    def lease(self, space: str, name: str = "dljob", *, renewed: str = "", **meta: Any) -> None:
        """The Lease of somebody who renewed it at this time, and no more."""
        spec = {"holderIdentity": "p", "leaseDurationSeconds": 60, "renewTime": renewed}
        self.fake.put("leases", {"metadata": {"name": name, **meta}, "spec": spec}, space)


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    made = Place()
    made.server = await made.fake.serve()
    yield made
    for one in made.ones:
        await one.end()
        await one.kube.close()
    await made.server.close()


@pytest.mark.parametrize("how", ["ended", "killed"])
async def test_a_release_with_another_token_key_waits_until_the_first_is_uninstalled(place: Place, how: str) -> None:
    first = place.release("a", renews=FAST)
    await first.until(acts=True)
    second = place.release("b", key="k2")
    await second.idles()
    assert "with another token key, so this one never takes them over" in second.others.stands_by
    await first.end()
    if how == "ended":
        await first.election.release()
    async with asyncio.timeout(10):
        while "does not run" not in second.others.stands_by:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await asyncio.sleep(FAST.duration)
    assert not second.terms
    place.fake.take("clusterrolebindings", "a", "")  # its Lease is left, as by `helm uninstall`
    await second.until(acts=True)


async def test_a_replica_of_the_release_that_acts_comes_before_another_release(place: Place) -> None:
    first = place.release("a")
    await first.until(acts=True)
    replica, other = place.release("a"), place.release("b")
    await other.idles()
    await first.end()
    await first.election.release()
    await replica.until(acts=True)
    assert not other.terms


async def test_a_release_that_comes_back_stands_by_for_the_one_that_acts(place: Place) -> None:
    first = place.release("a")
    await first.until(acts=True)
    second = place.release("b")
    await second.idles()
    await first.end()
    await first.election.release()
    await second.until(acts=True)
    again = place.release("a")
    await again.idles()
    assert place.notes("a")["dljob.io/acts"] == "false", "what its Lease said before is taken back"
    await second.until(acts=True)  # a Lease of a second lapses for a moment where this process waits for a CPU
    assert not again.acts


async def test_of_two_releases_that_begin_at_once_one_acts(place: Place) -> None:
    both = [place.release("a"), place.release("b")]
    async with asyncio.timeout(10):
        while not any(one.acts for one in both) or not any(one.others.stands_by for one in both):
            await asyncio.sleep(0.01)
            assert not all(one.acts for one in both)


FORGED = {"dljob.io/serves": "*", "dljob.io/acts": "true"}


@pytest.mark.parametrize("serves", [(), ("tenant", "team")])
async def test_a_lease_that_a_tenant_wrote_and_renews_does_not_stop_a_failover(
    place: Place, serves: tuple[str, ...]
) -> None:
    place.binding("tenant", **{"helm.sh/chart": "another-operator-1.0"})
    first = place.release("a", serves=serves)
    await first.until(acts=True)
    place.lease("tenant", annotations=FORGED, renewed="1")
    replica = place.release("a", serves=serves)
    await replica.waits()
    await first.end()
    await first.election.release()
    place.lease("tenant", annotations=FORGED, renewed="2")
    await replica.until(acts=True)
    assert not replica.others.stands_by


async def test_thousands_of_leases_that_tenants_wrote_are_not_all_read(place: Place) -> None:
    place.fake.page = 2
    for number in range(100):
        place.lease("tenant", f"l{number}", annotations=FORGED, labels={"app.kubernetes.io/name": MANAGER})
    began = clock()
    one = place.release("a")
    await one.until(acts=True)
    assert not _looks(place), "what tenants wrote is not read before it acts"
    async with asyncio.timeout(10):
        while not one.others.acts_too:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
    assert 1 <= _looks(place) <= 1 + (clock() - began) / FAST.duration, "a page for each look, to report a conflict"


async def test_a_look_at_what_tenants_wrote_that_fails_does_not_stop_who_acts(place: Place) -> None:
    place.fake.fail("GET", "/v1/leases$", 503, times=10**6)
    one = place.release("a", renews=LeaseTiming())  # A busy machine answers later than a fast renewal waits.
    await one.until(acts=True)
    async with asyncio.timeout(10):
        while _looks(place) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (one.acts, one.terms) == (True, 1)


def _looks(place: Place) -> int:
    """How many pages of the Leases of all namespaces were read."""
    return sum(path.endswith("/v1/leases") for _, path in place.fake.calls)


async def test_releases_of_disjoint_namespaces_both_act(place: Place) -> None:
    a, b = place.release("a", serves=("x",)), place.release("b", serves=("y",))
    await a.until(acts=True)
    await b.until(acts=True)

    def asked() -> set[str]:
        return {path for method, path in place.fake.calls if method == "GET" and path.endswith("/leases")}

    async with asyncio.timeout(10):
        while len(asked()) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert asked() == {f"/apis/coordination.k8s.io/v1/namespaces/{name}/leases" for name in "abxy"}


async def test_a_release_without_annotations_is_stood_by_for(place: Place) -> None:
    place.lease("tenant", "n1", managedFields=[{"manager": MANAGER}])
    place.binding("old")
    place.lease("old", "their-own", managedFields=[{"manager": MANAGER}])
    one = place.release("b")
    await one.idles()
    assert "the release their-own in namespace old (of a version whose Lease does not tell" in one.others.stands_by
    place.fake.take("leases", "their-own", "old")
    assert not one.acts


async def test_a_release_that_may_not_list_leases_acts_and_warns_once(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    place.fake.fail("GET", "/(leases|clusterrolebindings)$", 403, times=10**6, message="it is forbidden")
    one = place.release("b")
    await one.until(acts=True)
    looked = len(place.fake.calls)
    async with asyncio.timeout(10):
        while sum(path.endswith("/v1/leases") for _, path in place.fake.calls[looked:]) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert caplog.text.count("other releases of the operator cannot be seen") == 1


async def test_nothing_acts_before_the_other_releases_have_been_looked_for(place: Place) -> None:
    place.fake.fail("GET", "/leases$", 503, times=3)
    one = place.release("b")
    await one.until(acts=True)
    assert [fault.times for fault in place.fake.faults] == [0]
