"""Nodes of simulated jobs that are announced to go: their ranks are elsewhere before, or it is known why they ended."""

from __future__ import annotations

import pytest

from dljob.telemetry import reasons
from dljob.testing.explore.worlds import job, role
from dljob.testing.simulate.drive import Case, Driver, Durations, case_of, simulate
from dljob.testing.world.fault_schedule import Timed
from dljob.testing.world.model import Depart, FaultMove
from dljob.testing.world.state import EPOCH_S

AT = 100.0


def story(nodes: int, *faults: FaultMove) -> Driver:
    made = Driver(
        Case(0, job(role("a", resources={"cpu": "5"}), nodes=nodes), tuple(Timed(AT, fault) for fault in faults)),
        pace=Durations(work=(600.0, 600.0), total=200.0),
    )
    result = made.run()
    assert (result.problems, result.phase) == ((), "Succeeded")
    return made


def noted(made: Driver, reason: str) -> list[float]:
    return [at - EPOCH_S for at, note in made.world.notes if note.reason == reason]


@pytest.mark.parametrize("kind", ["drain", "evict"])
def test_ranks_are_elsewhere_before_a_node_goes_and_nobody_pays_for_it(kind: str) -> None:
    made = story(2, FaultMove(kind, 0, 30.0))
    (first,) = made.world.known.faults
    assert first.reason == "Preempted"
    assert first.detected_at - EPOCH_S < AT + 30.0
    assert not made.world.known.marks.get("a"), "no budget was used"


@pytest.mark.parametrize("kind", ["drain", "evict"])
def test_where_there_is_no_other_node_the_end_is_put_down_to_the_announcement(kind: str) -> None:
    made = story(1, FaultMove(kind, 0, 30.0))
    (fault,) = made.world.known.faults
    assert fault.reason == "Preempted"
    assert fault.detected_at - EPOCH_S >= AT + 30.0


def test_an_announced_departure_that_does_not_happen_is_forgotten() -> None:
    made = story(1, FaultMove("evict", 0, 0.0))
    assert not made.world.known.faults
    (at,) = noted(made, reasons.NODE_DRAIN_CANCELLED)
    assert AT + 150 < at < AT + 200


def test_a_machine_that_is_gone_cannot_be_taken_away() -> None:
    made = story(2, FaultMove("evict", 0, 5.0), FaultMove("node lost", 0))
    assert not [p for p in made.world.pending.values() if isinstance(p.item, Depart)]
    (fault,) = made.world.known.faults
    assert fault.reason == "Preempted"


def test_some_stories_have_such_nodes() -> None:
    having = [seed for seed in range(60) if {t.fault.kind for t in case_of(seed).faults} & {"drain", "evict"}]
    assert 5 < len(having) < 30
    ended = [simulate(case_of(seed)) for seed in having[:6]]
    assert [result.problems for result in ended] == [()] * 6
    told = [note.reason for result in ended if result.world for _, note in result.world.notes]
    assert reasons.NODE_LEAVING in told
