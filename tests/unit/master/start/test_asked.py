"""Placement groups that a role's own Ray driver asked for: the words, and when they are said."""

from __future__ import annotations

from dataclasses import replace

import pytest
from master_kit import World, job, nodes

from dljob.master import status
from dljob.master.start.driver_groups import explain
from dljob.master.state import events as ev
from dljob.master.state.views import AskedGroup
from dljob.plan.model import GRAIN
from dljob.telemetry import reasons


def group(*bundles, strategy="PACK", name="pool"):
    made = tuple(tuple(sorted((n, int(amount * GRAIN)) for n, amount in bundle.items())) for bundle in bundles)
    return AskedGroup("abc", name, "driver/0", strategy, made)


def busy(count, gpus, free):
    return tuple(replace(node, free=(("CPU", 64 * GRAIN), ("GPU", free * GRAIN))) for node in nodes(count, GPU=gpus))


def test_a_waiting_placement_group_is_explained_with_its_needs_and_the_nodes():
    said = explain(group({"GPU": 1, "CPU": 3}, {"GPU": 1, "CPU": 3}, {"CPU": 1}), busy(2, 1, 0))
    assert said == (
        "placement group pool of driver/0 waits for 2 x (3 CPU, 1 GPU) + 1 x (1 CPU); not now: no node has free 3 CPU, "
        "1 GPU; free on nodes: n0: 64 CPU of 64, 0 GPU of 1; n1: 64 CPU of 64, 0 GPU of 1"
    )


@pytest.mark.parametrize(
    ("asked", "there", "words"),
    [
        (group({"GPU": 9}), busy(1, 8, 8), "these nodes can never hold it: no node has 9 GPU;"),
        (group({"GPU": 5}, {"GPU": 5}, strategy="STRICT_PACK"), busy(4, 8, 8), "never hold it: no node has 10 GPU;"),
        (group({"GPU": 1}, {"GPU": 1}, strategy="STRICT_SPREAD"), busy(1, 8, 8), "it wants 2 nodes, and 1 could hold"),
        (group({"GPU": 8}, {"GPU": 8}), busy(1, 8, 8), "it needs 16 GPU in all, and all nodes together have 8 GPU;"),
        (group({"GPU": 2}, {"GPU": 2}), busy(2, 8, 1), "not now: no node has free 2 GPU;"),
        (
            group({"GPU": 2}, {"GPU": 2}),
            busy(1, 8, 3),
            "not now: it needs 4 GPU in all, and all nodes together have free 3",
        ),
        (
            group({"GPU": 2}, {"GPU": 2}, {"GPU": 2}),
            busy(2, 8, 3),
            "there is enough in total, but not in pieces of the right size",
        ),
        (group({"TPU": 1}), busy(1, 8, 8), "no node has 1 TPU; no node has any of it"),
        (group({"GPU": 9}, name=""), busy(1, 8, 8), "placement group abc of driver/0"),
        (group({"GPU": 9}), busy(9, 8, 8), "and 3 more nodes"),
        (group({"GPU": 5}, {"GPU": 5}, strategy="STRICT_PACK"), busy(1, 8, 8), "2 x (5 GPU) on one node;"),
        (group({"GPU": 9}, strategy="STRICT_SPREAD"), busy(1, 8, 8), "1 x (9 GPU), each on a node of its own;"),
    ],
)
def test_the_explanation_names_the_missing_resource(asked, there, words):
    assert words in explain(asked, there)


def test_actors_are_told_as_groups_are():
    waiting = replace(group({"GPU": 3}, {"GPU": 3}, name="e0 and 1 more"), kind="actor")
    assert explain(waiting, busy(1, 8, 4)).startswith(
        "actor e0 and 1 more of driver/0 waits for 2 x (3 GPU); not now: it needs 6 GPU in all, and all nodes together "
        "have free 4 GPU;"
    )


def test_a_task_of_anybody_is_told_with_its_demand_and_the_head_by_its_role():
    waiting = replace(group({"CPU": 99}, name="a Ray task or actor"), kind="task", owner="job")
    (head,) = (replace(node, head=True) for node in busy(1, 8, 4))
    assert explain(waiting, [head]) == (
        "a Ray task or actor started by a rank waits for 1 x (99 CPU); these nodes can never hold it: no node has "
        "99 CPU; free on nodes: head: 64 CPU of 64"
    )


def test_a_waiting_group_is_noted_once_and_shown_until_it_is_placed():
    driver = {"name": "driver", "entrypoint": {"module": "main.py"}, "reserve": "Quota"}
    world = World(job(driver))
    world.send(ev.NodesSeen(world.views))
    world.settle()
    before = world.state
    for why in ("needs 9 GPU", "needs 9 GPU", "needs 9 GPU, 2 are free"):
        world.send(ev.GroupAsked("abc", "driver/0", why))
    (note,) = world.notes(reasons.PLACEMENT_PENDING)
    assert (note.target, note.message) == ("driver/0", "needs 9 GPU")
    shown = status.brief(world.state, world.now, {})
    assert (shown["phase"], shown["reason"]) == ("Running", reasons.PLACEMENT_PENDING)
    assert shown["message"] == "needs 9 GPU, 2 are free"
    for _ in range(2):
        world.send(ev.GroupAsked("abc", "driver/0", "it is placed", waits=False))
    (note,) = world.notes(reasons.PLACEMENT_RESOLVED)
    assert note.message == "it is placed"
    shown = status.brief(world.state, world.now, {})
    assert (shown["reason"], shown["message"]) == ("Running", "")
    assert world.state.groups == before.groups
