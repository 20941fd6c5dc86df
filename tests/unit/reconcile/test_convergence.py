"""Whatever happens and wherever the operator dies, the same end: nothing twice, nothing left, and then rest."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reconcile_kit import CrashError, World, dljob

from dljob.raycluster.pods import SPEC_KEY
from dljob.reconcile.state import names
from dljob.reconcile.state.steps import ENDINGS

KEPT = {"gcsFaultTolerance": {"backend": "RocksDB", "claimName": "gcs"}}
Happening = tuple[Callable[[World], bool], Callable[[World], object]]


def _anew(world: World) -> object:
    return world.head_ready(f"pod-{len(world.log)}-{world.session}")


def _suspend(world: World, *, to: bool) -> None:
    world.cluster["spec"]["suspend"] = to


def _order_restart(world: World) -> None:
    assert world.job is not None
    world.job["metadata"]["annotations"] |= {names.RESTART: str(world.now)}


NATURE: dict[str, Happening] = {
    "head ready": (lambda w: bool(w.clusters) and not w.has_head, _anew),
    "workers ready": (lambda w: w.has_head, lambda w: w.workers_ready()),
    "running": (lambda w: w.lives, lambda w: w.master("Running")),
    "restarted within": (lambda w: w.lives, lambda w: w.wear()),
    "recovering": (lambda w: w.lives, lambda w: w.master("Recovering")),
    "head pod replaced": (lambda w: w.has_head, lambda w: _anew(w.new_session())),
    "head container restarted": (lambda w: w.has_head, lambda w: w.new_session()),
    "head replaced, memory kept": (lambda w: w.keeps, lambda w: w.kept_head(f"pod-{len(w.log)}")),
    "cluster deleted": (lambda w: bool(w.clusters), lambda w: w.delete_cluster()),
    "silent": (lambda w: w.watch is not None, lambda w: w.silent(70.0)),
    "launcher dies": (lambda w: w.lives, lambda w: w.launcher("FAILED", exit_code=137, message="killed")),
    "later": (lambda w: True, lambda w: w.later(45)),
    "restart ordered": (lambda w: True, _order_restart),
    "spec changed": (lambda w: True, lambda w: w.edit(runtimeEnv={"env_vars": {"AT": str(len(w.log))}})),
    "suspended": (lambda w: bool(w.clusters), lambda w: _suspend(w, to=True)),
    "resumed": (lambda w: bool(w.clusters), lambda w: _suspend(w, to=False)),
    "job suspended": (lambda w: True, lambda w: w.edit(suspend=True)),
    "job resumed": (lambda w: True, lambda w: w.edit(suspend=False)),
    "stopped to be suspended": (lambda w: w.lives and bool(w.commands), lambda w: w.master("Suspended")),
    "operator restarted": (lambda w: True, lambda w: w.restarted()),
}
"""What happens -> (when it can, how)."""
PASS = st.tuples(st.just("pass"), st.one_of(st.none(), st.integers(0, 5)))
STORY = st.lists(st.one_of(PASS, PASS, st.tuples(st.sampled_from(sorted(NATURE)), st.none())), max_size=60)


RUNS: dict[str, object] = {}
"""Digest of a spec -> its runtime environment."""


def one_pass(world: World, fuse: int | None) -> None:
    world.fuse = fuse
    try:
        world.step()
    except CrashError:
        world.restarted()
    world.fuse = None


def lawful(world: World) -> None:
    """What holds at every moment."""
    assert len(world.clusters) <= 1, "two RayClusters at a time"
    assert len({id_ for id_, _ in world.submissions}) == len(world.submissions), "one submission twice"
    assert all(handed == told for handed, told in world.handed), "what was counted is handed on"
    for submit in world.posted.values():
        digest = submit.metadata[names.SPEC_HASH]
        assert RUNS.setdefault(digest, submit.runtime_env) == submit.runtime_env, "an environment of another spec"
        if not submit.packages and submit.cluster in world.clusters:  # what is over leaves no ConfigMap
            env = mounted(world, submit.cluster).get("runtimeEnv", {})
            assert env == submit.runtime_env, "a ConfigMap of another spec"


def mounted(world: World, cluster: str) -> dict[str, object]:
    """The spec that the pods of a RayCluster mount."""
    return json.loads(world.maps[names.spec_map(cluster)]["data"][SPEC_KEY])["spec"]


def grown(world: World, before: dict[str, int]) -> dict[str, int]:
    """Restarts only grow, and no more of them are told than there were."""
    now = {"process": 0, **world.status.get("restarts", {})}
    assert all(now.get(level, 0) >= count for level, count in before.items()), (before, now)
    assert now["process"] <= world.worn
    return now


EDITED_THEN_MOVED = [
    *(("pass", None), ("head ready", None), ("pass", None), ("pass", None), ("running", None), ("pass", None)),
    *(("spec changed", None), ("head replaced, memory kept", None), ("pass", None), ("pass", None), ("pass", None)),
]
"""The launcher is ordered again after an edit: it has the environment of what its attempt was made of."""
RUNS_THEN = [("pass", None), ("head ready", None), ("pass", None), ("pass", None)]


@pytest.mark.slow
@example([*RUNS_THEN, ("restarted within", None), ("cluster deleted", None)], "Succeeded", {})
@example(EDITED_THEN_MOVED, "Succeeded", KEPT)
@settings(max_examples=200)
@given(STORY, st.sampled_from(["Succeeded", "Failed", "Stopped"]), st.sampled_from([{}, KEPT]))
def test_any_interleaving_and_any_crash_come_to_the_same_end(
    story: list[tuple[str, int | None]], end: str, kept: dict[str, object]
):
    world = World(dljob(faultTolerance={"maxClusterRestarts": 2}, **kept))
    attempt, restarts = 1, {}
    for what, fuse in story:
        if what == "pass":
            one_pass(world, fuse)
        else:
            possible, happen = NATURE[what]
            if possible(world):
                happen(world)
        lawful(world)
        if "status" in world.job:
            assert world.status["attempt"] in (attempt, attempt + 1)
            attempt = world.status["attempt"]
            restarts = grown(world, restarts)
    if world.clusters:
        world.cluster["spec"].pop("suspend", None)
    world.edit(suspend=False)
    world.calm(end)
    lawful(world)
    if world.status.get("submissionId") in world.posted:
        assert world.posted[world.status["submissionId"]].metadata[names.SPEC_HASH] == world.status["attemptSpecHash"]
    over = {one["type"] for one in world.status["conditions"] if one["type"] in ENDINGS}
    assert over == {"Complete" if world.phase == "Succeeded" else world.phase}
    assert world.phase == end or world.status["reason"] == "ClusterRestartsExhausted"
    assert world.status.get("restarts", {}).get("cluster", 0) <= 2
    assert world.clusters == {}
    rest = world.look()
    assert (rest.actions, rest.events, rest.status, rest.watch) == ((), (), None, None)


@given(st.integers(0, 40))
def test_a_crash_after_any_call_of_a_whole_life_changes_nothing_of_the_end(fuse: int):
    straight, broken = World(), World()
    straight.calm()
    broken.fuse = fuse
    while True:
        try:
            broken.calm()
            break
        except CrashError:
            broken.restarted()
    kept = ("phase", "reason", "attempt", "submissionId", "restarts", "roles", "effective", "attemptSpecHash")
    assert {key: broken.status.get(key) for key in kept} == {key: straight.status.get(key) for key in kept}
    assert broken.submissions == straight.submissions
    assert broken.maps.keys() == straight.maps.keys()


LOST_HEAD: tuple[Callable[[World], object], ...] = (
    lambda w: None,
    lambda w: w.head_ready(),
    lambda w: w.workers_ready(),
    lambda w: w.wear(),
    lambda w: w.new_session(),
    lambda w: w.later(60),
    lambda w: w.head_ready("pod-2"),
    lambda w: w.workers_ready(),
    lambda w: w.wear(),
    lambda w: w.master("Succeeded"),
)
"""The life of a job that loses its head, with a restart before and after."""


def live(world: World, fuse: int | None) -> World:
    """A whole life; the operator dies once, after so many calls."""
    world.fuse = fuse
    for happen in LOST_HEAD:
        happen(world)
        try:
            world.settle()
        except CrashError:
            world.restarted()
            world.step()  # the head is asked again
            if world.masters & {world.status.get("submissionId")}:
                world.master("Succeeded" if happen is LOST_HEAD[-1] else "Running")
            world.settle()
    return world


def test_a_crash_after_any_call_around_a_lost_head_costs_no_count() -> None:
    straight = live(World(), None)
    assert straight.handed == [(0, 0), (1, 1)]
    for fuse in range(len(straight.log)):
        broken = live(World(), fuse)
        lawful(broken)
        assert (broken.submissions, broken.handed) == (straight.submissions, straight.handed), fuse
        assert broken.status["restarts"] == straight.status["restarts"], fuse
        assert broken.clusters == {}


def crashed(world: World, fuse: int) -> World:
    """A job whose head became ready, and whose operator died after so many calls."""
    world.settle().head_ready()
    world.fuse = fuse
    with suppress(CrashError):
        world.settle()
    world.fuse = None
    return world.restarted()


def begun(kind: str) -> World:
    """A job with a RayCluster of its own, or on one that is there."""
    if kind == "own":
        return World()
    world = World(dljob(rayClusterRef={"name": "shared"}))
    meta = {"name": "shared", "namespace": "team", "uid": "uid-shared", "generation": 3, "labels": {}}
    world.clusters["shared"] = {"metadata": meta, "spec": {"rayVersion": "2.60.1"}, "status": {}}
    world.pods["shared"] = []
    return world


@pytest.mark.parametrize("fuse", range(7))
@pytest.mark.parametrize("kind", ["own", "shared"])
def test_a_head_that_restarts_while_the_operator_is_dead_gets_no_id_twice(kind: str, fuse: int) -> None:
    """Whether the submission was made is not known to the next operator: the head that it was ordered for is."""
    world = crashed(begun(kind), fuse)
    ordered = "submissionId" in world.status
    world.new_session().calm()
    lawful(world)
    assert (world.phase, world.status["attempt"]) == ("Succeeded", 2 if ordered else 1)
    assert len({session for _, session in world.submissions}) == len(world.submissions)


@pytest.mark.parametrize("fuse", range(7))
@pytest.mark.parametrize("kind", ["own", "shared"])
def test_a_spec_that_changes_around_the_submission_runs_whole_and_is_told_of(kind: str, fuse: int) -> None:
    world = crashed(begun(kind), fuse)
    world.edit(runtimeEnv={"env_vars": {"A": "1"}}).settle()
    if not world.has_head:
        world.head_ready("pod-2").settle()
    runs = world.posted[world.status["submissionId"]]
    changed = runs.runtime_env == {"env_vars": {"A": "1"}}
    lawful(world)
    assert runs.metadata[names.SPEC_HASH] == world.status["attemptSpecHash"]
    assert world.cond("Accepted") == ("True", "SpecAccepted" if changed else "ChangeWaits")
    assert world.status.get("restarts", {}).get("cluster", 0) == 0
    assert world.calm().phase == "Succeeded"


@pytest.mark.parametrize("fuse", range(6))
@pytest.mark.parametrize("resumed", [False, True])
def test_a_spec_that_changes_while_its_children_are_made_runs_whole(fuse: int, resumed: bool) -> None:
    """Children of one attempt are of one spec, wherever the operator died among them."""
    world = World(dljob(suspend=True)).settle().edit(suspend=False) if resumed else World()
    world.fuse = fuse + resumed
    with suppress(CrashError):
        world.settle()
    world.restarted().edit(runtimeEnv={"env_vars": {"A": "1"}}).settle()
    assert mounted(world, world.name)["runtimeEnv"] == {"env_vars": {"A": "1"}}
    assert world.cluster["metadata"]["annotations"][names.SPEC_HASH] == world.status["attemptSpecHash"]
    assert world.calm().phase == "Succeeded"
    lawful(world)
    assert world.status.get("restarts", {}).get("cluster", 0) == 0


KEPT_HEAD: tuple[Callable[[World], object], ...] = (
    lambda w: None,
    lambda w: w.head_ready(),
    lambda w: w.workers_ready(),
    lambda w: w.wear(),
    lambda w: w.kept_head(),
    lambda w: w.master("Running"),
    lambda w: w.kept_head("pod-2"),
    lambda w: w.wear(),
    lambda w: w.master("Succeeded"),
)
"""The life of a job that outlives two heads, with a restart before and after."""


def outlived(fuse: int | None) -> World:
    """A whole life; the operator dies once, after so many calls."""
    world = World(dljob(**KEPT))
    world.fuse = fuse
    for happen in KEPT_HEAD:
        happen(world)
        try:
            world.settle()
        except CrashError:
            world.restarted()
            world.step()
            if world.lives:
                world.master("Succeeded" if happen is KEPT_HEAD[-1] else "Running")
            world.settle()
    return world


def test_a_crash_after_any_call_around_heads_whose_memory_is_kept_costs_nothing() -> None:
    straight = outlived(None)
    first = straight.submissions[0][0]
    assert [id_ for id_, _ in straight.submissions] == [first, f"{first}-r1", f"{first}-r2"]
    for fuse in range(len(straight.log)):
        broken = outlived(fuse)
        lawful(broken)
        assert broken.submissions == straight.submissions, fuse
        assert (broken.status["attempt"], broken.phase) == (1, "Succeeded"), fuse
        assert broken.handed == [(0, 0)], fuse


def test_a_head_that_is_another_one_at_each_call_costs_one_launcher_each_time() -> None:
    straight = World(dljob(**KEPT)).running()
    calls = len(straight.log)
    for at in range(calls):
        world = World(dljob(**KEPT))
        seen = 0
        while world.job is not None and len(world.log) < calls + 40:
            world.fuse = 1
            with suppress(CrashError):
                world.step()
            world.fuse = None
            if not world.has_head and world.clusters:
                world.head_ready()
            if world.lives:
                world.master("Running")
            if world.keeps and world.status.get("rayCluster", {}).get("sessionName") and len(world.log) > at + seen:
                seen += 3
                world.kept_head(f"pod-{seen}") if seen < 16 else None
            if seen >= 16 and world.lives:
                break
        world.calm()
        lawful(world)
        assert (world.status["attempt"], world.phase) == (1, "Succeeded"), at
        assert world.handed == [(0, 0)], at
