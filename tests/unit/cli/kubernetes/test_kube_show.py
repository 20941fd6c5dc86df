"""What is shown of a DLJob, as golden texts. Regenerate with `UPDATE_GOLDEN=1 python -m pytest tests/unit/cli`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dljob.api.kubernetes import views
from dljob.cli import description, output, timeline
from dljob.cli.commands.observe import status
from dljob.cli.kubernetes.run import code_of, outcome, shown_ranks

GOLDEN = Path(__file__).parents[3] / "golden" / "kubernetes"
NOW = 1767225600.0 + 3600  # 2026-01-01T01:00:00Z
LATE = "2026-01-01T00:59:30Z"
META = {
    "name": "ppo",
    "namespace": "team",
    "uid": "3f2a91c4-0000-4000-8000-000000000000",
    "creationTimestamp": "2026-01-01T00:00:00Z",
}
SPEC = {"roles": [{"name": "actor", "replicas": 8}, {"name": "critic"}]}


def condition(
    type_: str, status: str, reason: str, message: str = "", at: str = "2026-01-01T00:01:00Z"
) -> dict[str, Any]:
    return {"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}


TIMES = {"time": "2026-01-01T00:59:00Z", "stepTime": "2026-01-01T00:58:58Z", "secondsPerStep": 0.4}
RUNNING: dict[str, Any] = {
    "phase": "Recovering",
    "reason": "DeviceError",
    "message": "actor/3: device error, level Process",
    "attempt": 2,
    "startTime": "2026-01-01T00:00:05.000Z",
    "rayCluster": {"name": "ppo-1a2b3", "headPod": "ppo-1a2b3-head-x7k2p"},
    "effective": {"image": "example/ppo:2.60.0", "rayVersion": "2.60.0"},
    "roles": [
        {"name": "actor", "desired": 8, "ready": 7, "running": 8, "succeeded": 0, "failed": 0, "restarts": 3},
        {"name": "critic", "desired": 1, "ready": 1, "running": 1, "succeeded": 0, "failed": 0, "restarts": 0},
    ],
    "rolesReady": "8/9",
    "restarts": {"process": 2, "roleGroup": 1, "role": 0, "job": 0, "master": 0, "cluster": 1},
    "restartsTotal": 4,
    "recentFaults": [
        {"level": "RoleGroup", "target": "actor/1", "firstCause": "killed by signal 9",
         "detectedAt": "2026-01-01T00:30:00.000Z", "recoveredAt": "2026-01-01T00:30:02.500Z",
         "lostSteps": 7},
        {"level": "Process", "target": "actor/3", "firstCause": "device error", "detectedAt": "2026-01-01T00:59:58Z"},
    ],
    "progress": {**TIMES, "step": 120, "lastCheckpointStep": 100,
                 "metrics": [{"name": "reward", "value": "0.25"}, {"name": "kl", "value": "0.01"}]},
    "placement": {"units": 2, "ready": 1, "pending": 1,
                  "notReady": [{"name": "actor-0", "node": "n1", "why": "node n1 is not ready"}, {"name": "critic-0"}]},
    "endpoints": [{"role": "actor", "ready": 7, "desired": 8, "addresses": [
        {"http": f"10.0.0.{at}:24107", "grpc": f"10.0.0.{at}:24108"} for at in range(1, 7)
    ]}],
    "conditions": [
        condition("Accepted", "True", "SpecAccepted"),
        condition("ClusterReady", "True", "PodsReady", "3 of 3 pods are ready"),
        condition("MasterReady", "Unknown", "MasterUnreachable", "no answer\nfor 12 s " + "x" * 120, LATE),
    ],
}  # fmt: skip
FAILED: dict[str, Any] = {
    "phase": "Failed", "reason": "UserErrorRepeats", "message": "actor/0: ValueError: bad", "attempt": 1,
    "startTime": "2026-01-01T00:00:10Z", "completionTime": "2026-01-01T00:02:10Z",
    "roles": [{"name": "actor", "desired": 8, "ready": 0, "running": 0, "succeeded": 0, "failed": 1, "restarts": 1}],
    "rolesReady": "0/9", "restarts": {"process": 1, "roleGroup": 0}, "restartsTotal": 1,
}  # fmt: skip
JOBS: dict[str, dict[str, Any]] = {
    "unseen": {"metadata": META, "spec": SPEC},
    "refused": {
        "metadata": META,
        "spec": SPEC,
        "status": {
            "phase": "Failed",
            "reason": "InvalidSpec",
            "message": "spec.roles[0].dependsOn: a circle: actor, critic",
            "conditions": [condition("Accepted", "False", "InvalidSpec", "spec.roles[0].dependsOn: a circle")],
        },
    },
    "recovering": {"metadata": META, "spec": SPEC, "status": RUNNING},
    "failed": {"metadata": {**META, "deletionTimestamp": "2026-01-01T00:03:00Z"}, "spec": SPEC, "status": FAILED},
}


def compare(name: str, shown: str) -> None:
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(shown)
    assert shown == file.read_text()


@pytest.mark.parametrize("name", JOBS)
def test_a_job_is_shown_in_full_as_recorded(name):
    compare(f"status-{name}", "\n".join(description.detail(views.overview(JOBS[name]), NOW, "dljob events j")) + "\n")


@pytest.mark.parametrize("namespaced", [False, True])
def test_the_list_of_jobs_is_shown_as_recorded(namespaced):
    text = (
        "\n".join(
            output.aligned(status.rows([views.summary(job) for job in JOBS.values()], NOW, namespaced=namespaced))
        )
        + "\n"
    )
    compare(f"list{'-all' if namespaced else ''}", text)


@pytest.mark.parametrize(
    ("phase", "age", "told"),
    [
        ("Running", 21.0, ""),  # the operator writes progress at most every 15 s
        ("Running", 23.0, ", 23 s ago (usually every 0.4 s)"),
        ("Suspended", 90.0, ""),
        ("Failed", 90.0, ""),
    ],
)
def test_a_step_that_stands_still_is_told_of_jobs_that_run(phase, age, told):
    job = {"metadata": META, "spec": SPEC, "status": {**RUNNING, "phase": phase}}
    shown = next(
        line
        for line in description.detail(views.overview(job), NOW - 62 + age, "dljob events j")
        if line.startswith("  step")
    )
    assert shown == f"  step 120{told}, saved 100  reward 0.25  kl 0.01"


def test_data_has_a_phase_before_any_status():
    assert views.data(JOBS["unseen"]) == {"name": "ppo", "namespace": "team", "uid": META["uid"], "phase": "Pending"}
    assert views.data(JOBS["failed"])["reason"] == "UserErrorRepeats"


def test_the_local_shape_is_what_the_progress_of_local_runs_draws():
    local = views.as_local(JOBS["recovering"])
    assert local["progress"] == {"step": 120, "metrics": {"reward": 0.25, "kl": 0.01}, **TIMES}
    assert local["restarts"]["role group"] == 1
    assert local["seconds"] is None
    assert views.as_local(JOBS["failed"])["seconds"] == 120.0


def test_a_metric_that_is_no_number_is_left_out():
    job = {"metadata": META, "status": {"progress": {"step": 1, "metrics": [{"name": "a", "value": "x"}]}}}
    assert views.as_local(job)["progress"]["metrics"] == {}


@pytest.mark.parametrize(
    ("phase", "reason", "code"),
    [
        ("Succeeded", "Completed", 0),
        ("Failed", "UserErrorRepeats", 1),
        ("Failed", "DeadlineExceeded", 5),
        ("Failed", "PreRunningDeadlineExceeded", 5),
        ("Stopped", "StoppedByUser", 6),
    ],
)
def test_the_exit_code_is_the_jobs_fate(phase, reason, code):
    assert code_of({"phase": phase, "reason": reason}) == code


def test_the_outcome_of_a_failed_job_says_why():
    made = outcome(JOBS["failed"])
    assert (made["phase"], made["reason"], made["seconds"]) == ("Failed", "UserErrorRepeats", 120.0)
    assert "reason" not in outcome({"metadata": META, "status": {**FAILED, "phase": "Succeeded"}})


def test_the_outcome_counts_cuts_where_there_are_any():
    assert "cuts" not in outcome(JOBS["failed"])
    cuts = {"committed": 2, "last": 2}
    assert outcome({"metadata": META, "status": {**FAILED, "cuts": cuts}})["cuts"] == cuts


def test_of_large_jobs_rank_0_of_each_role_is_shown():
    small, nothing = shown_ranks(JOBS["unseen"])
    assert len(small) == 9
    assert nothing == ""
    large, word = shown_ranks({"metadata": META, "spec": {"roles": [{"name": "a", "replicas": 500}, {"name": "b"}]}})
    assert large == [("a", 0), ("b", 0)]
    assert "of 501 ranks, rank 0 of each role" in word


def test_an_event_says_when_it_is_a_warning_and_how_often():
    note = {
        "time": 130.0,
        "type": "Warning",
        "reason": "HeadLost",
        "target": "job",
        "message": "gone\nagain",
        "count": 3,
    }
    assert timeline.line(note, 100.0) == "    30.0s  HeadLost           job            Warning: gone again (x3)"
