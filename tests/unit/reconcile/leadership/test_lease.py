"""Who acts: candidates with clocks of their own, a Lease that only who has seen it as it is may write."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from dljob.reconcile.leadership.lease import Candidate, LeaseTiming

WALL = 1_800_000_000.0


def candidate(identity: str = "a", **pace: Any) -> Candidate:
    return Candidate(identity, "dljob", "sys", LeaseTiming(**pace))


def lease(holder: str = "b", version: str = "1", duration: int | None = 8, **spec: Any) -> dict[str, Any]:
    said = {"holderIdentity": holder, "leaseDurationSeconds": duration, "leaseTransitions": 3, **spec}
    return {"metadata": {"name": "dljob", "resourceVersion": version}, "spec": said}


def test_a_lease_that_is_not_there_is_made() -> None:
    step = candidate().next(0.0, WALL)
    assert step.write == {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "dljob", "namespace": "sys"},
        "spec": {
            "holderIdentity": "a",
            "leaseDurationSeconds": 8,
            "acquireTime": "2027-01-15T08:00:00.000000Z",
            "renewTime": "2027-01-15T08:00:00.000000Z",
            "leaseTransitions": 0,
        },
    }


def test_a_lease_goes_with_the_operators_account() -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "name": "dljob", "uid": "u"}
    owned = Candidate("a", "dljob", "sys", owner=account)
    for step in (owned.next(0.0, WALL), owned.wrote(lease("a"), sent=0.0).next(2.0, WALL)):
        assert step.write is not None
        assert step.write["metadata"]["ownerReferences"] == [account]


def test_a_holder_acts_for_two_thirds_of_the_lease_after_its_last_renewal() -> None:
    held = candidate(duration=9).wrote(lease("a"), sent=100.0)
    assert held.leads(105.9)
    assert not held.leads(106.0)
    renewal = held.next(102.0, WALL)
    assert renewal.write is not None
    assert renewal.write["metadata"]["resourceVersion"] == "1"
    assert renewal.write["spec"]["leaseTransitions"] == 3
    assert renewal.wait == 2.6


def test_a_renewal_keeps_the_time_of_the_taking() -> None:
    step = candidate().wrote(lease("a", acquireTime="then"), sent=0.0).next(2.0, WALL)
    assert step.write is not None
    assert step.write["spec"]["acquireTime"] == "then"


@pytest.mark.parametrize("written", ["2001-01-01T00:00:00.000000Z", "2099-01-01T00:00:00.000000Z", "nonsense"])
def test_the_time_that_a_lease_tells_counts_for_nothing(written: str) -> None:
    """Machines' clocks differ: what counts is how long it has not changed, by the clock of who looks."""
    waits = candidate().saw(lease(renewTime=written), now=50.0)
    assert waits.next(51.0, WALL).wait == pytest.approx(7.0), "a change comes by itself; no looks in between"
    assert waits.next(57.9, WALL).write is None
    taken = waits.next(58.0, WALL)
    assert taken.write is not None
    assert taken.write["spec"]["leaseTransitions"] == 4
    assert taken.reason == "b has not renewed it"


def test_a_lease_that_changes_is_waited_for_anew() -> None:
    first = candidate().saw(lease(renewTime="1"), now=50.0)
    again = first.saw(lease(renewTime="1", version="2"), now=55.0)  # somebody labelled it
    assert again.next(58.0, WALL).write is not None
    renewed = first.saw(lease(renewTime="2"), now=55.0)
    assert renewed.next(58.0, WALL).write is None


@pytest.mark.parametrize(("told", "lasts"), [(30, 30.0), (None, 8.0), (0, 8.0)])
def test_a_lease_lasts_as_long_as_its_holder_says(told: int | None, lasts: float) -> None:
    waits = candidate().saw(lease(duration=told), now=0.0)
    assert waits.next(lasts - 0.1, WALL).write is None
    assert waits.next(lasts, WALL).write is not None


def test_a_lease_without_holder_is_taken_at_once() -> None:
    step = candidate().saw(lease(""), now=0.0).next(0.0, WALL)
    assert step.write is not None
    assert step.reason == "nobody holds it"


def test_a_candidate_that_sees_another_holder_does_not_lead_whatever_its_clock_says() -> None:
    held = candidate().wrote(lease("a"), sent=100.0)
    assert held.saw(lease("a", version="2"), now=101.0).leads(101.0)
    assert not held.saw(lease("thief"), now=101.0).leads(101.0)
    assert not held.saw(None, now=101.0).leads(101.0)


def test_only_the_holder_releases_the_lease() -> None:
    held = candidate().wrote(lease("a", version="7"), sent=100.0)
    given = held.release(WALL)
    assert given is not None
    assert (given["spec"]["holderIdentity"], given["spec"]["leaseDurationSeconds"]) == ("", 1)
    assert given["metadata"]["resourceVersion"] == "7"
    assert not held.released().leads(100.0)
    assert candidate().saw(lease("b"), now=0.0).release(WALL) is None
    assert candidate().release(WALL) is None


# -- several of them


@dataclass
class One:
    """A candidate whose clock began somewhere and goes a little wrong."""

    known: Candidate
    began: float
    speed: float

    def clock(self, now: float) -> float:
        return self.began + now * self.speed


@dataclass
class World:
    ones: list[One]
    lease: dict[str, Any] | None = None
    version: int = 0

    def look(self, one: One, now: float) -> None:
        one.known = one.known.saw(copy.deepcopy(self.lease), one.clock(now))

    def write(self, one: One, now: float, *, lost: bool) -> None:
        sent = one.clock(now)
        body = one.known.next(sent, now).write
        if body is None:
            return
        current = self.lease["metadata"]["resourceVersion"] if self.lease else None
        if body["metadata"].get("resourceVersion") != current:
            return
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self.lease = body
        if not lost:
            one.known = one.known.wrote(copy.deepcopy(body), sent)


MOVE = st.tuples(st.integers(0, 2), st.sampled_from(["taken", "taken", "lost"]), st.floats(0.0, 5.0))
"""Who comes to look and to write next, whether it hears of the answer, and after how many seconds."""
CLOCK = st.tuples(st.floats(0.0, 1e6), st.floats(0.9, 1.1))


@given(st.lists(CLOCK, min_size=3, max_size=3), st.lists(MOVE, min_size=10, max_size=60))
@settings(max_examples=300)
def test_two_candidates_never_lead_at_once_though_their_clocks_run_a_tenth_wrong(
    clocks: list[tuple[float, float]], moves: list[tuple[int, str, float]]
) -> None:
    """Not even when answers are lost, and whoever acts has slept: it asks its own clock right before."""
    world = World([One(candidate(name), *clock) for name, clock in zip("abc", clocks, strict=True)])
    now, holders = 0.0, set[str]()
    for which, answer, pause in moves:
        now += pause
        one = world.ones[which]
        if not one.known.leads(one.clock(now)):
            world.look(one, now)
        world.write(one, now, lost=answer == "lost")
        leading = [each.known.identity for each in world.ones if each.known.leads(each.clock(now))]
        assert len(leading) <= 1, leading
        holders.update(leading)
    event(f"{len(holders)} of them led")
