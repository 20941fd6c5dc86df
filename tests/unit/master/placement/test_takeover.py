"""A new PrimeMaster: the state comes back, nobody restarts, and what was ordered and not answered is ordered again."""

from __future__ import annotations

from master_kit import World, host, job, nodes

from dljob.master.placement.reissue import leftovers, live_hosts, ready_spares, reissue
from dljob.master.state import actions as act
from dljob.master.state import events as ev
from dljob.master.state.state import HostPhase, Phase
from dljob.master.state.views import Reason
from dljob.master.transition import next_wake
from dljob.telemetry import reasons


def test_a_takeover_in_quiet_restarts_nobody():
    world = World(job({"name": "w", "replicas": 3})).boot()
    ranks = world.state.ranks
    seen = len(world.all_actions)
    world.crash_master()
    world.settle()
    assert world.state.ranks == ranks
    assert {type(a) for a in world.all_actions[seen:]} == {act.Note}
    (note,) = world.notes(reasons.MASTER_RESTARTED)
    assert "epoch 2, 3 ranks still alive" in note.message
    assert world.state.restarts["Master"] == 1
    assert world.state.faults[-1].target == "master"


def test_ranks_that_died_without_a_master_are_restarted_by_the_next():
    world = World(job({"name": "w", "replicas": 2})).boot()
    world.kill("w", 1)
    world.crash_master()
    world.settle()
    assert world.state.phase is Phase.RUNNING
    assert [world.state.ranks["w", r].incarnation for r in range(2)] == [1, 2]


def test_results_that_nobody_acknowledged_are_not_lost():
    world = World(job({"name": "w"})).boot()
    world.end("w", 0)
    world.crash_master()
    world.settle()
    assert world.state.phase is Phase.SUCCEEDED


def test_orders_in_flight_are_given_again_at_every_stage_of_a_start():
    roles = ({"name": "t", "type": "Elastic", "replicas": 2}, {"name": "w"})
    world = World(job(*roles, master={"maxRestarts": 20}))
    world.send(ev.MasterStarted(1))
    world.send(ev.NodesSeen(world.views))
    for stage in range(12):
        world.crash_master()
        if world.pending:
            world.deliver(stage % len(world.pending))
    world.settle()
    assert world.state.phase is Phase.RUNNING


def test_a_restart_in_flight_is_finished_by_the_next_master():
    for steps in range(6):
        world = World(
            job({"name": "t", "replicas": 2, "replicasPerGroup": 2, "type": "Elastic", "entrypoint": {"module": "m"}})
        )
        world.boot()
        world.end("t", 0, ev.Outcome(ok=False, code=1))
        for _ in range(min(steps, len(world.pending))):
            world.deliver()
        world.crash_master()
        world.settle()
        assert world.state.phase is Phase.RUNNING
        assert world.state.roles["t"].ready_count == 2


def test_kills_come_before_spawns_and_name_the_old_actor():
    world = World(job({"name": "w"})).boot()
    world.kill("w", 0)
    world.deliver()
    *kills, spawn = reissue(world.state, world.now)
    assert kills == [act.KillHost(host("w", 0), 1, actor) for actor in ("", "w/0/1")]
    assert spawn.incarnation == 2


def test_the_last_actor_that_answered_is_killed_whatever_was_made_and_ended_since():
    """Two restarts in one batch, and a crash before the first kill was carried out."""
    world = World(job({"name": "w"}, faultTolerance={"backoff": {"initialSeconds": 0}})).boot()
    for number in range(2):
        world.send(ev.Commanded(f"c{number}", "restart", "w"))
    assert (world.state.hosts[host("w", 0)].incarnation, world.state.hosts[host("w", 0)].previous_actor) == (3, "w/0/1")
    *kills, spawn = reissue(world.state, world.now)
    w = host("w", 0)
    assert kills == [act.KillHost(w, 2, ""), act.KillHost(w, 2, "w/0/1")]
    assert spawn.incarnation == 3


def test_every_process_replaced_before_its_kill_is_confirmed_is_killed_by_the_next_master():
    """A spare takes a hung host's place and dies at once, in one batch; no kill was carried out."""
    spec = {"backoff": {"initialSeconds": 0}, "spares": {"processesPerNode": 1}}
    world = World(job({"name": "w"}, faultTolerance=spec)).boot()
    w = host("w", 0)
    (slot, spare), *_ = world.state.spares.items()
    world.send(ev.HangFound("w", 0, 1, Reason.HANG.value, "no progress"))
    assert world.state.hosts[w].actor == spare.actor
    world.send(ev.SpareLost(*slot, spare.incarnation))
    assert world.state.hosts[w].phase is HostPhase.SPAWNING
    named = {a.actor or f"w/0/{a.incarnation}" for a in reissue(world.state, world.now) if isinstance(a, act.KillHost)}
    assert named >= {"w/0/1", spare.actor}
    world.settle()
    assert world.state.hosts[w].unconfirmed == ()


def test_a_started_rank_confirms_the_kills_before_its_start():
    spec = {"backoff": {"initialSeconds": 0}, "spares": {"processesPerNode": 1}}
    world = World(job({"name": "w"}, faultTolerance=spec)).boot()
    w = host("w", 0)
    world.send(ev.HangFound("w", 0, 1, Reason.HANG.value, "no progress"))
    assert world.state.hosts[w].unconfirmed == ((1, "w/0/1"),)
    world.settle()
    assert (world.state.hosts[w].incarnation, world.state.hosts[w].unconfirmed) == (2, ())


def test_a_host_that_waits_out_a_backoff_is_killed_again_and_a_lost_unit_given_back():
    world = World(job({"name": "w", "replicas": 2}), views=nodes(2, cpus=1)).boot()
    world.lose_node("n1")
    world.settle()
    lost = next(name for name, unit in world.state.units.items() if not unit.node)
    assert reissue(world.state, world.now) == (
        act.KillHost(host("w", int(lost[-1])), 1, f"{lost}/1"),
        act.Unreserve(lost, 1),
    )


def test_a_reservation_given_back_is_given_back_again_although_the_unit_is_wanted_anew():
    """The last master may have died before it gave the old place back, and after it chose the new one."""
    world = World(job({"name": "w"}), views=nodes(2, cpus=1)).boot()
    world.send(ev.NodeFrozen(world.state.units["w/0"].node, 3.0))
    assert act.Unreserve("w/0", 1) in reissue(world.state, world.now)
    for phase in ("RESERVING", "HELD"):
        assert (world.state.units["w/0"].phase.name, world.state.units["w/0"].token) == (phase, 2)
        assert act.Unreserve("w/0", 1) in reissue(world.state, world.now)
        world.settle()


def test_each_reservation_that_a_unit_has_left_is_given_back_however_often_it_moved():
    world = World(job({"name": "w"}), views=nodes(3, cpus=1), hold=True).boot()
    # The executor waits for a slow kill, and PrimeMaster dies before it carries out either move.
    world.carry_out = lambda _: None
    for _ in range(2):
        world.send(ev.NodeFrozen(world.state.units["w/0"].node, 3.0))
    del world.carry_out
    assert (world.state.units["w/0"].token, list(world.held["w/0"])) == (3, [1])
    world.crash_master()
    world.settle()
    assert world.held["w/0"] == {3: world.state.units["w/0"].node}


def test_a_reservation_of_a_unit_that_is_no_more_is_given_back():
    world = World(job({"name": "w", "replicas": 2}), views=nodes(2, cpus=1)).boot()
    world.lose_node("n1")
    world.settle()
    lost, kept = sorted(world.state.units, key=lambda name: world.state.units[name].node)
    held = [(lost, 1), (kept, 1), ("v/0", 4)]
    assert leftovers(world.state, held) == (act.Unreserve(lost, 1), act.Unreserve("v/0", 4))


def test_spares_on_their_way_are_ordered_again_and_ready_ones_watched():
    world = World(job({"name": "w"}, faultTolerance={"spares": {"processesPerNode": 2}}), views=nodes(1)).boot()
    world.send(ev.SpareLost("w", "n0", 1, 1))
    assert reissue(world.state, world.now) == (act.SpawnSpare("w", "n0", 1, 2),)
    assert [key for key, _ in ready_spares(world.state)] == [("w", "n0", 0)]
    assert [which for which, _ in live_hosts(world.state)] == [host("w", 0)]


def test_a_stop_under_way_is_ordered_again_then_the_release_then_the_finish():
    world = World(job({"name": "t", "type": "Elastic", "replicas": 2}, {"name": "w"})).boot()
    world.send(ev.Commanded("s", "stop"))
    assert {a.host for a in reissue(world.state, world.now)} == {host("t", 0), host("t", 1), host("w", 0)}
    world.crash_master()
    while not world.of(act.Release):
        world.deliver()
    assert reissue(world.state, world.now) == (act.Release(),)
    world.crash_master()
    world.settle()
    assert reissue(world.state, world.now) == tuple(world.finished[:1])


def test_a_master_that_comes_after_the_end_only_takes_note_of_its_epoch():
    world = World(job({"name": "w"})).boot()
    world.end("w", 0)
    world.settle()
    assert world.send(ev.MasterStarted(2)) == ()
    assert world.state.epoch == 2
    assert world.state.phase is Phase.SUCCEEDED


def test_too_many_masters_within_the_window_end_the_job():
    world = World(job({"name": "w"}, master={"maxRestarts": 2})).boot()
    for _ in range(2):
        world.crash_master()
        world.settle()
        assert world.state.phase is Phase.RUNNING
    world.send(ev.MasterStarted(world.state.epoch + 1))
    assert world.state.verdict.reason == reasons.MASTER_BUDGET
    assert "3 times within 3600 s, 2 are allowed" in world.state.verdict.message


def test_an_older_epoch_changes_nothing():
    world = World(job({"name": "w"})).boot()
    world.crash_master()
    world.settle()
    before = world.state
    assert world.send(ev.MasterStarted(1)) == ()
    assert world.state is before


def test_too_many_masters_do_not_change_a_verdict_that_is_known():
    world = World(job({"name": "w"}, master={"maxRestarts": 0})).boot()
    world.send(ev.Commanded("s", "stop"))
    world.send(ev.MasterStarted(2))
    assert world.state.verdict.reason == reasons.STOPPED


def test_a_host_that_was_still_being_made_is_ended_under_its_own_name():
    world = World(
        job({"name": "w", "type": "Elastic", "replicas": 2}, faultTolerance={"backoff": {"initialSeconds": 0}})
    )
    world.boot()
    world.kill("w", 1)
    world.deliver()
    assert world.state.hosts[host("w", 1)].incarnation == 2
    world.pending.clear()
    world.send(ev.Commanded("c", "restart", "w"))
    assert world.state.hosts[host("w", 1)].incarnation == 3
    kills = {a for a in reissue(world.state, world.now) if isinstance(a, act.KillHost)}
    assert act.KillHost(host("w", 1), 2, "") in kills  # the executor knows the name of life 2; life 1 is long gone


def test_a_process_that_ends_on_a_node_that_stands_still_is_missed_when_the_node_goes_on():
    world = World(job({"name": "w"}), count=2).boot()
    (node,) = {unit.node for unit in world.state.units.values()}
    world.freeze_node(node)
    world.crash_master()
    world.pending.clear()  # it is not silent for long enough yet
    world.kill("w", 0)
    world.crash_master()
    world.pending.clear()
    assert next_wake(world.state) is None
    world.thaw_node(node)
    world.settle()
    assert (world.state.phase, world.state.ranks["w", 0].incarnation) == (Phase.RUNNING, 2)
