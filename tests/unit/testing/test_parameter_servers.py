"""A job of CPU workers and parameter servers in small: machines that are preempted, and those that come back."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from dljob.cli import main
from dljob.plan.plan import plan
from dljob.spec.model import DLJobManifest
from dljob.testing.simulate import drive
from dljob.testing.simulate.parameter_servers import PER_NODE, SHARE, ZONE, Servers, manifest, mix, run
from dljob.testing.simulate.spot import ZONES
from dljob.testing.world import invariants
from dljob.testing.world.fault_schedule import chance

SMALL = Servers(workers=320, ps=32, days=6.0, seed=2)


def test_small_job_outlives_its_preemptions() -> None:
    """Every law holds, the job ends well, and restarts stay within the processes of lost machines."""
    found = run(SMALL)
    assert (found["phase"], found["problems"], found["ranks"]) == ("Succeeded", [], 353)
    assert found["faults"]["preempted"] > 20
    assert found["restarts"]["Node"] > 20
    assert not {"Role", "Job"}.intersection(found["restarts"])
    assert found["simulatedDays"] >= SMALL.days


def test_preemptions_come_at_the_rates_of_the_trace() -> None:
    """As many a machine-hour as counted, each followed by a machine that comes after the mean time away."""
    size = Servers(workers=16_000, ps=640, days=30.0)
    told = list(mix(size, chance("rates")))
    count, there_s, away_s = ZONES[ZONE]
    kinds = Counter(cause for cause, _ in told)
    expected = size.machines * SHARE * size.days * 86400 * count / there_s
    assert kinds["preempted"] == kinds["back"] == pytest.approx(expected, rel=0.05)
    waits = [back.at - gone.at for (_, gone), (_, back) in zip(told[::2], told[1::2], strict=True)]
    assert sum(waits) / len(waits) == pytest.approx(away_s / count, rel=0.05)


def test_machines_hold_all_processes_and_those_that_are_away() -> None:
    """Each process has four CPUs, sixteen share a machine, and more machines than needed cover the absent ones."""
    made = plan(DLJobManifest.model_validate(manifest(SMALL)))
    (group,) = made.node_groups.values()
    assert group.replicas > SMALL.machines + SMALL.away
    assert SMALL.machines == 320 // PER_NODE + 32 // PER_NODE + 1
    assert {dict(unit.demand)["CPU"] for unit in made.units.values()} == {4 * 10_000, 64 * 10_000}


def test_command_simulates_one_ps_for_25_workers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["sim", "--workers", "50", "--days", "0.5", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ranks"], found["machines"], found["problems"]) == (53, 6, [])


@pytest.mark.parametrize(
    "words", [["--workers", "0"], ["--workers", "5", "--ps", "0"], ["--workers", "5", "--days", "0"]]
)
def test_impossible_sizes_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["sim", *words]) == 2
    assert "all three are above 0" in capsys.readouterr().err


def test_journal_is_replayed_and_dropped_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal of weeks would fill the memory: it is kept up to a number of events, and still each is replayed."""
    monkeypatch.setattr(drive, "SWEEP_EVERY", 50)
    monkeypatch.setattr(drive, "KEPT_EVENTS", 100)
    replayed: list[int] = []
    really = invariants.replayed
    monkeypatch.setattr(
        invariants, "replayed", lambda w, **how: replayed.append(len(w.journal) - w.base_at) or really(w, **how)
    )
    found = run(Servers(workers=64, ps=16, days=3.0))
    assert (found["phase"], found["problems"]) == ("Succeeded", [])
    assert sum(replayed) == found["events"] > 200
    assert max(replayed) < 200
