"""From nothing to running: who starts when, and with which numbers."""

from __future__ import annotations

from master_kit import World, host, job, nodes

from dljob.master.state import actions as act
from dljob.master.state import events as ev
from dljob.master.state.state import Phase
from dljob.telemetry import reasons


def starts(world, since=0):
    return {f"{a.host.role}/{r.rank}": (a, r) for a in world.of(act.StartRanks, since) for r in a.ranks}


def test_all_hosts_are_ordered_at_once_when_the_gang_is_held():
    world = World(job({"name": "w", "replicas": 3}))
    world.send(ev.MasterStarted(1))
    reserves = world.send(ev.NodesSeen(world.views))
    assert [a.unit for a in reserves] == ["w/0", "w/1", "w/2"]
    assert world.state.phase is Phase.SCHEDULING
    assert not world.deliver()
    assert not world.deliver()
    spawned = [a.host for a in world.deliver() if isinstance(a, act.SpawnHost)]
    assert spawned == [host("w", 0), host("w", 1), host("w", 2)]


def test_the_store_of_a_world_lives_in_what_is_held_for_its_rank_0():
    world = World(job({"name": "w"}, {"name": "t", "type": "Elastic", "replicas": 4, "replicasPerGroup": 2})).boot()
    (store,) = (a for a in world.all_actions if isinstance(a, act.SpawnHost) and a.host == host("t", -1))
    (first,) = (a for a in world.all_actions if isinstance(a, act.SpawnHost) and a.host == host("t", 0))
    assert (store.unit, store.token) == (first.unit, first.token)


def test_an_actor_rank_starts_as_soon_as_its_own_host_is_ready():
    world = World(job({"name": "w", "replicas": 2}))
    world.send(ev.NodesSeen(world.views))
    world.deliver()
    world.deliver()
    (start,) = world.deliver()
    assert isinstance(start, act.StartRanks)
    assert (start.host, start.incarnation, start.world_size, start.store) == (host("w", 0), 1, 2, "")
    assert start.ranks == (act.RankStart(0, 1, 0, 2, 0, devices=(("GPU", ("0",)),)),)


def test_a_torch_world_starts_whole_when_all_hosts_and_the_store_are_ready():
    world = World(job({"name": "t", "type": "Elastic", "replicas": 2}))
    world.send(ev.NodesSeen(world.views))
    world.deliver()
    world.deliver()
    assert {e.host.index for e in world.pending} == {-1, 0, 1}
    assert world.deliver() == ()
    assert world.deliver() == ()
    started = world.deliver()
    assert [a.host.index for a in started] == [0, 1]
    assert {a.generation for a in started} == {1}
    assert {a.store for a in started} == {world.state.hosts[host("t", -1)].address}
    assert started[0].store


def test_a_torch_world_waits_for_its_store_when_that_comes_last():
    world = World(job({"name": "t", "type": "Elastic", "replicas": 2}))
    world.send(ev.NodesSeen(world.views))
    world.deliver()
    world.deliver()
    assert world.deliver(1) == ()
    assert world.deliver(1) == ()
    assert len(world.deliver()) == 2


def test_a_fork_host_starts_all_ranks_of_its_group_in_one_order():
    roles = {"name": "t", "replicas": 4, "replicasPerGroup": 2, "entrypoint": {"module": "train"}}
    world = World(job(roles)).boot()
    assert [tuple(r.rank for r in a.ranks) for a in world.of(act.StartRanks)] == [(0, 1), (2, 3)]


def test_local_and_node_ranks_count_over_all_groups_of_a_node():
    world = World(job({"name": "t", "replicas": 6, "replicasPerGroup": 2}), views=nodes(2, cpus=4)).boot()
    where = {f"t/{g}": world.state.units[f"t/{g}"].node for g in range(3)}
    first = where["t/0"]
    expected_local, count, node_rank = {}, {}, {}
    for group in range(3):
        node = where[f"t/{group}"]
        node_rank.setdefault(node, len(node_rank))
        for rank in (2 * group, 2 * group + 1):
            expected_local[f"t/{rank}"] = (count.get(node, 0), node_rank[node])
            count[node] = count.get(node, 0) + 1
    got = starts(world)
    assert {name: (r.local_rank, r.node_rank) for name, (_, r) in got.items()} == expected_local
    assert got["t/0"][1].local_world_size == count[first]
    assert {r.nodes for _, r in got.values()} == {2}
    assert sorted(count.values()) == [2, 4]


def test_a_role_starts_its_ranks_only_when_the_role_it_depends_on_is_ready_though_its_hosts_come_up_before():
    world = World(job({"name": "a"}, {"name": "b", "dependsOn": [{"role": "a"}]}))
    world.send(ev.NodesSeen(world.views))
    world.deliver()
    world.deliver()
    assert {e.host.role for e in world.pending} == {"a", "b"}
    world.deliver([e.host.role for e in world.pending].index("b"))
    assert "b/0" not in starts(world)
    world.deliver()
    assert "b/0" not in starts(world)
    world.deliver()
    assert "b/0" in starts(world)


def test_a_dependent_torch_world_starts_when_the_role_it_depends_on_is_ready():
    made = job({"name": "a"}, {"name": "t", "type": "Elastic", "replicas": 2, "dependsOn": [{"role": "a"}]})
    world = World(made).boot()
    order = [a.host.role for a in world.of(act.StartRanks)]
    assert order == ["a", "t", "t"]


def test_a_role_that_waits_for_completion_has_no_process_before():
    world = World(
        job({"name": "a", "driver": False}, {"name": "b", "dependsOn": [{"role": "a", "condition": "Complete"}]})
    )
    world.boot()
    assert world.state.phase is Phase.RUNNING
    assert {a.host.role for a in world.of(act.SpawnHost)} == {"a"}
    world.end("a", 0)
    world.settle()
    assert {a.host.role for a in world.of(act.SpawnHost)} == {"a", "b"}
    assert world.state.roles["b"].ready_count == 1


def test_a_chain_through_a_ready_dependency_waits_as_well():
    world = World(
        job(
            {"name": "c", "dependsOn": [{"role": "b"}]},
            {"name": "a", "driver": False},
            {"name": "b", "driver": False, "dependsOn": [{"role": "a", "condition": "Complete"}]},
        )
    ).boot()
    assert {a.host.role for a in world.of(act.SpawnHost)} == {"a"}
    world.end("a", 0)
    world.settle()
    assert [a.host.role for a in world.of(act.StartRanks)] == ["a", "b", "c"]


def test_the_job_runs_when_the_first_roles_are_ready_and_says_after_how_long():
    world = World(job({"name": "w", "replicas": 2}))
    world.send(ev.NodesSeen(world.views))
    world.now += 3
    world.settle()
    assert world.state.phase is Phase.RUNNING
    (note,) = world.notes(reasons.JOB_RUNNING)
    assert note.seconds == 3.0


def test_a_rank_that_ends_before_its_ready_arrived_counts_as_started():
    world = World(job({"name": "w", "replicas": 2}))
    world.send(ev.NodesSeen(world.views))
    for _ in range(4):
        world.deliver()
    world.end("w", 0)
    world.deliver(len(world.pending) - 1)
    assert world.state.roles["w"].succeeded_count == 1
    world.settle()
    assert world.state.phase is Phase.RUNNING


# -- lives of a role whose ranks meet in no store


def generations(world, since=0):
    return [(a.ranks[0].rank, a.generation) for a in world.of(act.StartRanks, since)]


def alone(**more):
    return World(job({"name": "e", "type": "Elastic", "replicas": 2, "comm": {"backend": "None"}, **more})).boot()


def test_an_elastic_role_without_a_store_counts_its_lives_too():
    """Else what it saves in its second life would pass for the first one's."""
    world = alone()
    assert generations(world) == [(0, 1), (1, 1)]
    for number, target in ((2, "e"), (3, "job")):
        seen = len(world.all_actions)
        world.send(ev.Commanded(target, "restart", target))
        world.settle()
        assert sorted(generations(world, seen)) == [(0, number), (1, number)]


def test_a_rank_that_restarts_alone_goes_on_in_the_life_of_its_role():
    world = alone(restartPolicy={"level": "Process"})
    seen = len(world.all_actions)
    world.kill("e", 1)
    world.settle()
    assert generations(world, seen) == [(1, 1)]


def test_the_only_rank_of_a_role_begins_a_life_with_each_restart():
    world = World(job({"name": "e", "type": "Elastic", "comm": {"backend": "None"}})).boot()
    seen = len(world.all_actions)
    world.kill("e", 0)
    world.settle()
    assert generations(world, seen) == [(0, 2)]
