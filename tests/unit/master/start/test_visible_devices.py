"""Which devices a rank is shown: its own, or those of its role on its node in the order of local ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from master_kit import World, host, job, nodes

from dljob.master.persistence.codec import decode_event, encode_event
from dljob.master.placement.reissue import reissue
from dljob.master.start import visible_devices
from dljob.master.state import actions as act
from dljob.master.state import events as ev
from dljob.master.state.job import RoleFacts
from dljob.master.state.state import HostState, Phase
from dljob.master.state.views import Clue, Outcome, Reason

KERNEL = Clue("kernel", "Memory cgroup out of memory: Killed process 7 (python) total-vm:1kB")
OOM = Outcome(ok=False, reason=Reason.UNKNOWN, code=137, clues=(KERNEL,))
SPARES = {"spares": {"processesPerNode": 1}}


def elastic(replicas: int, group: int, *, script: bool = False, **accelerator: Any) -> dict[str, Any]:
    entrypoint = {"module": "train.py"} if script else {"class": "app.A"}
    return {
        "name": "t", "type": "Elastic", "replicas": replicas, "replicasPerGroup": group, "entrypoint": entrypoint,
        "accelerator": {"type": "GPU", **accelerator}, "comm": {"preCheck": False}, "resources": {"cpu": "100m"},
    }  # fmt: skip


def starts(world: World, since: int = 0) -> dict[int, tuple[int, tuple[str, ...], int]]:
    """Rank -> (LOCAL_RANK, GPUs that it sees, which of them is its own)."""
    found = [rank for order in world.of(act.StartRanks, since) for rank in order.ranks]
    return {rank.rank: (rank.local_rank, dict(rank.devices)["GPU"], rank.device_index) for rank in found}


@pytest.mark.parametrize("script", [False, True])
@pytest.mark.parametrize("group", [1, 4, 8])
def test_eight_elastic_ranks_of_a_host_each_find_their_device_at_their_local_rank(group: int, script: bool):
    world = World(job(elastic(8, group, script=script)), views=nodes(1, GPU=8)).boot()
    seen = starts(world)
    assert len(seen) == 8
    for rank, (local, devices, index) in seen.items():
        assert devices == tuple("01234567")
        assert local == index == rank
        assert devices[local] == str(rank)


def test_devices_of_another_host_are_not_seen():
    world = World(job(elastic(4, 2)), views=nodes(2, GPU=2)).boot()
    assert starts(world) == {
        0: (0, ("0", "1"), 0),
        1: (1, ("0", "1"), 1),
        2: (0, ("2", "3"), 0),
        3: (1, ("2", "3"), 1),
    }


@pytest.mark.parametrize("script", [False, True])
def test_isolated_ranks_see_their_own_alone(script: bool):
    world = World(job(elastic(4, 4, script=script, visibility="Isolated")), views=nodes(1, GPU=4)).boot()
    assert starts(world) == {rank: (rank, (str(rank),), 0) for rank in range(4)}


def test_ranks_that_start_one_by_one_see_those_of_their_own_host():
    alone = {**elastic(4, 2, script=True), "comm": {"backend": "None"}}
    world = World(job(alone), views=nodes(1, GPU=4)).boot()
    assert [seen[1:] for _, seen in sorted(starts(world).items())] == [
        (("0", "1"), 0), (("0", "1"), 1), (("2", "3"), 0), (("2", "3"), 1),
    ]  # fmt: skip


def test_a_bundles_own_ids_count_and_not_the_shares_before_it():
    """0.4 of a device each, in bundles of a whole one: four devices, where 4 x 0.4 would be two."""
    roles = [{**elastic(4, 4, script=True, count=c), "name": n} for n, c in (("a", "0.4"), ("b", "0.6"))]
    world = World(
        job(*roles, collocations=[{"name": "c", "roles": ["a", "b"], "level": "Device"}]), views=nodes(1, GPU=4)
    ).boot()
    for order in world.of(act.StartRanks):
        for rank in order.ranks:
            assert (rank.devices, rank.device_index) == ((("GPU", tuple("0123")),), rank.rank)


def test_two_ranks_that_share_a_device_both_find_it():
    facts = World(job(elastic(4, 4, script=True, count="0.5"))).state.job.roles["t"]
    own = HostState(devices=(("GPU", ("5", "2")),), slots=(("5",), ("5",), ("2",), ("2",)))
    assert [visible_devices.visible_to_rank(facts, own, rank, {})[1] for rank in range(4)] == [0, 0, 1, 1]


def test_a_spare_and_a_new_master_show_the_same():
    world = World(job(elastic(4, 1), faultTolerance=SPARES), views=nodes(1, GPU=4)).boot()
    before = starts(world)
    since = len(world.all_actions)
    world.kill("t", 2)
    while not starts(world, since):
        world.deliver()
    again = [a for a in reissue(world.state, world.now) if isinstance(a, act.StartRanks)]
    world.settle()
    assert starts(world, since) == before
    assert {rank.rank: dict(rank.devices)["GPU"] for order in again for rank in order.ranks}[2] == tuple("0123")
    assert world.state.phase is Phase.RUNNING


def test_a_unit_reserved_anew_has_devices_of_its_own_until_they_are_known():
    """The unit gets more memory, so it is reserved again: on the same node, and maybe with another device."""
    grows = {
        "name": "w", "replicas": 1, "accelerator": {"type": "GPU"}, "resources": {"memory": "1Gi"},
        "restartPolicy": {"outOfMemory": {"maxMemory": "4Gi"}},
    }  # fmt: skip
    world = World(job(grows, faultTolerance=SPARES), views=nodes(1, GPU=2, memory=8 << 30)).boot()
    assert world.state.hosts[host("w", 0)].devices
    since = len(world.all_actions)
    world.kill("w", 0, OOM)
    world.deliver()
    assert world.of(act.Reserve, since)
    assert world.state.hosts[host("w", 0)].devices == world.state.hosts[host("w", 0)].slots == ()
    world.settle()
    assert world.of(act.SpawnHost, since), "a spare that cannot know the new bundle's device took the rank"


def test_a_journal_without_slots_counts_devices_evenly():
    facts: RoleFacts = World(job(elastic(4, 4, script=True))).state.job.roles["t"]
    own = HostState(devices=(("GPU", ("4", "5", "6", "7")),))
    assert [visible_devices.visible_to_rank(facts, own, rank, {}) for rank in (0, 3)] == [
        (own.devices, 0),
        (own.devices, 3),
    ]
    old = encode_event(ev.HostReady(host("t", 0), 1, "n", 1, "a", own.devices))
    del old["slots"]
    assert decode_event(old).slots == ()


def test_a_role_without_devices_sees_what_ray_says():
    facts = World(job({"name": "w"})).state.job.roles["w"]
    assert visible_devices.visible_to_rank(facts, replace(HostState(), devices=()), 0, {}) == ((), 0)
