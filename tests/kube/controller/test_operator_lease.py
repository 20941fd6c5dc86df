"""Two operators on a real API server: one acts, and the other when the first is killed, ended, stopped, or robbed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

import pytest
from cluster.handle import Cluster
from operator_kit import Operator, found, job, until

DURATION = 3


@pytest.fixture
def pair(plane: Cluster, namespace: str, tmp_path: Path) -> Iterator[tuple[Operator, Operator]]:
    """The one that acts, and the one that waits."""
    elect = ["--leader-elect", f"--leader-elect-lease-duration={DURATION}s", "--leader-elect-retry-period=1s"]
    flags = [f"--namespace={namespace}", *elect, f"--leader-elect-resource-namespace={namespace}"]
    first, second = (Operator(plane, tmp_path / name, flags) for name in ("first", "second"))
    try:
        first.start()
        until(lambda: acts(first), "the first acts")
        second.start()
        assert not acts(second)
        yield first, second
    finally:
        for operator in (first, second):
            with contextlib.suppress(ProcessLookupError):
                if operator.process:
                    operator.process.send_signal(signal.SIGCONT)
            operator.stop()


def acts(operator: Operator) -> bool:
    return operator.health().get("role") == "leader"


def lease(plane: Cluster, namespace: str) -> dict[str, Any]:
    return plane.get("lease", "dljob-operator", "-n", namespace)["spec"]


def apply(plane: Cluster, namespace: str, *names: str) -> None:
    plane.apply(*({**job(name), "metadata": {"name": name, "namespace": namespace}} for name in names))


def served(plane: Cluster, namespace: str, name: str) -> str:
    """Wait until a job has its RayCluster, and return its name."""

    def made() -> str:
        return found(plane, "dljob", name, namespace).get("status", {}).get("rayCluster", {}).get("name", "")

    return until(made, f"{name} has a RayCluster")


def test_the_leader_acts_and_the_standby_only_reads(
    plane: Cluster, namespace: str, pair: tuple[Operator, Operator]
) -> None:
    leader, standby = pair
    apply(plane, namespace, "one")
    served(plane, namespace, "one")
    until(lambda: standby.health()["rayClusters"] == 1, "the standby has read it")
    assert standby.ready() == {"role": "standby"}
    assert standby.writes() == 0
    assert leader.metrics()["dljob_operator_leader"] == 1
    metrics = standby.metrics()
    assert metrics["dljob_operator_leader"] == 0
    assert not [name for name in metrics if name.startswith("dljob_status_phase{")], "one tells of a job, not two"


def goes_on(plane: Cluster, namespace: str, standby: Operator, cluster: str) -> None:
    """The standby acts: what was made stays, and what is new is served."""
    until(lambda: acts(standby), "the standby acts")
    apply(plane, namespace, "after")
    served(plane, namespace, "after")
    assert served(plane, namespace, "before") == cluster
    until(lambda: len(plane.get("rayclusters", "-n", namespace)["items"]) == 2, "each job has one RayCluster")


def test_the_standby_takes_over_when_the_leader_is_killed(
    plane: Cluster, namespace: str, pair: tuple[Operator, Operator]
) -> None:
    leader, standby = pair
    apply(plane, namespace, "before")
    cluster = served(plane, namespace, "before")
    leader.kill()
    goes_on(plane, namespace, standby, cluster)
    assert "has not renewed it" in standby.log.read_text()


def test_the_standby_takes_over_at_once_when_the_leader_ends_in_order(
    plane: Cluster, namespace: str, pair: tuple[Operator, Operator]
) -> None:
    leader, standby = pair
    apply(plane, namespace, "before")
    cluster = served(plane, namespace, "before")
    assert leader.stop() == 0
    assert "the Lease is released" in leader.log.read_text()
    goes_on(plane, namespace, standby, cluster)
    assert "nobody holds it" in standby.log.read_text()


def test_a_leader_that_slept_writes_nothing_when_it_wakes(
    plane: Cluster, namespace: str, pair: tuple[Operator, Operator]
) -> None:
    leader, standby = pair
    apply(plane, namespace, *(f"j{number}" for number in range(10)))
    assert leader.process is not None
    os.kill(leader.process.pid, signal.SIGSTOP)  # in the middle of its passes
    until(lambda: acts(standby), "the standby acts")
    for number in range(10):
        served(plane, namespace, f"j{number}")
    os.kill(leader.process.pid, signal.SIGCONT)
    until(lambda: leader.health().get("role") == "standby", "who woke stands by")
    assert "not leading any more" in leader.log.read_text()
    written = leader.writes()
    apply(plane, namespace, "later")
    served(plane, namespace, "later")
    assert leader.writes() == written
    assert acts(standby)
    made = plane.get("rayclusters", "-n", namespace)["items"]
    assert len(made) == 11
    assert len({owner["uid"] for one in made for owner in one["metadata"]["ownerReferences"]}) == 11


def test_a_lease_taken_by_hand_stops_the_leader(
    plane: Cluster, namespace: str, pair: tuple[Operator, Operator]
) -> None:
    leader, standby = pair
    # Wall clocks do not count: this one says that it was renewed in many years.
    theirs = {
        "holderIdentity": "somebody",
        "leaseDurationSeconds": DURATION,
        "renewTime": "2099-01-01T00:00:00.000000Z",
    }
    patch = json.dumps({"spec": theirs})
    plane.kubectl("patch", "lease", "dljob-operator", "-n", namespace, "--type=merge", "-p", patch)
    until(lambda: not acts(leader), "the leader stops")
    assert not (acts(leader) and acts(standby))
    until(lambda: acts(leader) or acts(standby), "one of them acts again")
    assert lease(plane, namespace)["leaseTransitions"] >= 1
    assert leader.health()
    assert standby.health()
    apply(plane, namespace, "after")
    served(plane, namespace, "after")


def test_a_second_release_stands_by_until_the_first_is_gone(plane: Cluster, namespace: str, tmp_path: Path) -> None:
    elect = ["--leader-elect", f"--leader-elect-lease-duration={DURATION}s", "--leader-elect-retry-period=1s"]
    elect += [f"--leader-elect-resource-namespace={namespace}", f"--namespace={namespace}"]
    one, two = (
        Operator(plane, tmp_path / name, [*elect, f"--leader-elect-resource-name={name}"]) for name in ("one", "two")
    )
    try:
        one.start()
        until(lambda: acts(one), "the first release acts")
        two.start()
        first = f"the release one in namespace {namespace} (version {version_of('dljob')})"
        words = f"{first} acts on the DLJobs of {namespace}"
        until(lambda: two.health().get("standsBy") == words, "the second says whose the jobs are")
        apply(plane, namespace, "before")
        cluster = served(plane, namespace, "before")
        until(lambda: two.health()["rayClusters"] == 1, "the second has read it")
        assert (two.ready(), two.writes()) == ({"role": "standby", "standsBy": words}, 0)
        told = plane.get("lease", "two", "-n", namespace)["metadata"]["annotations"]
        assert told["dljob.io/stands-by-for"] == words
        assert two.metrics()[f'dljob_operator_other_release{{effect="StandsBy",other="{namespace}/one"}}'] == 1
        one.kill()
        goes_on(plane, namespace, two, cluster)
        _one_of_before(plane, namespace)
        until(lambda: "of a version whose Lease" in two.health().get("actsToo", ""), "it tells of one that asks nobody")
        assert acts(two)
    finally:
        one.stop()
        two.stop()
        # Who begins on this plane within the minute would stand by for it.
        plane.kubectl("delete", "lease", "dljob-operator", "-n", namespace, "--ignore-not-found")


def _one_of_before(plane: Cluster, namespace: str) -> None:
    """The Lease of an operator that told nothing of itself there."""
    spec = {"holderIdentity": "somebody", "leaseDurationSeconds": 60}
    meta = {"name": "dljob-operator", "namespace": namespace}
    body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}
    plane.kubectl("create", "-f", "-", "--field-manager=dljob-operator", stdin=json.dumps(body))
