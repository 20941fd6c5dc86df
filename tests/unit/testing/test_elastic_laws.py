"""The laws of sizes in the simulated world: what they allow, and what they still find."""

from __future__ import annotations

import pytest

from dljob.master.state.evolve import evolve
from dljob.master.state.state import JobState
from dljob.testing.explore.worlds import job, role
from dljob.testing.simulate.drive import Case, Driver, Durations
from dljob.testing.world import elastic
from dljob.testing.world.fault_schedule import Timed
from dljob.testing.world.model import FaultMove

AT, SOON_S = 100.0, 10.0
RESIZES = role("t", 2, type="Elastic", minReplicas=1, restartPolicy={"level": "InProcess"})


def resized(*counts: float) -> Driver:
    """Return a job whose role was ordered to have these sizes, each soon after the one before."""
    orders = (FaultMove("scale", int(count) - 1, float(n)) for n, count in enumerate(counts, 1))
    faults = tuple(Timed(AT + n * SOON_S, fault) for n, fault in enumerate(orders))
    made = Driver(Case(0, job(RESIZES), faults), pace=Durations(work=(600.0, 600.0), total=200.0))
    result = made.run()
    assert (result.problems, result.phase) == ((), "Succeeded")
    return made


def known(scaled: float | None) -> tuple[JobState, JobState]:
    """Return the states before and after a growth that came too soon; the role was last ordered at `scaled`."""
    state = resized().world.known
    own = evolve(state.sizes["t"], size=1, want=2, resized=AT, scaled=scaled)
    grown = evolve(own, size=2, resized=AT + SOON_S)
    return evolve(state, sizes=state.sizes.set("t", own)), evolve(state, sizes=state.sizes.set("t", grown))


def test_an_order_for_more_ranks_may_come_soon_after_one_for_fewer() -> None:
    assert resized(1, 2).world.known.sizes["t"].size == 2
    assert not list(elastic.moved(*known(scaled=AT)))


@pytest.mark.parametrize("scaled", [None, AT - 1.0])
def test_a_growth_that_nobody_ordered_since_the_last_change_waits(scaled: float | None) -> None:
    assert list(elastic.moved(*known(scaled))) == ["elastic: t grows to 2 10.0 s after it had become 1"]
