"""A status that somebody damaged, and a snapshot of another version: nothing breaks, and the job comes to its end."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reconcile_kit import World, copied, dljob, snapshot

from dljob.spec.status import TERMINAL

FAULT = {
    "level": "Role",
    "reason": "NodeLost",
    "target": "worker",
    "firstCause": "gone",
    "detectedAt": "2027-01-15T08:00:01Z",
}
KEPT = {("type",), ("id",), ("name",)}
"""Keys of lists that are maps: the API server insists on them."""


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place inside nested mappings and lists."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield (*path, key)
        yield from places(inner, (*path, key))


def without(value: Any, path: tuple[Any, ...]) -> None:
    """Remove what is there, if it still is."""
    for key in path[:-1]:
        try:
            value = value[key]
        except (KeyError, IndexError):
            return
    if isinstance(value, list):
        del value[path[-1] :][:1]
        if path[-1] < len(value):
            value.pop(path[-1])
    elif path[-1:] not in KEPT:
        value.pop(path[-1], None)


def lived(stage: str) -> World:
    world = World(dljob(faultTolerance={"maxClusterRestarts": 9}))
    world.settle()
    if stage == "made":
        return world
    world.running().master("Recovering", lastFault=FAULT, recentFaults=[FAULT]).settle()
    if stage == "stopping":
        world.job["metadata"]["annotations"]["dljob.io/stop"] = "now"
        world.settle()
    if stage == "second":
        world.new_session().settle().head_ready("pod-2").settle().workers_ready().master("Running").settle()
    return world


STAGES = {stage: lived(stage) for stage in ("made", "running", "stopping", "second")}
RUNNING = World().running().master()


@pytest.mark.parametrize("stage", STAGES)
@settings(max_examples=25)
@given(st.data())
def test_a_damaged_status_is_mended(stage: str, data: st.DataObject):
    world = copied(STAGES[stage])
    gone = data.draw(st.lists(st.sampled_from(sorted(places(world.status), key=str)), max_size=4))
    for path in gone:
        without(world.status, path)
    world.calm()
    assert world.phase in TERMINAL
    assert (
        world.clusters == {}
        or ("rayCluster",) in gone
        or ("attempt",) in gone
        or any(p[0] == "rayCluster" for p in gone)
    )
    for one in world.status["conditions"]:
        assert set(one) == {"type", "status", "reason", "message", "observedGeneration", "lastTransitionTime"}


@settings(max_examples=80)
@given(st.data())
def test_a_snapshot_of_another_version_is_taken_for_what_it_says(data: st.DataObject):
    whole = copy.deepcopy(
        snapshot("Recovering", lastFault=FAULT, recentFaults=[FAULT], progress={"step": 1, "metrics": {"a": 1.0}})
    )
    for path in data.draw(st.lists(st.sampled_from(sorted(places(whole), key=str)), max_size=4)):
        without(whole, path)
    world = copied(RUNNING)
    world.view = type(world.view)(whole)
    world.settle()
    assert world.master("Succeeded").settle().phase == "Succeeded"


@settings(max_examples=80)
@given(st.data())
def test_a_snapshot_with_values_of_another_kind_breaks_nothing(data: st.DataObject):
    odd = st.sampled_from([None, -1, 2.5, "text", [], {}, [1], {"a": 1}, True])
    whole: Any = copy.deepcopy(snapshot("Running", lastFault=FAULT, recentFaults=[FAULT]))
    for path in data.draw(st.lists(st.sampled_from(sorted(places(whole), key=str)), max_size=3)):
        with suppress(KeyError, IndexError, TypeError):  # an earlier one may have taken the place away
            functools.reduce(lambda value, key: value[key], path[:-1], whole)[path[-1]] = data.draw(odd)
    world = copied(RUNNING)
    world.view = type(world.view)(whole)
    world.look()
