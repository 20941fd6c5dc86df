"""Seeds that break no law; what breaks one is found, cut down, and happens again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dljob.master.failure import restart
from dljob.master.start import starting
from dljob.master.state.evolve import evolve
from dljob.master.state.state import HostPhase
from dljob.spec.loading.load import load_file
from dljob.testing.simulate import report
from dljob.testing.simulate.drive import case_of, shrink, simulate, without
from dljob.testing.world.fault_schedule import Timed
from dljob.testing.world.model import FaultMove
from dljob.testing.world.state import EPOCH_S

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "grpo-tiny" / "dljob.yaml"
CASES = ROOT / "tests" / "replay" / "cases"


def example():
    return load_file(EXAMPLE).model_dump(mode="json", by_alias=True, exclude_none=True)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_small_jobs_break_no_law_whatever_goes_wrong(part):
    found = report.many(range(part * 60, part * 60 + 60))
    assert found["failures"] == []
    assert found["seeds"] == 60


@pytest.mark.slow
def test_the_main_example_breaks_no_law():
    found = report.many(range(60), example())
    assert found["failures"] == []
    assert any(end.startswith("Succeeded") for end in found["ends"])


def test_a_clock_that_is_set_back_makes_no_negative_time():
    story = replace(case_of(3), faults=(Timed(0.0, FaultMove("clock", value=-86_400.0)),))
    result = simulate(story)
    assert result.world is not None
    assert result.world.known.ended_at < EPOCH_S
    assert result.seconds == pytest.approx(simulate(replace(story, faults=())).seconds, abs=60)


def test_the_same_seed_is_the_same_story_in_another_process():
    program = "print(json.dumps(report.report_case(drive.case_of(3))))"
    text = f"import json; from dljob.testing.simulate import drive, report; {program}"
    told = {
        subprocess.run(
            [sys.executable, "-c", text],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(told) == 1
    assert json.loads(told.pop())["trace"]


def _spared(d, host):
    """A kill that is forgotten."""
    own = d.hosts[host]
    if own.phase is not HostPhase.DOWN:
        d.set_host(host, evolve(own, phase=HostPhase.DOWN, pid=0, address=""))


def test_a_forgotten_kill_is_found_and_cut_down_to_what_it_takes(monkeypatch):
    monkeypatch.setattr(restart, "kill_host", _spared)
    failures = report.many(range(40))["failures"]
    assert failures
    for failure in failures[:3]:
        assert failure["problems"][0].startswith("two")
        least = report.load(json.loads(json.dumps(failure["case"])))
        assert simulate(least).problems == tuple(failure["problems"])
        assert len(least.faults) < len(case_of(least.seed).faults)
    assert min(len(failure["case"]["faults"]) for failure in failures) == 1


def test_a_dependency_that_nobody_waits_for_is_found(monkeypatch):
    monkeypatch.setattr(starting, "are_dependencies_met", lambda d, role: True)
    failures = report.many(range(12))["failures"]
    assert any(failure["problems"][0].startswith("dependency") for failure in failures)


def test_shrinking_leaves_out_what_is_not_needed():
    case = case_of(6)
    assert len(case.faults) > 4
    needed = (case.faults[1], case.faults[-1])
    least = shrink(case, lambda tried: all(fault in tried.faults for fault in needed))
    assert least.faults == needed
    assert without(case, frozenset(range(len(case.faults)))).faults == ()


def test_a_case_survives_its_file():
    case = case_of(11)
    assert report.load(json.loads(json.dumps(report.dump(case)))) == case


@pytest.mark.parametrize("path", sorted(CASES.glob("*.json")), ids=lambda path: path.stem)
def test_a_case_that_broke_a_law_once_breaks_none_any_more(path):
    assert simulate(report.load(json.loads(path.read_text()))).problems == ()
