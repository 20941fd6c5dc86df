"""Who is in a collective group: its members in their order, the epoch they make, and why one cannot take part."""

from __future__ import annotations

from dataclasses import replace

from master_kit import KILLED, World, error, job

from dljob.master.start.rosters import roster
from dljob.master.state import events as ev
from dljob.master.state.state import RankPhase

GROUP = {"groups": [{"name": "w", "roles": ["b", "a"]}]}


def world(**more):
    return World(job({"name": "a", "replicas": 2, **more}, {"name": "b", "driver": False}, collectives=GROUP))


def seen(own):
    found = roster(own.state, "w")
    return found.epoch, [f"{role}/{rank}.{life}" for role, rank, life in found.members], dict(found.absent)


def test_the_members_are_numbered_role_by_role_as_the_spec_has_them():
    own = world()
    assert roster(own.state, "other") is None
    assert seen(own) == (
        0,
        ["b/0.0", "a/0.0", "a/1.0"],
        dict.fromkeys([("b", 0), ("a", 0), ("a", 1)], "has not started yet"),
    )
    own.boot()
    assert seen(own) == (3, ["b/0.1", "a/0.1", "a/1.1"], {})


def test_a_restart_of_a_member_is_another_epoch_and_nobody_is_taken_for_it_meanwhile():
    own = world().boot()
    own.kill("a", 1, KILLED)
    own.deliver()
    epoch, members, absent = seen(own)
    assert (epoch, members) == (3, ["b/0.1", "a/0.1", "a/1.1"])
    assert list(absent) == [("a", 1)]
    assert absent["a", 1].startswith("restarts (")
    found = roster(own.state, "w")
    assert (found.over, found.ended) == ("", False)
    own.settle()
    assert seen(own) == (4, ["b/0.1", "a/0.1", "a/1.2"], {})


def phased(own, phase, reason=""):
    """The world with a/1 in this phase."""
    key = ("a", 1)
    rank = replace(own.state.ranks[key], phase=phase, restart_reason=reason)
    own.state = replace(own.state, ranks=own.state.ranks.set(key, rank))
    return roster(own.state, "w")


def test_why_a_member_is_absent_is_said_and_whether_it_may_come_back():
    own = world().boot()
    for phase, reason, why in (
        (RankPhase.STOPPING, "NodeLost", "is being restarted (NodeLost)"),
        (RankPhase.STOPPING, "", "is being restarted"),
        (RankPhase.STOPPED, "", "is Stopped"),
    ):
        found = phased(own, phase, reason)
        assert (dict(found.absent), found.over, found.ended) == ({("a", 1): why}, "", False)
    found = phased(own, RankPhase.FAILED)
    assert (found.over, found.ended) == ("a/1 failed, and a rule says to leave it so", False)


def test_a_member_whose_run_returned_has_ended_though_its_host_lives():
    own = world().boot()
    found = phased(own, RankPhase.SUCCEEDED)
    assert (dict(found.absent), found.over, found.ended) == ({("a", 1): "has ended"}, "a/1 has ended", True)


def test_a_job_that_ends_has_no_groups():
    own = world().boot()
    own.hold = True
    own.send(ev.Commanded("1", "stop", "job", ""))
    found = roster(own.state, "w")
    assert found.over == f"the job is ending: {own.state.verdict.reason}"
    assert found.ended


def test_a_rank_that_fails_twice_by_a_lost_group_does_not_fail_the_job():
    own = world().boot()
    for life in (2, 3):
        own.end("b", 0, error("CollectiveAbortedError", message="allreduce: group w is broken: a/1 restarts"))
        own.settle()
        while own.state.ranks["b", 0].incarnation < life:
            own.tick()
            own.settle()
    assert own.state.verdict is None
