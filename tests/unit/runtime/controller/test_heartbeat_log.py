"""What PrimeMaster heard goes into the events that the ledger reads."""

from __future__ import annotations

from typing import Any

import pytest
from immutables import Map

from dljob.master.persistence.codec import event_record
from dljob.master.state import events as ev
from dljob.master.state.checkpoint_ids import RunId
from dljob.master.state.evolve import evolve
from dljob.master.state.state import HostPhase, HostState, JobState, RankPhase, RankState
from dljob.master.state.views import HostId, NodeView, Outcome
from dljob.master.transition import initial
from dljob.plan.plan import plan
from dljob.runtime.controller.heartbeat_log import ROOM, HeartbeatLog
from dljob.runtime.process.messages import Heartbeat
from dljob.spec.model import DLJobManifest
from dljob.telemetry.records import encode_line

HOSTS = [HostId("w", rank) for rank in range(2)]


def running(**rank: Any) -> JobState:
    """Two ranks on two nodes, ready; rank 0 as told."""
    role = {"name": "w", "replicas": 2, "entrypoint": {"class": "pkg.Class"}}
    manifest = DLJobManifest.model_validate({"metadata": {"name": "j"}, "spec": {"roles": [role]}})
    state = initial(plan(manifest), manifest.spec, "f" * 32, 0.0)
    own = RankState(RankPhase.READY, 2, has_worked=True)
    ranks = {("w", 0): evolve(own, **rank), ("w", 1): own}
    hosts = {host: HostState(HostPhase.READY, 3, node=f"n{host.index}", actor=f"a{host.index}") for host in HOSTS}
    nodes = tuple(NodeView(f"n{n}", (), (), ()) for n in range(2))
    return evolve(state, ranks=Map(ranks), hosts=Map(hosts), nodes=nodes)


def beacon(step: int | None = None, *, host: int = 0, incarnation: int = 2) -> Heartbeat:
    steps = {} if step is None else {host: (incarnation, step, {"loss": 0.5})}
    return Heartbeat("w", f"a{host}", 1, steps)


def test_a_host_that_ended_long_ago_is_forgotten():
    evidence, state = HeartbeatLog(), running()
    hear(evidence, state, beacon(), 5.0)
    for number in range(10 * ROOM):
        hear(evidence, state, Heartbeat("w", f"old{number}", 1, {}))
    assert len(evidence._last_heartbeats) <= 2 * ROOM  # type: ignore[reportPrivateUsage]
    lost = evidence.with_heartbeats(20.0, state, ev.HostLost(HOSTS[0], 3, Outcome(False)))
    assert lost == ev.HostLost(HOSTS[0], 3, Outcome(False), seen=5.0)


def hear(evidence: HeartbeatLog, state: JobState, seen: Heartbeat, now: float = 0.0) -> list[ev.Event]:
    return list(evidence.record(state, seen, now))


def test_a_lost_host_was_last_heard_with_its_last_beacon():
    evidence, state = HeartbeatLog(), running()
    hear(evidence, state, beacon(), 10.0)
    hear(evidence, state, beacon(), 12.5)
    lost = ev.HostLost(HOSTS[0], 3, Outcome(ok=False))
    assert evidence.with_heartbeats(20.0, state, lost) == evolve(lost, seen=12.5)
    assert evidence.with_heartbeats(20.0, state, lost) == lost, "it is forgotten with its host"
    other = ev.HostLost(HOSTS[1], 3, Outcome(ok=False))
    assert evidence.with_heartbeats(20.0, state, other) == other, "it was never heard"
    hear(evidence, state, beacon(), 13.0)
    older = ev.HostLost(HOSTS[0], 2, Outcome(ok=False))
    assert evidence.with_heartbeats(20.0, state, older) == older, "the one that was heard is another process"


def test_a_host_that_is_silent_is_not_heard_although_its_agent_tells_its_steps():
    evidence, state = HeartbeatLog(), running()
    hear(evidence, state, beacon(), 10.0)
    hear(evidence, state, evolve(beacon(7), silent_s=1.5), 12.5)
    assert evidence.progress["w", 0] == (7, {"loss": 0.5})
    lost = ev.HostLost(HOSTS[0], 3, Outcome(ok=False))
    assert evidence.with_heartbeats(20.0, state, lost) == evolve(
        lost, seen=10.0, outcome=Outcome(ok=False, advanced=12.5)
    )


def test_a_node_was_last_heard_with_the_last_beacon_of_its_hosts():
    evidence, state = HeartbeatLog(), running()
    hear(evidence, state, beacon(host=0), 10.0)
    hear(evidence, state, beacon(host=1), 11.0)
    assert evidence.with_heartbeats(20.0, state, ev.NodesSeen(state.nodes)) == ev.NodesSeen(state.nodes)
    left = ev.NodesSeen(state.nodes[:1])
    assert evidence.with_heartbeats(20.0, state, left) == evolve(left, silent=(("n1", 11.0),))


def test_a_rank_that_comes_back_is_told_how_far_it_had_been_at_most():
    evidence, state = HeartbeatLog(), running()
    for step in (7, 9, 4):
        hear(evidence, state, beacon(step))
    again = ev.RankReady("w", 0, 3, 1)
    assert evidence.with_heartbeats(20.0, state, again) == evolve(again, goal=9)
    assert evidence.progress["w", 0] == (4, {"loss": 0.5})
    first = ev.RankReady("w", 0, 1, 1)
    assert evidence.with_heartbeats(20.0, state, first) == first, "the first process repeats nothing"
    silent = ev.RankReady("w", 1, 3, 1)
    assert evidence.with_heartbeats(20.0, state, silent) == silent, "nobody heard of a step"


def test_a_world_that_goes_on_is_told_how_far_it_had_come():
    evidence, state = HeartbeatLog(), running()
    hear(evidence, state, beacon(7))
    hear(evidence, state, beacon(9, host=1))
    reached: dict[str, int | None] = {}
    for world in ("w", "w/0", "w/1", "w/2", "x"):
        told = evidence.with_heartbeats(20.0, state, ev.CheckpointDecided(world, RunId(1, 2), None))
        assert isinstance(told, ev.CheckpointDecided)
        reached[world] = told.reached
    assert reached == {"w": 9, "w/0": 7, "w/1": 9, "w/2": None, "x": None}


def test_a_rank_that_goes_on_by_itself_does_not_have_all_others_looked_through():
    class Looked(dict[tuple[str, int], int]):
        def items(self) -> Any:
            raise AssertionError("all were looked through")

    evidence = HeartbeatLog()
    evidence._highest = Looked({("w", 0): 7})  # type: ignore[reportPrivateUsage]
    told = evidence.with_heartbeats(20.0, running(), ev.CheckpointDecided("w/0", RunId(1, 2), None))
    assert told == ev.CheckpointDecided("w/0", RunId(1, 2), None, reached=7)


def test_an_end_tells_when_a_role_last_came_further_than_ever():
    evidence, state = HeartbeatLog(), running()
    failed = ev.RankEnded("w", 0, 2, Outcome(ok=False))
    assert evidence.with_heartbeats(1.0, state, failed) == failed, "nobody told a step"
    for at, (step, host) in enumerate([(7, 0), (6, 1), (7, 1), (8, 1), (8, 0)], 10):
        hear(evidence, state, beacon(step, host=host), float(at))
    assert evidence.with_heartbeats(20.0, state, failed).outcome.advanced == 13.0  # type: ignore[union-attr]
    own = evolve(failed, outcome=Outcome(ok=False, step=9))
    assert evidence.with_heartbeats(21.0, state, own).outcome.advanced == 21.0, (
        "its own last step, which no beacon told"
    )  # type: ignore[union-attr]
    evidence.record_end(own, 22.0)
    again = evolve(failed, outcome=Outcome(ok=False, step=9))
    assert evidence.with_heartbeats(30.0, state, again).outcome.advanced == 21.0  # type: ignore[union-attr]
    well = ev.RankEnded("w", 0, 2, Outcome(ok=True))
    assert evidence.with_heartbeats(31.0, state, well) == well


def test_a_rank_that_counts_its_work_goes_on_from_what_its_earlier_processes_did_and_repeats_nothing():
    evidence, state = HeartbeatLog(), running(incarnation=1)
    hear(evidence, state, beacon(7, incarnation=1))
    marked = {"noted": [["counted", 0, 1], ["device", 0, 5]]}
    hear(evidence, state, evolve(beacon(9, incarnation=1), usage=marked))
    assert evidence.progress["w", 0][0] == 9
    ended = ev.RankEnded("w", 0, 1, Outcome(ok=False, step=12))
    evidence.record_end(evidence.with_heartbeats(9.0, state, ended), 9.0)
    again = ev.RankReady("w", 0, 2, 1)
    assert evidence.with_heartbeats(10.0, state, again) == again, "there is no step that it has to reach again"
    for count, number in ((1, 13), (2, 14)):
        hear(evidence, running(), beacon(count))
        assert evidence.progress["w", 0][0] == number
    died = ev.RankEnded("w", 0, 2, Outcome(ok=False, step=3))
    assert evidence.with_heartbeats(11.0, running(), died).outcome.step == 15
    idle = HeartbeatLog()
    hear(idle, running(), evolve(beacon(4), steps={}, usage=marked))
    hear(idle, running(), beacon(1))
    assert idle.progress["w", 0][0] == 1, "what it marked before its first report counts from nothing"


def test_a_hang_tells_its_last_step_and_when_a_role_last_came_further_than_ever():
    evidence, state = HeartbeatLog(), running()
    hang = ev.HangFound("w", 0, 2, "Hang", "it stands still")
    assert evidence.with_heartbeats(1.0, state, hang) == hang
    hear(evidence, state, beacon(7, host=0), 10.0)
    assert evidence.with_heartbeats(20.0, state, hang) == evolve(hang, step=7, advanced=10.0)


def test_an_end_brings_the_last_step():
    evidence, state = HeartbeatLog(), running()
    evidence.record_end(ev.RankEnded("w", 0, 2, Outcome(ok=False, step=11, metrics=(("loss", 1.0),))), 5.0)
    evidence.record_end(ev.RankEnded("w", 0, 2, Outcome(ok=False)), 6.0)
    evidence.record_end(ev.Tick(), 7.0)
    assert evidence.progress == {("w", 0): (11, {"loss": 1.0})}
    again = ev.RankReady("w", 0, 3, 1)
    assert evidence.with_heartbeats(20.0, state, again) == evolve(again, goal=11)


def test_an_end_with_a_metric_that_is_no_number_can_be_written_down():
    odd = tuple((name, float(name)) for name in ("nan", "inf", "-inf"))
    ended = ev.RankEnded("w", 0, 2, Outcome(ok=False, step=11, metrics=(("loss", 1.5), *odd)))
    told = HeartbeatLog().with_heartbeats(20.0, running(), ended)
    assert told == evolve(ended, outcome=evolve(ended.outcome, metrics=(("loss", 1.5),), advanced=20.0))
    assert b'"loss",1.5' in encode_line(1, event_record(told, 0.0))


def test_a_restarted_ranks_first_step_and_its_goal_are_told_to_the_core_and_nothing_between():
    evidence = HeartbeatLog()
    assert hear(evidence, running(goal=9), beacon(3)) == [ev.Stepped("w", 0, 2, 3)]
    assert hear(evidence, running(goal=9, stepped=True), beacon(4)) == []
    assert hear(evidence, running(goal=9, stepped=True), beacon(9)) == [ev.Stepped("w", 0, 2, 9)]
    assert hear(evidence, running(), beacon(10)) == []


def test_what_is_told_to_the_core_is_told_again_only_after_it_was_folded():
    evidence, state = HeartbeatLog(), running(goal=9)
    told = [hear(evidence, state, beacon(step)) for step in (3, 4, 9, 10)]
    assert told == [[ev.Stepped("w", 0, 2, 3)], [], [ev.Stepped("w", 0, 2, 9)], []]
    assert hear(evidence, running(goal=9, incarnation=3), beacon(4, incarnation=3)) == [ev.Stepped("w", 0, 3, 4)]
    evidence.record_folded(ev.Stepped("w", 0, 2, 3))
    assert hear(evidence, state, beacon(11)) == [ev.Stepped("w", 0, 2, 11)]


@pytest.mark.parametrize(
    ("state", "seen"),
    [
        (running(goal=9, phase=RankPhase.STARTING), beacon(3)),
        (running(goal=9), beacon(3, incarnation=1)),
        (running(goal=9), Heartbeat("x", "a9", 1, {0: (2, 3, {})})),
    ],
    ids=["not ready yet", "an older process", "nobody's rank"],
)
def test_other_steps_cause_no_event(state, seen):
    assert hear(HeartbeatLog(), state, seen) == []


def test_the_step_rate_is_that_of_the_first_driver_role():
    evidence, state = HeartbeatLog(), running()
    assert evidence.rate.shown() == {}
    hear(evidence, state, beacon(1), 100.0)
    assert evidence.rate.shown() == {"stepTime": "1970-01-01T00:01:40.000Z"}
    for n in range(1, 12):
        hear(evidence, state, beacon(1 + 2 * n), 100.0 + n)
        hear(evidence, state, beacon(2 * n, host=1), 100.5 + n)
        hear(evidence, state, beacon(2 * n, host=1), 100.6 + n)  # told again
    assert evidence.rate.shown() == {"stepTime": "1970-01-01T00:01:51.500Z", "secondsPerStep": 0.5}
    hear(evidence, state, beacon(10), 200.0)  # from a checkpoint
    hear(evidence, state, beacon(12), 201.0)
    assert evidence.rate.shown() == {"stepTime": "1970-01-01T00:03:21.000Z", "secondsPerStep": 0.5}
    hear(evidence, state, Heartbeat("other", "a9", 1, {0: (2, 99, {})}), 300.0)
    assert evidence.rate.shown()["stepTime"] == "1970-01-01T00:03:21.000Z"


def fields(evidence: HeartbeatLog, now: float, phase: RankPhase = RankPhase.READY) -> dict[str, Any]:
    """What heartbeats add to rank 0 in the status."""
    rank = {"role": "w", "rank": 0, "phase": phase.value, "actor": "a0"}
    (found,) = evidence.with_rank_fields([rank], now)
    assert found.items() >= rank.items()
    return {key: found[key] for key in found.keys() - rank.keys()}


def test_a_ranks_status_says_when_it_was_heard_and_how_long_its_steps_take():
    evidence, state = HeartbeatLog(), running()
    assert fields(evidence, 9.0) == {}
    hear(evidence, state, beacon(3), 10.0)
    assert fields(evidence, 10.5) == {"heartbeatAge": 0.5}
    hear(evidence, state, beacon(3), 11.0)
    hear(evidence, state, beacon(7), 12.0)
    assert fields(evidence, 11.9) == {"heartbeatAge": 0.0, "secondsPerStep": 0.5}, "no age is below 0"
    assert fields(evidence, 20.0, RankPhase.STOPPED) == {"secondsPerStep": 0.5}, "nothing is expected of it"
    hear(evidence, state, beacon(2), 13.0)
    assert fields(evidence, 13.0) == {"heartbeatAge": 0.0}, "a later life begins at a checkpoint"


def test_a_ranks_status_has_its_memory_and_that_of_its_device():
    evidence, state = HeartbeatLog(), running()
    told = {"memory": [[0, 512], [1, 9]], "noted": [["device", 0, 2048], ["held:w", 0, 3]]}
    hear(evidence, state, evolve(beacon(), usage=told), 10.0)
    assert fields(evidence, 10.0) == {"heartbeatAge": 0.0, "memoryMib": 512, "deviceMib": 2048}


def begun(found: list[ev.Event]) -> list[tuple[str, int, int, float]]:
    return [row for event in found if isinstance(event, ev.WorkBegan) for row in event.ranks]


def test_the_first_step_or_call_of_each_process_is_told_once():
    log, state = HeartbeatLog(), running(has_worked=False, ready_at=1.0)
    both = evolve(state, ranks=state.ranks.set(("w", 1), evolve(state.ranks["w", 0])))
    assert begun(hear(log, both, beacon(7), 10.0)) == [("w", 0, 2, 10.0)]
    # The time of a call is known from how long calls have run; events come once a second at most.
    served = evolve(beacon(host=1), usage={"served": [[1, 250]], "memory": [[1, 90]]})
    assert begun(hear(log, both, served, 10.5)) == []
    assert begun(hear(log, both, beacon(8), 11.0)) == [("w", 1, 2, 10.25)]
    assert begun(hear(log, both, evolve(served, steps={1: (2, 3, {})}), 20.0)) == []
    log.record_folded(ev.WorkBegan((("w", 0, 2, 10.0), ("w", 1, 2, 10.25))))
    done = evolve(both, ranks=Map({key: evolve(own, has_worked=True) for key, own in both.ranks.items()}))
    assert begun(hear(log, done, evolve(served, steps={1: (2, 4, {})}), 30.0)) == []
    # The core did not take it, for instance since the rank was not ready yet: it is told again.
    assert begun(hear(log, both, beacon(9), 31.0)) == [("w", 0, 2, 31.0)]


@pytest.mark.parametrize(
    ("usage", "at"),
    [
        ({"calls": {"x.y": [1, 0, 0, 0]}, "memory": [[0, 90]]}, [("w", 0, 2, 10.0)]),
        ({"stores": [":queue:done"], "memory": [[0, 90]]}, [("w", 0, 2, 10.0)]),
        ({"calls": {"x.y": [1, 0, 0, 0]}, "memory": [[0, 90], [1, 90]]}, []),  # one of the two
        ({"stores": [":queue:done"], "memory": [[5, 90]]}, []),  # no such rank
        ({"served": [[0, 60000]]}, []),  # of an earlier process in the same host
        ({"served": [[5, 10]]}, []),
        ({"memory": [[0, 90]]}, []),
    ],
)
def test_a_call_that_a_rank_makes_and_the_use_of_a_queue_are_work(usage, at):
    state = running(has_worked=False, ready_at=1.0)
    assert begun(hear(HeartbeatLog(), state, evolve(beacon(), usage=usage), 10.0)) == at
    starting = running(has_worked=False, phase=RankPhase.STARTING)
    assert begun(hear(HeartbeatLog(), starting, evolve(beacon(), usage=usage), 10.0)) == []
