"""Weights of servers in jobs with drawn faults: no law is broken, each kind of trouble happens, and bugs are found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import planted_bugs
import pytest

from dljob.telemetry import reasons
from dljob.testing.explore.worlds import job, role
from dljob.testing.simulate.drive import Case, Driver, Durations
from dljob.testing.world.fault_schedule import Timed, chance, draw
from dljob.testing.world.model import FaultMove

SEEDS = 24
PACE = Durations(work=(300.0, 400.0), whole=900.0)


def case(seed: int) -> Case:
    """Three or four servers that load weights, versions that come at drawn times, loads that fail, and other faults."""
    rng = chance(f"weights {seed}")
    lag, least = rng.randint(0, 2), rng.randint(1, 2)
    weights = {"channels": ["policy"], "load": {"method": "load"}, "maxLag": lag, "minReady": least}
    servers = role("s", rng.randint(3, 4), driver=False, weights=weights)
    own = [Timed(rng.uniform(0.0, 250.0), FaultMove("publish")) for _ in range(rng.randint(3, 12))]
    own += [Timed(rng.uniform(0.0, 250.0), FaultMove("bad load")) for _ in range(rng.randint(0, 4))]
    others = [each for each in draw(rng, 4, 250.0) if each.fault.kind in ("kill", "crash", "clock")]
    return Case(seed, job(servers, role("d")), tuple(sorted((*own, *others), key=lambda each: each.at)))


def test_drawn_schedules_of_weights_break_no_law() -> None:
    told: Counter[str] = Counter()
    for seed in range(SEEDS):
        made = Driver(case(seed), pace=PACE)
        assert made.run().problems == (), seed
        told.update({note.reason for _, note in made.world.notes})
    assert told[reasons.WEIGHTS_STALE] > SEEDS / 4, "loads fail"
    assert told[reasons.WEIGHTS_LOADED] > SEEDS / 4, "and go well later"
    assert told[reasons.RESTARTING] > SEEDS / 4, "ranks restart meanwhile"


@pytest.mark.parametrize("bug", [planted_bugs.loads_all_at_once, planted_bugs.serves_old_weights])
def test_drawn_schedules_of_weights_find_planted_bugs(
    bug: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    found = (Driver(case(seed), pace=PACE).run().problems for seed in range(SEEDS))
    assert any(problem.startswith("weights: ") for problems in found for problem in problems)
