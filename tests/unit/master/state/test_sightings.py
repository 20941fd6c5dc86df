"""Sightings of outside witnesses: what holds, for how long, and which rank is meant."""

from __future__ import annotations

import math
from typing import cast

import pytest
from immutables import Map
from master_kit import World, job, nodes

from dljob.master.state.evolve import evolve
from dljob.master.state.sightings import MOST, Row, Sighting, is_value, may_accuse, rank_of, words
from dljob.master.state.state import RankKey, RankState
from dljob.plan.witnesses import WitnessPlan

PLAN = WitnessPlan("w", 9000, "/metrics", "grad", "Hang", above=True, value=1.0, for_s=10)
R0, R1 = (("rank", "0"),), (("rank", "1"),)


def test_a_condition_counts_once_it_held_at_each_reading_for_its_time() -> None:
    row = Row().after(PLAN, [(R0, 2.0), (R1, 2.0)], 100.0)
    assert row.lasting_sightings(PLAN, 100.0) == ()
    row = row.after(PLAN, [(R0, 3.0), (R1, 1.0)], 105.0).after(PLAN, [(R0, 4.0), (R1, 2.0)], 110.0)
    assert row.lasting_sightings(PLAN, 110.0) == (Sighting("w", 4.0, R0, 10.0),)
    assert row.after(PLAN, (), 111.0) == Row(), "a reading that failed ends the row"


def test_a_lie_is_no_value_and_thousands_of_samples_are_cut() -> None:
    wrong = [math.nan, math.inf, -math.inf, 9223372036854775794.0]
    assert not any(is_value(one) for one in wrong)
    below = WitnessPlan("w", 1, "/", "m", "Hang", above=False, value=1.0)
    assert Row().after(PLAN, [(R0, one) for one in wrong], 1.0) == Row()
    assert Row().after(below, [(R0, -math.inf), (R1, 0.0)], 1.0).since == {R1: (1.0, 0.0)}
    many = [((("rank", str(n)),), 2.0) for n in range(9 * MOST)]
    assert len(Row().after(PLAN, many, 1.0).since) == MOST


def test_words_say_the_condition_and_the_labels() -> None:
    said = words(PLAN, Sighting("w", 2.0, (("pod", ""), ("rank", "1"))))
    assert said == "witness w: grad > 1 for 10 s of rank=1"
    assert words(PLAN, Sighting("w", 2.0)) == "witness w: grad > 1 for 10 s"


def world_of(*roles: dict[str, object]) -> World:
    """One machine with these roles."""
    return World(job(*roles, nodeGroups=[{"name": "g", "cpu": 9}])).boot()


def test_a_label_names_the_rank() -> None:
    state = world_of({"name": "t", "type": "Elastic", "replicas": 2}, {"name": "s", "replicas": 2}).state
    server = ("s", 1)
    state = evolve(state, ranks=state.ranks.set(server, evolve(state.ranks[server], pid=77)))
    host = state.hosts[state.job.roles["s"].host_of(1)]

    def found(**labels: str) -> object:
        return rank_of(state, host.node, tuple(sorted(labels.items())))

    assert found(pid="77") == server
    assert found(pid="1") is None
    assert found(rank="1") == ("t", 1), "torch's numbers are those of its world"
    assert found(rank="3") is None, "it is elsewhere"
    assert found(local_rank="1") == ("t", 1)
    assert found() is None, "four ranks are here"


def test_a_device_names_the_rank_that_has_it() -> None:
    state = world_of({"name": "s", "replicas": 2}).state
    shared, own = (state.job.roles["s"].host_of(rank) for rank in (0, 1))
    hosts = state.hosts.set(shared, evolve(state.hosts[shared], devices=(("GPU", ("0", "GPU-a")),)))
    isolated = evolve(state.hosts[own], slots=(("1",),), devices=(("GPU", ("0", "1")),))
    state = evolve(state, hosts=hosts.set(own, isolated))
    node = state.hosts[own].node
    assert rank_of(state, node, (("gpu", "1"),)) == ("s", 1)
    assert rank_of(state, node, (("device", "nvidia0"),)) == ("s", 0)
    assert rank_of(state, node, (("UUID", "GPU-a"), ("gpu", "7"))) == ("s", 0)
    assert rank_of(state, node, (("id", "77"),)) is None


def test_the_only_rank_of_a_node_needs_no_label_and_old_trouble_accuses_nobody() -> None:
    world = World(job({"name": "w", "replicas": 1})).boot()
    node = next(iter(world.state.hosts.values())).node
    assert rank_of(world.state, node, ()) == ("w", 0)
    assert rank_of(world.state, "elsewhere", ()) is None
    ready = world.state.ranks["w", 0].ready_at
    assert may_accuse(world.state, ("w", 0), Sighting("w", 1.0, (), 9.0), ready + 9.0)
    assert not may_accuse(world.state, ("w", 0), Sighting("w", 1.0, (), 9.0), ready + 8.0)


class CountedRanks:
    """The ranks of a job, and how many of them were read one by one; they cannot be read all together."""

    def __init__(self, ranks: Map[RankKey, RankState]) -> None:
        self.ranks, self.reads = ranks, 0

    def __getitem__(self, key: RankKey) -> RankState:
        self.reads += 1
        return self.ranks[key]


@pytest.mark.parametrize("machines", [2, 20])
def test_a_sighting_costs_the_ranks_of_its_node_and_none_of_the_job(machines: int) -> None:
    role = {"name": "w", "replicas": 4 * machines, "replicasPerGroup": 2}
    state = World(job(role), views=nodes(machines, cpus=4)).boot().state
    node = state.hosts[state.job.roles["w"].host_of(5)].node
    counted = CountedRanks(state.ranks)
    state = evolve(state, ranks=cast("Map[RankKey, RankState]", counted))
    assert rank_of(state, node, (("rank", "5"),)) == ("w", 5)
    assert rank_of(state, node, ()) is None
    assert counted.reads == 2 * 4, "the four ranks of the node, for each of two sightings"
