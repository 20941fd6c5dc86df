"""Ranks that serve: where they are, and whether they get requests."""

from __future__ import annotations

from master_kit import KILLED, World, error, host, job

from dljob.master import status
from dljob.master.state import actions as act
from dljob.master.state import events as ev
from dljob.master.state.evolve import evolve
from dljob.master.state.state import RankPhase
from dljob.master.transition import transition
from dljob.telemetry import reasons

HTTP = (("http", "127.0.0.1:24000"),)


def served(*, replicas=1, **role):
    return World(job({"name": "s", "replicas": replicas, "ports": [{"name": "http"}], **role}, {"name": "w"})).boot()


def ready(world):
    return [(row["rank"], row["incarnation"], row["addresses"]) for row in status.endpoints(world.state)["s"]]


def test_a_rank_is_an_endpoint_while_its_probe_says_so():
    world = served()
    assert ready(world) == []
    world.send(ev.RankServes("s", 0, 1, HTTP, ready=True))
    assert ready(world) == [(0, 1, {"http": "127.0.0.1:24000"})]
    assert set(status.endpoints(world.state)) == {"s"}, "the other role has no ports"
    world.send(ev.RankServes("s", 0, 1, HTTP, ready=False, why="status 503"))
    assert ready(world) == []
    world.send(ev.RankServes("s", 0, 1, HTTP, ready=True, why="status 200"))
    assert [(note.target, note.message) for note in world.notes(reasons.READINESS_CHANGED)] == [
        ("s/0", "gets no requests: it is not ready (status 503)"),
        ("s/0", "is ready again (status 200)"),
    ], "the first report is no change"


def test_a_server_that_cannot_become_ready_is_told():
    world = served()
    rank = evolve(world.state.ranks["s", 0], phase=RankPhase.STARTING)
    before = evolve(world.state, ranks=world.state.ranks.set(("s", 0), rank))
    for ready, why, told in ((False, "status 404", 1), (True, "status 200", 0), (False, "", 0)):
        actions = transition(before, ev.RankServes("s", 0, 1, HTTP, ready, why), world.now).actions
        notes = [one for one in actions if isinstance(one, act.Note)]
        assert [one.reason for one in notes] == [reasons.READINESS_CHANGED] * told
        assert all(one.message.endswith("does not serve what readinessProbe asks for (status 404)") for one in notes)


def test_the_mark_of_a_service_changes_with_its_endpoints():
    world = served(service=True)
    marks = [status.service_marks(world.state)]
    for up in (True, False):
        world.send(ev.RankServes("s", 0, 1, HTTP, ready=up, why="status 503"))
        marks.append(status.brief(world.state, world.now, {})["services"])
    assert [set(mark) for mark in marks] == [{"s"}] * 3, "the other role has no Service"
    assert marks[0] == marks[2] != marks[1]
    assert "services" not in status.brief(served().state, world.now, {})


def test_news_of_an_earlier_process_or_of_no_process_change_nothing():
    world = served()
    before = world.state
    world.send(ev.RankServes("s", 0, 9, HTTP, ready=True))
    world.send(ev.RankServes("s", 7, 1, HTTP, ready=True))
    assert world.state.ranks == before.ranks
    world.send(ev.HostLost(host("s", 0), 1, KILLED))
    world.send(ev.RankServes("s", 0, 1, HTTP, ready=True))
    assert ready(world) == []


def test_a_restarted_rank_is_told_its_ports_and_serves_anew():
    world = served()
    world.send(ev.RankServes("s", 0, 1, HTTP, ready=True))
    world.send(ev.HostLost(host("s", 0), 1, KILLED))
    assert ready(world) == []
    world.settle()
    start = world.of(act.StartRanks)[-1].ranks[0]
    assert (start.incarnation, start.ports) == (2, (("http", 24000),))
    assert ready(world) == [], "it has not said yet that it serves"
    starting = evolve(world.state.ranks["s", 0], phase=RankPhase.STARTING)
    before = evolve(world.state, ranks=world.state.ranks.set(("s", 0), starting))
    step = transition(before, ev.RankServes("s", 0, 2, HTTP, ready=True), world.now)
    assert step.state.ranks["s", 0].serving
    assert step.actions == (), "the restart is told, its first readiness is no change"


def test_an_ending_job_has_no_endpoints():
    world = served()
    world.send(ev.RankServes("s", 0, 1, HTTP, ready=True))
    world.send(ev.Commanded("1", "stop"))
    assert ready(world) == []


DRAIN = {"entrypoint": {"module": "s.py"}, "drain": {"timeoutSeconds": 40}}


def test_a_server_that_is_restarted_with_its_role_is_drained_first():
    world = served(replicas=2, restartPolicy={"level": "Role"}, **DRAIN)
    world.send(ev.RankServes("s", 1, 1, HTTP, ready=True))
    world.end("s", 0, error())
    world.deliver()
    (stop,) = world.of(act.StopRanks)
    assert (stop.host, stop.ranks) == (host("s", 1), (1,))
    assert ready(world) == [], "it is out of the endpoints before the order arrives"
    (incident,) = world.state.incidents.values()
    assert incident.stop_by - world.now == 10.0 + 30.0 + 40


def end_of(world, rank):
    """Deliver the end of a server that was told to end."""
    ends = (at for at, event in enumerate(world.pending) if isinstance(event, ev.RankEnded) and event.rank == rank)
    world.deliver(next(ends))


def recovered(world):
    """Let a restart run to its end."""
    for _ in range(9):
        world.settle()
        if not world.state.incidents:
            return {world.state.ranks["s", rank].phase for rank in world.state.job.roles["s"].ranks} == {
                RankPhase.READY
            }
        world.tick()
    return False


def test_servers_are_drained_before_a_restart_of_the_job_replaces_them():
    """Such a restart keeps no process: the host goes too, but only after its last server."""
    world = served(replicas=4, replicasPerGroup=2, **DRAIN)
    lives = [world.state.hosts[host("s", at)].incarnation for at in (0, 1)]
    begun = len(world.all_actions)
    world.send(ev.Commanded("1", "restart", "job"))
    assert [stop.ranks for stop in world.of(act.StopRanks, begun)] == [(0, 1), (2, 3)]
    assert [kill.host.role for kill in world.of(act.KillHost, begun)] == ["w"]
    assert ready(world) == []
    begun = len(world.all_actions)
    end_of(world, 0)
    assert not world.of(act.KillHost, begun), "the other server of the host still has requests"
    end_of(world, 1)
    assert [kill.host for kill in world.of(act.KillHost, begun)] == [host("s", 0)]
    assert recovered(world)
    assert [world.state.hosts[host("s", at)].incarnation for at in (0, 1)] == [life + 1 for life in lives]


def test_a_server_that_ignores_its_drain_is_killed_by_a_restart_of_the_job():
    world = served(**DRAIN)
    world.send(ev.Commanded("1", "restart", "job"))
    (incident,) = world.state.incidents.values()
    assert incident.stop_by - world.now == 10.0 + 30.0 + 40
    world.pending.clear()
    begun = len(world.all_actions)
    world.now = incident.stop_by
    world.send(ev.Tick())
    assert [kill.host for kill in world.of(act.KillHost, begun)] == [host("s", 0)]
    assert world.of(act.SpawnHost, begun)[0].host == host("s", 0)


def test_servers_that_end_during_the_backoff_are_replaced_after_it():
    """An escalated restart is fresh as well."""
    policy = {"level": "Process", "maxRestarts": 1}
    world = served(replicas=2, replicasPerGroup=2, restartPolicy=policy, **DRAIN)
    for name in ("FirstError", "SecondError"):
        assert recovered(world)
        world.end("s", 0, error(name))
        world.deliver()
    (incident,) = world.state.incidents.values()
    assert (incident.replaces_hosts, incident.is_backoff_over) == (True, False)
    life = world.state.hosts[host("s", 0)].incarnation
    end_of(world, 1)
    assert world.of(act.KillHost)[-1].host == host("s", 0)
    assert world.state.hosts[host("s", 0)].incarnation == life, "nothing starts before the backoff is over"
    assert recovered(world)
    assert world.state.hosts[host("s", 0)].incarnation == life + 1


def test_a_job_that_ends_waits_for_the_drain_of_its_servers():
    world = served(**DRAIN)
    world.send(ev.Commanded("1", "stop"))
    assert world.state.verdict.kill_at - world.now == 5.0 + 10.0 + 40


def test_the_status_tells_the_endpoints_of_roles_with_ports():
    world = served(replicas=25)
    for rank in range(1, 25):
        world.send(ev.RankServes("s", rank, 1, (("http", f"h:{rank}"),), ready=True))
    whole = status.status(world.state, world.now, {})
    (own,) = whole["endpoints"]
    assert (own["role"], own["ready"], own["desired"]) == ("s", 24, 25)
    assert own["addresses"] == [{"http": f"h:{rank}"} for rank in range(1, 21)], "the first 20"
    told = {row["rank"]: (row["phase"], row["serves"]) for row in whole["ranks"] if row["role"] == "s"}
    assert (told[0], told[1]) == (("Ready", False), ("Ready", True)), "its process is there, its probe has not passed"
    (few,) = status.brief(world.state, world.now, {})["endpoints"]
    assert few == {**own, "addresses": own["addresses"][:8]}, "the status of a DLJob is bounded"
    assert status.brief_of(whole) == status.brief(world.state, world.now, {})
    assert "endpoints" not in status.status(World(job({"name": "w"})).boot().state, 0.0, {})
