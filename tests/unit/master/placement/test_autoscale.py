"""Roles that follow their load: how many ranks, when, and what an order to scale changes."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import pytest
from elastic_kit import fleet
from master_kit import job

from dljob.master.placement.autoscale import Reading, SizeDecision, decide_size
from dljob.master.state import events as ev
from dljob.master.state.sizing import Sizing
from dljob.telemetry import reasons

COOLDOWN_S = 60


def plan_of(most=8, group=1, **policy):
    how = {"by": "queue", "name": "prompts", "target": 10, "cooldownSeconds": COOLDOWN_S, **policy}
    sizes = {"replicas": group, "replicasPerGroup": group, "minReplicas": group, "maxReplicas": most}
    made, _ = job({"name": "e", "driver": False, **sizes, "autoscale": how}, {"name": "d"})
    return made.roles["e"]


def replayed(loads, *, start=2, plan=None):
    """Return (second, wanted size) at each change, for one load a second."""
    plan, own, found, readings = plan or plan_of(), Sizing(start, start), list[tuple[int, int]](), deque[Reading]()
    for now, load in enumerate(loads):
        readings.append(Reading(now, load))
        while len(readings) > 1 and readings[1].at <= now - COOLDOWN_S:
            readings.popleft()
        if count := decide_size(plan, own, readings, now).count:
            own = Sizing(count, count, scaled=float(now))
            found.append((now, count))
    return found


def test_a_load_above_the_target_asks_for_more_at_once():
    assert replayed([45]) == [(0, 5)]
    said = decide_size(plan_of(), Sizing(2, 2), [Reading(0, 45)], 0).reason
    assert said == "45 items in queue prompts, 10 for each rank: 5 ranks instead of 2"


@pytest.mark.parametrize(("load", "count"), [(0, 2), (31, 4), (1e9, 8), (-5, 2)])
def test_sizes_are_whole_groups_within_the_bounds(load, count):
    found = decide_size(plan_of(group=2), Sizing(1, 1), [Reading(0, load)], 0)
    assert found.count == count


def test_fewer_are_wanted_once_the_load_was_low_for_a_whole_cooldown():
    assert replayed([15] * 200, start=4) == [(60, 2)]
    assert replayed([15] * 30 + [39] + [15] * 100, start=4) == [(91, 2)], "one high reading begins it anew"


def test_a_square_wave_does_not_drag_the_role_along():
    fast = [60 if second % 20 < 10 else 5 for second in range(1200)]
    assert replayed(fast) == [(0, 6)]
    slow = replayed([60 if second % 400 < 200 else 5 for second in range(1200)])
    assert [count for _, count in slow] == [6, 1, 6, 1, 6, 1]
    times = [second for second, _ in slow]
    assert min(later - earlier for earlier, later in pairwise(times)) >= COOLDOWN_S


def test_a_load_at_the_edge_of_two_sizes_changes_nothing():
    assert replayed([31 if second % 2 else 30 for second in range(600)], start=3) == [(1, 4)]
    assert replayed([38] * 600, start=5) == [], "4 ranks would be full"
    assert replayed([35] * 600, start=5) == [(60, 4)]


def test_two_changes_are_a_cooldown_apart():
    assert replayed([15, *[75] * 100], start=1) == [(0, 2), (60, 8)]


def test_an_unknown_load_and_no_policy_change_nothing():
    assert decide_size(plan_of(), Sizing(2, 2), [], 0) == SizeDecision(0, "its load is not known")
    made, _ = job({"name": "e", "driver": False, "maxReplicas": 2}, {"name": "d"})
    assert decide_size(made.roles["e"], Sizing(1, 1), [Reading(0, 1)], 0).count == 0


def test_calls_and_metrics_are_named_in_the_reason():
    for by, name, words in (("calls", None, "45 calls under way, "), ("metric", "lag", "45 lag, ")):
        plan = plan_of(by=by, **({"name": name} if name else {"name": None}))
        assert decide_size(plan, Sizing(2, 2), [Reading(0, 45)], 0).reason.startswith(words)


def scaled(cooldown=30):
    return fleet(role={"autoscale": {"by": "calls", "target": 10, "cooldownSeconds": cooldown}})


def test_the_role_gets_the_ranks_that_its_load_asks_for():
    world = scaled()
    world.send(ev.LoadSeen("e", 4, "31 calls under way, 10 for each rank: 4 ranks instead of 3"))
    world.settle()
    while world.state.sizes["e"].size != 4:
        world.tick()
        world.settle()
    (note,) = world.notes(reasons.AUTOSCALED)
    assert (note.target, note.message) == ("e", "31 calls under way, 10 for each rank: 4 ranks instead of 3")
    assert world.state.sizes["e"].scaled is not None


def test_an_order_to_scale_wins_for_a_cooldown():
    world = scaled()
    world.send(ev.Commanded("c", "scale", "e", "somebody", 2))
    said = world.notes(reasons.COMMAND_ACCEPTED)[-1].message
    assert said == "scale by somebody to 2 ranks; its load decides again in 30 s"
    world.send(ev.LoadSeen("e", 4, "high"), after=29.0)
    assert world.state.sizes["e"].want == 2
    world.send(ev.LoadSeen("e", 4, "high"), after=1.0)
    assert world.state.sizes["e"].want == 4


@pytest.mark.parametrize(("role", "count"), [("e", 3), ("e", 5), ("e", 0), ("d", 1), ("nobody", 1)])
def test_what_the_load_cannot_ask_for_changes_nothing(role, count):
    world = scaled()
    before = world.state.version
    world.send(ev.LoadSeen(role, count, "high"))
    assert world.state.version == before


def test_the_load_of_a_role_that_has_no_policy_or_is_over_changes_nothing():
    world = fleet()
    world.send(ev.LoadSeen("e", 2, "low"))
    assert world.state.sizes["e"].want == 3
    world = scaled()
    for rank in range(3):
        world.end("e", rank)
    world.settle()
    world.send(ev.LoadSeen("e", 2, "low"))
    assert world.state.sizes["e"].want == 3
    world.send(ev.Commanded("s", "stop"))
    world.send(ev.LoadSeen("e", 2, "low"))
    assert world.state.sizes["e"].want == 3
