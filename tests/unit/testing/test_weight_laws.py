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
PACE = Durations(work=(300.0, 400.0), total=900.0)


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


def cut_case(seed: int) -> Case:
    """Servers and a trainer that takes cuts, dies, and goes back to the last one."""
    rng = chance(f"left weights {seed}")
    weights = {"channels": ["policy"], "load": {"method": "load"}, "maxLag": 9, "minReady": 1}
    servers = role("s", rng.randint(2, 3), driver=False, weights=weights)
    trainer = role("d", restartPolicy={"maxRestarts": 50})
    # Often, since a trainer restores as soon as it is there.
    own = [Timed(float(at), FaultMove("go back")) for at in range(1, 150)]
    for kind, least, most in (("publish", 10, 20), ("take cut", 6, 12), ("bad load", 0, 3)):
        own += [Timed(rng.uniform(3.0, 140.0), FaultMove(kind)) for _ in range(rng.randint(least, most))]
    for end in (rng.uniform(20.0, 140.0) for _ in range(rng.randint(3, 6))):
        own.append(Timed(end, FaultMove("kill", text="d/0")))
        # Of these some are told, and some are loaded, only when the next trainer has gone back.
        own += [Timed(end - rng.uniform(0.0, 0.5), FaultMove("publish", value=rng.choice((0, 9)))) for _ in range(4)]
    others = [each for each in draw(rng, 3, 140.0) if each.fault.kind in ("kill", "crash")]
    return Case(seed, job(servers, trainer), tuple(sorted((*own, *others), key=lambda each: each.at)))


def test_drawn_schedules_of_cuts_serve_no_weights_of_left_steps() -> None:
    told: Counter[str] = Counter()
    for seed in range(SEEDS):
        made = Driver(cut_case(seed), pace=PACE)
        assert made.run().problems == (), seed
        told.update(note.reason for _, note in made.world.notes)
    assert told[reasons.CUT_RESTORED] > SEEDS
    assert told[reasons.WEIGHTS_STALE] > SEEDS


@pytest.mark.parametrize(
    "bug",
    [
        planted_bugs.serves_weights_of_left_steps,
        planted_bugs.takes_weights_of_left_steps_that_are_told_late,
        planted_bugs.takes_a_load_for_good_that_was_under_way_at_a_restore,
    ],
)
def test_drawn_schedules_of_cuts_find_planted_bugs(bug: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    found = (Driver(cut_case(seed), pace=PACE).run().problems for seed in range(SEEDS))
    assert any("of steps that were left" in problem for problems in found for problem in problems)


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
