"""Admission of DLJobs: what is refused with which words, and what an edit of a running job is said to do."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from reconcile_kit import SETTINGS, dljob
from ruamel.yaml import YAML

from dljob.raycluster.pod_security import PodPolicy
from dljob.reconcile.admission import Admission, answered, problems, review, unjudged, waiting

REFUSED = Path(__file__).parents[2] / "golden/refused"
RUNS = {"submissionId": "hello-1", "attempt": 2}
ALLOWED = Admission(allowed=True)
HOST_PID = {"template": {"spec": {"hostPID": True}}}


def create(**spec: Any) -> Admission:
    return review({"operation": "CREATE", "object": dljob(**spec)}, SETTINGS)


def update(old: dict[str, Any], new: dict[str, Any], settings: Any = SETTINGS, **status: Any) -> Admission:
    before, after = ({**dljob(**spec), "status": status} for spec in (old, new))
    return review({"operation": "UPDATE", "object": after, "oldObject": before}, settings)


@pytest.mark.parametrize("manifest", sorted(REFUSED.glob("*.yaml")), ids=lambda path: path.stem)
def test_bad_manifests_are_refused_with_the_path_of_each_problem(manifest: Path):
    body = YAML(typ="safe").load(manifest.read_text())
    answer = review({"operation": "CREATE", "namespace": "team", "object": body}, SETTINGS)
    assert not answer.allowed
    head, *lines = answer.message.splitlines()
    assert head.startswith(f"DLJob {body['metadata']['name']} has ")
    assert lines
    assert all(line.startswith(("  spec", "  metadata")) for line in lines)


def test_a_good_job_is_admitted_without_a_word():
    assert create() == ALLOWED


def test_all_problems_are_listed_to_a_bound():
    lines = create(env=[{"name": f"{at}A"} for at in range(42)]).message.splitlines()
    assert lines[0].startswith("DLJob hello has ")
    assert len(lines) == 42
    assert lines[-1].endswith("others")


def test_a_generated_name_is_admitted_within_its_length():
    job = dljob()
    job["metadata"] = {"generateName": "train-"}
    assert review({"operation": "CREATE", "namespace": "team", "object": job}, SETTINGS) == ALLOWED
    job["metadata"] = {"generateName": "x" * 60}
    assert "metadata.name" in review({"operation": "CREATE", "namespace": "team", "object": job}, SETTINGS).message


@pytest.mark.parametrize("operation", ["DELETE", "CONNECT"])
def test_an_update_that_is_no_edit_is_not_judged(operation: str):
    assert review({"operation": operation, "object": dljob(roles=[])}, SETTINGS) == ALLOWED


LARGE = {"config": {"a": [{}] * 20_001}}


def test_a_spec_that_is_too_large_to_be_kept_is_refused_with_what_to_do():
    words = "spec: the spec has more than 20000 values (put large data into a file or a volume, and name that)"
    assert words in create(**LARGE).message
    assert words in update({}, LARGE).message


def test_an_edit_that_makes_a_large_spec_small_or_leaves_it_alone_is_admitted():
    assert update(LARGE, {}).allowed
    assert update(LARGE, LARGE).allowed
    assert update(LARGE, {**LARGE, "suspend": True}).allowed
    assert not update(LARGE, {"config": {"b": [{}] * 20_001}}).allowed


def test_a_status_a_finalizer_and_a_deletion_are_never_refused():
    bad = dljob(roles=[])
    assert (
        review({"operation": "UPDATE", "object": bad, "oldObject": bad, "subResource": "status"}, SETTINGS) == ALLOWED
    )
    freed = copy.deepcopy(bad)
    freed["metadata"]["finalizers"] = []
    assert review({"operation": "UPDATE", "object": freed, "oldObject": bad}, SETTINGS) == ALLOWED
    leaving = dljob(roles=[])
    leaving["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    assert review({"operation": "UPDATE", "object": leaving, "oldObject": dljob()}, SETTINGS) == ALLOWED


def test_a_stricter_policy_keeps_no_running_job_from_what_is_obeyed_at_once():
    loose = replace(SETTINGS, pods=PodPolicy("privileged"))
    assert update({}, {"head": HOST_PID}, loose).allowed
    assert update({"head": HOST_PID}, {"head": HOST_PID, "suspend": True}, **RUNS).allowed
    assert not update({"head": HOST_PID}, {"head": HOST_PID, "env": [{"name": "A", "value": "1"}]}, **RUNS).allowed
    refused = update({"head": HOST_PID}, {"head": HOST_PID, "activeDeadlineSeconds": -1}, **RUNS)
    assert "activeDeadlineSeconds" in refused.message


ROLE = dljob()["spec"]["roles"][0]
ELASTIC = {**ROLE, "type": "Elastic", "minReplicas": 1, "maxReplicas": 4}


def effects(old: dict[str, Any], new: dict[str, Any], **status: Any) -> list[str]:
    answer = update(old, new, **status)
    assert answer.allowed, answer.message
    assert all(len(one) <= 120 for one in answer.warnings)
    return list(answer.warnings)


WAITS = "attempt 2 goes on without it; the next attempt takes it"
AGAIN = "for a new attempt now: dljob suspend hello, then dljob resume"


def test_an_edit_is_told_to_wait_for_the_next_attempt_or_to_be_obeyed():
    new = {"roles": [{**ROLE, "args": ["--lr", "1"], "env": [{"name": "A", "value": "1"}]}], "head": {"cpu": "2"}}
    assert effects({}, {**new, "ttlSecondsAfterFinished": 60}, **RUNS) == [
        f"spec.roles[0].args: {WAITS}",
        f"spec.roles[0].env: {WAITS}",
        f"spec.head: {WAITS}",
        "spec.ttlSecondsAfterFinished: obeyed at once",
        AGAIN,
    ]


def test_a_part_is_named_by_what_changed_in_it():
    old = {"faultTolerance": {"leaseSeconds": 60, "maxClusterRestarts": 1}}
    new = {"faultTolerance": {"leaseSeconds": 60, "maxClusterRestarts": 2}}
    assert effects(old, new, **RUNS) == [f"spec.faultTolerance.maxClusterRestarts: {WAITS}", AGAIN]


def test_a_number_of_ranks_between_bounds_is_followed():
    more = [{**ELASTIC, "replicas": 3}]
    followed = "spec.roles[0].replicas: the running attempt follows, between its bounds"
    assert effects({"roles": [ELASTIC]}, {"roles": more}, **RUNS) == [followed]
    assert effects({"roles": [ROLE]}, {"roles": [{**ROLE, "replicas": 3}]}, **RUNS) == [
        f"spec.roles[0].replicas: {WAITS}",
        AGAIN,
    ]
    assert effects({"roles": [ROLE]}, {"roles": [ROLE, {**ROLE, "name": "more"}]}, **RUNS) == [
        f"spec.roles: {WAITS}",
        AGAIN,
    ]


def test_an_edit_before_anything_runs_needs_no_word():
    assert effects({}, {"roles": [{**ROLE, "args": ["x"]}]}) == []


def test_an_edit_after_the_end_changes_nothing_but_how_long_the_job_stays():
    ended = {**RUNS, "completionTime": "2027-01-15T08:00:00Z"}
    new = {"roles": [{**ROLE, "args": ["x"]}], "ttlSecondsAfterFinished": 60}
    assert effects({}, new, **ended) == ["spec.roles[0].args: the job has ended; this changes nothing"]


def test_an_edit_gets_at_most_ten_warnings():
    old = [{**ROLE, "name": f"w{at}"} for at in range(14)]
    new = [{**one, "args": ["x"]} for one in old]
    said = effects({"roles": old}, {"roles": new}, **RUNS)
    assert (len(said), said[-1]) == (10, "and 6 other edits")


def test_code_that_is_not_there_yet_is_asked_for():
    code = {"code": {"configMap": "train"}}
    answer = create(**code)
    assert (answer.allowed, answer.config_map) == (True, "train")
    said = "spec.code.configMap: no ConfigMap train in team yet; the pods wait for it"
    assert waiting(answer, "team").warnings == (said,)
    assert update(code, {**code, "ttlSecondsAfterFinished": 5}).config_map == ""


def test_a_job_that_could_not_be_judged_is_admitted_with_the_reason():
    answer = unjudged("it takes longer than 2 s")
    assert answer == Admission(
        allowed=True, warnings=("dljob: not checked as it was applied: it takes longer than 2 s",)
    )


def test_the_admission_answer_has_the_form_kubernetes_reads():
    good = answered("admission.k8s.io/v1", "u-1", Admission(allowed=True, warnings=("a",)))
    assert good["response"] == {"uid": "u-1", "allowed": True, "warnings": ["a"]}
    bad = answered("admission.k8s.io/v1", "u-1", Admission(allowed=False, message="no"))
    assert bad["response"]["status"] == {"code": 422, "reason": "Invalid", "message": "no"}
    assert (bad["apiVersion"], bad["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")


def test_a_job_that_fits_nowhere_is_a_problem_of_its_spec():
    role = {**ROLE, "resources": {"cpu": "64"}, "nodeGroup": "small"}
    (problem,) = problems(dljob(roles=[role], nodeGroups=[{"name": "small", "cpu": "2"}]), SETTINGS)
    assert problem.path == "spec.nodeGroups"
    assert "64 CPU" in problem.message
