"""The five faults files of tests/chaos, their job, and the decisions that a simulated job makes about them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from dljob.plan.incidents import FaultDecision, decisions
from dljob.plan.model import JobPlan
from dljob.plan.plan import plan
from dljob.plan.targets import load_faults
from dljob.spec.loading.load import parse
from dljob.testing.simulate.scenario import Scenario

TESTS = Path(__file__).resolve().parents[1]
CHAOS = TESTS / "chaos"
FILES = tuple(CHAOS / f"{name}.yaml" for name in ("processes", "operator", "network", "pods", "nodes"))
"""In the order in which one job takes them: the last two take nodes away."""
JOB = CHAOS / "job.yaml"
USER = TESTS / "ray" / "users" / "faults_user.py"


def manifest() -> dict[str, Any]:
    """Return the DLJob of the five files."""
    body: dict[str, Any] = yaml.safe_load(JOB.read_text())
    return body


def planned() -> JobPlan:
    """Return its plan."""
    return plan(parse(manifest()))


def simulated(file: Path) -> list[list[FaultDecision]]:
    """Return what a simulated job decides about a file; each expectation of the file is met."""
    told = Scenario(manifest(), load_faults(file, planned())).play()
    assert all(row["met"] for row in told["faults"]), told
    assert told["problems"] == [], told
    return decisions(told, planned())


def compare(inject: Callable[[Path], str]) -> None:
    """Inject each file by a command that prints its report, and compare the decisions with the simulator's."""
    for file in FILES:
        told: Mapping[str, Any] = json.loads(inject(file))
        print(file.stem, json.dumps(told))
        assert told["unasked"] == [], file
        assert [row["problem"] for row in told["faults"]] == [""] * len(told["faults"]), file
        assert decisions(told, planned()) == simulated(file), file
