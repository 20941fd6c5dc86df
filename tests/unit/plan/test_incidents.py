"""When faults of a file are due, and which incidents are laid to which of them."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dljob.plan.incidents import (
    FaultDecision,
    InjectedFault,
    Moment,
    ObservedFault,
    decisions,
    is_due,
    mismatch,
    report,
    sets,
    shares,
)
from dljob.plan.plan import plan
from dljob.spec.loading.faults import Expected, FaultTime, FileFault
from dljob.spec.loading.load import parse


def fault(target: str, kind: str = "kill", **more: Any) -> FileFault:
    return FileFault(when=FaultTime(step=1), target=target, fault=cast("Any", kind), **more)


def incident(
    target: str, at: float, *, cause: str = "Unknown", level: str = "Process", took: float = 1.0
) -> ObservedFault:
    return ObservedFault(cause, target, level, at, at + took)


@pytest.mark.parametrize(
    ("when", "now", "due"),
    [
        (FaultTime(time=5), Moment(), False),
        (FaultTime(time=5), Moment(seconds=4.9), False),
        (FaultTime(time=5), Moment(seconds=5.0), True),
        (FaultTime(step=3), Moment(), False),
        (FaultTime(step=3), Moment(step=2), False),
        (FaultTime(step=3), Moment(step=4), True),
        (FaultTime(event="Recovered", count=2), Moment(events={"Recovered": 1}), False),
        (FaultTime(event="Recovered", count=2), Moment(events={"Recovered": 2}), True),
        (FaultTime(event="Recovered"), Moment(), False),
    ],
)
def test_a_fault_is_due_by_step_time_or_event(when: FaultTime, now: Moment, due: bool) -> None:
    assert is_due(when, now) is due


def test_an_incident_is_of_the_latest_fault_that_it_is_about() -> None:
    strikes = [
        InjectedFault(0, fault("rollout/1"), 10.0),
        InjectedFault(1, fault("trainer"), 10.0),
        InjectedFault(2, fault("master"), 20.0),
        InjectedFault(3, fault("node/0", "stop"), 30.0),
    ]
    told = [
        incident("trainer", 10.1, level="RoleGroup"),
        incident("rollout/1", 10.2),
        incident("master", 20.4, level="Master"),
        incident("rollout/0", 20.5),
        incident("reward/0", 9.0),
        incident("reward/0", 31.0),
        incident("job", 32.0, level="Job"),
    ]
    found, unasked = shares(strikes, told)
    assert {number: [i.target for i in own] for number, own in found.items()} == {
        0: ["rollout/1", "rollout/0"],
        1: ["trainer"],
        2: ["master"],
        3: ["reward/0", "job"],
    }
    assert [i.target for i in unasked] == ["reward/0"]


def test_a_follow_up_incident_belongs_to_the_latest_fault() -> None:
    found, _ = shares(
        [InjectedFault(0, fault("a/0"), 1.0), InjectedFault(1, fault("master"), 2.0)], [incident("b/0", 3.0)]
    )
    assert [i.target for i in found[1]] == ["b/0"]


def test_an_outcome_that_differs_from_the_expected_one_is_named() -> None:
    told = [incident("a/0", 1.0), incident("b", 2.0, cause="NodeLost", level="Role")]
    assert mismatch(None, []) == ""
    assert mismatch(Expected(cause="NodeLost", target="b", level="Role"), told) == ""
    assert mismatch(Expected(level="Process"), told) == ""
    assert mismatch(Expected(cause="NodeLost", level="Process"), told) == (
        "expected cause NodeLost, level Process; the job reported Unknown of a/0 at level Process; "
        "NodeLost of b at level Role"
    )
    assert mismatch(Expected(target="a/1"), []) == "expected target a/1; the job reported nothing"


def test_a_kill_is_what_files_expect_that_were_written_before_killed_was() -> None:
    told = [incident("a/0", 1.0, cause="Killed")]
    assert mismatch(Expected(cause="Unknown", target="a/0", level="Process"), told) == ""
    assert mismatch(Expected(cause="Killed"), told) == ""
    assert mismatch(Expected(cause="Unknown", target="a/1"), told)
    assert mismatch(Expected(cause="UserError"), told)
    assert mismatch(Expected(cause="Killed"), [incident("a/0", 1.0)]), "what is not known may have been anything"


def test_the_report_lists_each_fault_with_its_outcome() -> None:
    faults = [fault("a/0"), fault("a/1", expect=Expected(cause="Hang")), fault("b"), fault("c", expect=Expected())]
    told = [incident("a/0", 11.0, took=0.25), ObservedFault("Unknown", "a/1", "Process", 12.5)]
    made = report(faults, [InjectedFault(0, faults[0], 10.5), InjectedFault(1, faults[1], 12.0)], told, 10.0)
    assert made["faults"] == [
        {
            "fault": "kill",
            "target": "a/0",
            "at": 0.5,
            "incidents": [{"cause": "Unknown", "target": "a/0", "level": "Process", "seconds": 0.25}],
            "problem": "",
            "met": True,
        },
        {
            "fault": "kill",
            "target": "a/1",
            "at": 2.0,
            "incidents": [{"cause": "Unknown", "target": "a/1", "level": "Process", "seconds": None}],
            "problem": "expected cause Hang; the job reported Unknown of a/1 at level Process",
            "met": False,
        },
        {"fault": "kill", "target": "b", "at": None, "incidents": [], "problem": "it was never injected", "met": True},
        {"fault": "kill", "target": "c", "at": None, "incidents": [], "problem": "it was never injected", "met": False},
    ]
    assert made["unasked"] == []
    assert sets(made)[:2] == [{("Unknown", "a/0", "Process")}, {("Unknown", "a/1", "Process")}]
    assert report(faults[:1], [InjectedFault(0, faults[0], 10.5)], (), None)["faults"][0]["at"] == 0.0


def test_decisions_name_cause_level_and_who_restarts_whatever_the_times() -> None:
    roles = [
        {"name": "a", "replicas": 2, "entrypoint": {"class": "m.A"}},
        {"name": "t", "replicas": 2, "replicasPerGroup": 2, "driver": False, "entrypoint": {"module": "t"}},
    ]
    head = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "j"}}
    job = plan(parse({**head, "spec": {"roles": roles}}))

    def of(*told: ObservedFault) -> list[FaultDecision]:
        made = report([fault("a/0")], [InjectedFault(0, fault("a/0"), 1.0)], told, 0.0)
        (found,) = decisions(made, job)
        return found

    assert of() == []
    assert of(incident("a/0", 2.0), incident("a/0", 3.0, cause="Killed")) == [
        FaultDecision("kill a/0", "Killed", "Process", ("a/0",))
    ]
    assert of(incident("t", 2.0, cause="Hang", level="RoleGroup"))[0].restarts == ("a group of t",)
    assert of(incident("t", 2.0, cause="Hang", level="Role"))[0].restarts == ("t/0", "t/1")
    assert of(incident("job", 2.0, level="Job"))[0].restarts == ("a/0", "a/1", "t/0", "t/1")
    assert of(incident("master", 2.0, level="Master"))[0].restarts == ("master",)
