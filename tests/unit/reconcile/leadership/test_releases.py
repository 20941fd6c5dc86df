"""Which of several releases acts: what Leases tell, who is gone, who stands by for whom, and beginning at once."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from dljob.reconcile.leadership.lease import Candidate
from dljob.reconcile.leadership.releases import (
    Installation,
    LeaseObservations,
    acts_too,
    installed_in,
    release_of,
    stands_by_for,
)
from dljob.reconcile.state.names import MANAGER

A = Installation("a", "dljob", "2026-01-01T00:00:00Z", "0.1.0", acts=True)
B = Installation("b", "other", "2026-02-01T00:00:00Z", "0.2.0")


def lease(release: Installation, *, holder: str = "p", **meta: Any) -> dict[str, Any]:
    notes = {**release.notes(), "dljob.io/acts": "true" if release.acts else "false"}
    told = {"namespace": release.namespace, "name": release.name, "creationTimestamp": release.created}
    return {
        "metadata": {**told, "annotations": notes, **meta},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 8, "renewTime": "1"},
    }


@pytest.mark.parametrize("release", [A, B, replace(B, serves=("x", "y")), replace(B, key="k2")])
def test_a_lease_tells_of_its_release(release: Installation) -> None:
    assert release_of(lease(release)) == release


def test_a_lease_without_annotations_is_recognized_by_its_field_manager() -> None:
    old = lease(A, annotations={}, managedFields=[{"manager": MANAGER, "operation": "Update"}])
    assert release_of(old) == replace(A, version="")
    assert "does not tell what it serves" in str(release_of(old))
    kubelet = lease(A, annotations={}, managedFields=[{"manager": "kubelet"}])
    assert release_of(kubelet) is None


def test_foreign_text_in_a_lease_cannot_forge_a_log_line() -> None:
    hostile = release_of(lease(replace(A, version="1\nERROR all is lost" + "x" * 100)))
    assert hostile is not None
    assert hostile.version.startswith("1?ERROR")
    assert len(hostile.version) <= 63


@pytest.mark.parametrize(
    ("ours", "theirs", "both"),
    [
        ((), (), "the DLJobs of all namespaces"),
        (("x",), (), "the DLJobs of x"),
        ((), ("x", "y"), "the DLJobs of x, y"),
        (("x", "y"), ("y", "z"), "the DLJobs of y"),
        (("x",), ("y",), ""),
    ],
)
def test_a_release_that_acts_on_a_shared_namespace_is_stood_by_for(
    ours: tuple[str, ...], theirs: tuple[str, ...], both: str
) -> None:
    found = stands_by_for(replace(B, serves=ours), [replace(A, serves=theirs)])
    if not both:
        assert found is None
        return
    assert found is not None
    assert found[1] == f"the release dljob in namespace a (version 0.1.0) acts on {both}"


def test_a_release_that_acts_goes_on_though_an_older_one_comes() -> None:
    assert stands_by_for(replace(A, acts=False), [replace(B, acts=True)]) is not None
    assert acts_too(replace(B, acts=True), [replace(A, acts=False)]) is None


def test_the_oldest_release_acts_where_none_does() -> None:
    idle = replace(A, acts=False)
    found = stands_by_for(B, [idle])
    assert found is not None
    assert "is older and about to act on" in found[1]
    assert stands_by_for(idle, [B]) is None
    same = replace(B, created=A.created)
    assert stands_by_for(same, [idle]) is not None, "of one second: by namespace and name"


def test_a_release_that_itself_stands_by_is_not_waited_for() -> None:
    acts, between, last = (
        replace(A, serves=("x",)),
        replace(A, name="between", serves=("x", "y"), acts=False),
        replace(B, serves=("y",)),
    )
    assert stands_by_for(last, [acts, between]) is None
    assert stands_by_for(last, [between]) is not None


@pytest.mark.parametrize(
    ("first", "second", "acts"),
    [
        ({"key": "k1"}, {"key": "k2"}, False),
        ({"key": "k1"}, {"key": "k1"}, True),
        ({"key": ""}, {"key": "k2"}, True),
        ({"key": "k1", "acts": False}, {"key": "k2"}, True),
        ({"key": "k1", "serves": ("x",)}, {"key": "k2", "serves": ("y",)}, True),
        ({"key": "k1", "serves": ("x",)}, {"key": "k2", "serves": ("x", "y")}, False),
    ],
)
def test_a_release_with_another_token_key_does_not_take_over_from_one_that_does_not_run(
    first: dict[str, Any], second: dict[str, Any], acts: bool
) -> None:
    found = stands_by_for(replace(B, **second), [], [replace(A, **first)])
    if acts:
        assert found is None
        return
    assert found is not None
    assert "does not run, and acted on the DLJobs of" in found[1]
    assert "`kubectl delete lease dljob -n a`" in found[1]


def test_a_release_with_another_token_key_is_told_so_while_the_first_acts() -> None:
    found = stands_by_for(replace(B, key="k2"), [replace(A, key="k1")])
    assert found is not None
    assert found[1].endswith(
        "with another token key, so this one never takes them over: give both one tokenKey.existingSecret"
    )


def test_a_release_that_acts_beside_another_is_reported() -> None:
    found = acts_too(replace(B, serves=("x",), acts=True), [replace(A, serves=("y",)), A])
    assert found is not None
    assert found[1] == "the release dljob in namespace a (version 0.1.0) acts on the DLJobs of x too"


def test_a_release_is_gone_when_its_lease_has_not_changed_for_long() -> None:
    known = LeaseObservations(4.0).observe([lease(A), lease(A, namespace="c", annotations={})], 100.0)
    assert known.alive(111.9) == (A,)
    assert known.alive(112.0) == ()
    assert (known.silent(111.9), known.silent(112.0)) == ((), (A,))
    unchanged = known.observe([lease(A, labels={"l": "1"})], 105.0)
    assert unchanged.alive(112.0) == ()
    renewed = lease(A)
    renewed["spec"]["renewTime"] = "2"
    assert known.observe([renewed], 105.0).alive(116.9) == (A,)


def test_a_lease_that_is_deleted_lasts_as_long_as_if_it_were_there() -> None:
    known = LeaseObservations(4.0).observe([lease(A)], 100.0).observe([], 105.0)
    assert known.alive(111.0) == (A,)
    assert known.observe([], 113.0).leases == {}


def test_a_lease_that_is_given_up_is_left_to_the_replicas_of_its_release() -> None:
    given_up = lease(A, holder="")
    given_up["spec"]["leaseDurationSeconds"] = 1
    known = LeaseObservations(4.0).observe([lease(A)], 100.0).observe([given_up], 101.0)
    assert known.alive(105.9) == (A,)
    assert known.alive(106.0) == ()


def test_a_lease_that_claims_to_last_for_years_is_gone_when_nobody_renews_it() -> None:
    forged = lease(A)
    forged["spec"]["leaseDurationSeconds"] = 2**31 - 1
    known = LeaseObservations(4.0).observe([forged], 100.0)
    assert known.alive(163.9) == (A,)
    assert known.observe([forged], 150.0).alive(164.0) == ()


def test_releases_are_ordered_by_age() -> None:
    assert LeaseObservations(4.0).observe([lease(B), lease(A)], 0.0).alive(1.0) == (A, B)


def test_a_candidate_tells_of_its_release_in_each_write() -> None:
    made = Candidate("p", "other", "b", notes=B.notes())
    first = made.next(0.0, 0.0).write
    assert first is not None
    assert first["metadata"]["labels"] == {"app.kubernetes.io/name": "dljob-operator"}
    assert first["metadata"]["annotations"] == B.notes()
    assert B.notes() == {"dljob.io/operator-version": "0.2.0", "dljob.io/serves": "*", "dljob.io/token-key-id": ""}
    held = made.wrote(first, 0.0)
    assert not held.acts
    acting = held.wrote(held.claim(0.0, stands_by=""), 1.0)
    assert acting.acts
    again = acting.next(2.0, 0.0).write
    assert again is not None
    assert again["metadata"]["annotations"]["dljob.io/acts"] == "true", "a renewal keeps it, and so does a replica"
    waits = acting.wrote(acting.claim(0.0, stands_by="the release x"), 3.0)
    assert (waits.acts, waits.stands_by) == (False, "the release x")
    assert waits.wrote(waits.claim(0.0, stands_by=""), 4.0).stands_by == ""


def test_only_namespaces_with_an_installation_for_the_whole_cluster_are_believed() -> None:
    def binding(chart: str, *namespaces: str) -> dict[str, Any]:
        subjects: list[dict[str, str]] = [{"kind": "ServiceAccount", "namespace": name} for name in namespaces]
        return {
            "metadata": {"labels": {"helm.sh/chart": chart}},
            "subjects": [*subjects, {"kind": "User", "name": "u"}],
        }

    found = [binding("dljob-0.1.0", "a"), binding("dljob-0.2.0", "b", "c"), binding("other-1.0", "tenant")]
    assert installed_in([*found, {"metadata": {}}]) == {"a", "b", "c"}


# -- beginning at once


class World:
    """Leases of releases, and who acts."""

    def __init__(self, releases: list[Installation]) -> None:
        self.leases = {release.name: release for release in releases}
        self.there = dict.fromkeys(self.leases, False)
        self.acting: set[str] = set()
        self.lives = {name: self.life(name) for name in self.leases}

    def others(self, name: str) -> list[Installation]:
        found = [one for key, one in self.leases.items() if key != name and self.there[key]]
        return sorted(found, key=lambda one: one.age)

    def life(self, name: str) -> Generator[str]:
        """As `Election._observe_others`; whatever happens between two calls of the API server happens at a yield."""
        self.there[name] = True
        while True:
            yield "rests"
            ours = self.leases[name]
            why = stands_by_for(ours, self.others(name))
            if not why and not ours.acts:
                yield "writes"
                self.leases[name] = replace(ours, acts=True)
                yield "looks again"
                why = stands_by_for(self.leases[name], self.others(name))
            if why:
                yield "writes"
                self.leases[name] = replace(ours, acts=False)
            else:
                self.acting.add(name)
                return

    def step(self, name: str) -> str:
        return next(self.lives[name], "rests")

    def look(self, name: str) -> None:
        """One whole look around: it takes milliseconds, and seconds lie between two."""
        while self.step(name) != "rests":
            pass

    def go(self, name: str) -> None:
        """It ends, and is begun anew with the Lease that it had."""
        self.acting.discard(name)
        self.there[name] = False
        self.lives[name] = self.life(name)


SERVED = st.sampled_from([(), ("x",), ("y",), ("x", "y")])


@given(
    st.lists(SERVED, min_size=2, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 15)), max_size=60),
)
def test_two_releases_that_begin_at_once_never_act_on_one_namespace_and_each_namespace_is_served(
    serves: list[tuple[str, ...]], moves: list[tuple[int, int]]
) -> None:
    names = "abc"[: len(serves)]
    world = World([Installation("n", name, name, "1", where) for name, where in zip(names, serves, strict=True)])
    for which, what in moves:
        name = names[which % len(names)]
        world.go(name) if what == 0 else world.step(name)
        _nobody_beside_another(world)
    for _ in range(4 * len(names)):
        for name in names:
            world.look(name)
        _nobody_beside_another(world)
    event(f"{len(world.acting)} of {len(names)} act")
    idle = [one for name, one in world.leases.items() if name not in world.acting]
    for one in idle:
        assert any(world.leases[name].overlaps(one) for name in world.acting), f"{one} stands by for nobody"


def _nobody_beside_another(world: World) -> None:
    acting = [world.leases[name] for name in sorted(world.acting)]
    for index, one in enumerate(acting):
        assert not any(one.overlaps(other) for other in acting[index + 1 :]), world.acting
