"""What of a spec is accepted, and in whose words it is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from reconcile_kit import SETTINGS, UID, World, dljob
from ruamel.yaml import YAML

from dljob.errors import SpecError
from dljob.reconcile.admission import problems
from dljob.reconcile.state import accept, names
from dljob.reconcile.state.accept import Live, Refused, Terms, live, source
from dljob.reconcile.state.model import RayJobView
from dljob.spec.chosen_resources import ChosenResource
from dljob.spec.loading.load import load
from dljob.spec.rules import templates

REFUSED = Path(__file__).parents[3] / "golden/refused"
"""DLJobs that the operator refuses, the API server's schema some of them before."""


def terms(**spec: object) -> Terms | Refused:
    return accept.terms(accept.source(dljob(**spec)), SETTINGS)


def good(**spec: object) -> Terms:
    made = terms(**spec)
    assert isinstance(made, Terms), made
    return made


def test_a_small_jobs_accepted_terms_are_the_defaults():
    made = good()
    assert (made.image, made.ray_version) == ("example.org/ray:2.60.0", "2.60.0")
    assert made.roles == (("worker", 2),)
    assert (made.lease_seconds, made.queued, made.accelerators) == (30, False, "")
    assert live(source(dljob())) == Live(None, None, None, retain=False, max_cluster_restarts=3)


def test_accepted_terms_are_those_of_the_spec():
    said: dict[str, object] = {
        "image": "mine:1",
        "rayVersion": "2.60.1",
        "cleanupPolicy": "Retain",
        "ttlSecondsAfterFinished": 0,
        "activeDeadlineSeconds": 10,
        "preRunningDeadlineSeconds": 5,
        "faultTolerance": {"maxClusterRestarts": 0, "leaseSeconds": 60},
        "scheduling": {"queueName": "research"},
    }
    made = good(**said)
    assert (made.image, made.ray_version) == ("mine:1", "2.60.1")
    assert (made.lease_seconds, made.queued) == (60, True)
    assert live(source(dljob(**said))) == Live(10, 5, 0, retain=True, max_cluster_restarts=0)


def test_devices_are_those_of_all_machines():
    groups = [
        {"name": "npu", "replicas": 2, "cpu": "8", "accelerator": {"type": "NPU", "count": 8}},
        {"name": "gpu", "replicas": 1, "cpu": "8", "accelerator": {"type": "GPU", "count": 4}},
        {"name": "gpu2", "replicas": 1, "cpu": "8", "accelerator": {"type": "GPU", "count": 2}},
    ]
    assert good(nodeGroups=groups).accelerators == "6 GPU, 16 NPU"


def test_a_template_that_passes_the_rules_and_cannot_be_merged_makes_the_job_invalid(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(templates, "_KINDS", dict.fromkeys(templates._KINDS, lambda _: True))
    head = {"template": {"spec": {"tolerations": [7], "terminationGracePeriodSeconds": 60}}}
    refused = terms(head=head)
    assert isinstance(refused, Refused)
    assert refused.reason == "InvalidSpec"
    assert "its templates cannot be merged into a RayCluster" in refused.message
    assert [one.path for one in problems(dljob(head=head), SETTINGS)] == ["spec"]


def test_a_wrong_spec_is_refused_in_the_loaders_words():
    job = dljob(rolez=[])
    del job["spec"]["roles"]
    with pytest.raises(SpecError) as error:
        load(json.dumps({**job, "metadata": {"name": "hello"}}))
    made = accept.terms(accept.source(job), SETTINGS)
    assert isinstance(made, Refused)
    assert made.reason == "InvalidSpec"
    for problem in error.value.problems:
        assert f"{problem.path}: {problem.message}" in made.message


def test_a_spec_that_cannot_be_placed_is_refused_in_the_plans_words():
    role = {"name": "w", "entrypoint": {"class": "a.B"}, "resources": {"cpu": "64"}, "nodeGroup": "small"}
    made = terms(roles=[role], nodeGroups=[{"name": "small", "cpu": "2"}])
    assert isinstance(made, Refused)
    assert made.reason == "DoesNotFit"
    assert "\n" not in made.message
    assert "; add replicas or larger machines" in made.message
    assert "64 CPU" in made.message


def test_annotations_and_server_fields_are_no_part_of_the_spec_hash():
    plain, noisy = dljob(), dljob(annotations={"x" * 300: "y"})
    noisy["metadata"] |= {"managedFields": [{}], "resourceVersion": "7", "labels": None}
    assert accept.source(plain) == accept.source(noisy)


def test_the_spec_hash_covers_what_an_attempt_is_made_of():
    live = {"ttlSecondsAfterFinished": 9, "activeDeadlineSeconds": 9, "preRunningDeadlineSeconds": 9}
    assert good(**live, cleanupPolicy="Retain").hash == good().hash
    assert good(env=[{"name": "A", "value": "1"}]).hash != good().hash
    assert len(good().hash) == 16


def test_an_operator_with_other_defaults_begins_nothing_anew():
    world = World().settle()
    world.settings = replace(SETTINGS, image="another:1", version="0.1.9")
    assert world.settle().status["attempt"] == 1
    assert world.status["effective"]["image"] == "example.org/ray:2.60.0"


def test_a_refused_spec_waits_for_a_better_one():
    world = World(dljob(roles=[])).settle()
    assert (world.phase, world.status["reason"]) == ("Invalid", "InvalidSpec")
    assert world.cond("Accepted") == ("False", "InvalidSpec")
    assert world.message("ClusterReady") == "the spec is not accepted; condition Accepted says why"
    assert world.log == ["status Invalid/InvalidSpec"]
    world.job["spec"] = dljob()["spec"]
    world.job["metadata"]["generation"] = 2
    world.settle()
    assert world.cond("Accepted") == ("True", "SpecAccepted")
    assert world.status["observedGeneration"] == 2
    assert world.clusters


def test_a_change_that_the_running_attempt_does_not_take_up_is_said():
    world = World().running()
    world.job["spec"]["env"] = [{"name": "A", "value": "1"}]
    world.job["metadata"]["generation"] = 2
    world.settle()
    assert world.cond("Accepted") == ("True", "ChangeWaits")
    words = "attempt 1 goes on with the spec it began with; the change waits for the next attempt"
    assert (
        world.message("Accepted")
        == f"{words}, which begins when the job is suspended and resumed (dljob suspend hello)"
    )
    assert world.phase == "Running"
    world.new_session().calm()
    assert world.status["attempt"] == 2
    assert world.cond("Accepted") == ("True", "SpecAccepted")


@pytest.mark.parametrize("stage", ["refused by the server", "provisioning", "in the queue"])
def test_a_change_before_anything_ran_is_taken_up_under_new_names(stage: str):
    """The immutable ConfigMap of the old spec may be there: a RayCluster of the new spec must not mount it."""
    world = World().settle()
    if stage == "refused by the server":
        world.clusters.clear()
        world.job["status"]["rayCluster"].pop("uid")
    if stage == "in the queue":
        world.cluster["spec"]["suspend"] = True
        world.settle()
    world.job["spec"]["image"] = "mended:1"
    world.job["metadata"]["generation"] = 2
    before = len(world.events)
    world.step()
    assert (world.status["attempt"], world.status["reason"]) == (2, "SpecChanged")
    assert [event.reason for event in world.events[before:]] == ["SpecChanged"]
    world.settle()
    second = names.cluster_name("hello", UID, 2)
    assert list(world.clusters) == [second]
    assert "mended:1" in world.maps[f"{second}-spec"]["data"]["spec.json"]
    assert world.status["effective"]["image"] == "mended:1"
    assert world.status["restartsTotal"] == 0
    assert "lastFault" not in world.status
    assert "Recovering" not in [one["type"] for one in world.status["conditions"]]
    assert world.calm().phase == "Succeeded"
    assert world.submissions == [(f"hello-{UID[:8]}-2", "session-1" if stage[0] == "r" else "session-2")]


def test_a_change_while_kuberay_is_missing_costs_no_attempt():
    world = World(kuberay="missing").settle()
    world.job["spec"]["image"] = "mended:1"
    world.kuberay = ""
    world.settle()
    assert world.status["attempt"] == 1
    assert world.status["effective"]["image"] == "mended:1"


def test_a_change_that_is_obeyed_at_once_is_not_said_to_wait():
    world = World().running()
    world.job["spec"]["ttlSecondsAfterFinished"] = 5
    world.settle()
    assert world.cond("Accepted") == ("True", "SpecAccepted")


def test_a_spec_that_went_wrong_while_the_job_runs_stops_nothing():
    world = World().running()
    world.job["spec"]["roles"] = []
    world.job["metadata"]["generation"] = 2
    world.settle()
    assert world.cond("Accepted") == ("False", "InvalidSpec")
    assert world.phase == "Running"
    world.new_session().settle()
    assert world.status["attempt"] == 2
    assert world.clusters == {}
    assert (world.phase, world.status["reason"]) == ("Invalid", "InvalidSpec")
    assert world.status["startTime"], "the job ran: its deadline counts on"
    world.job["spec"] = dljob()["spec"]
    world.step()
    assert world.phase == "Recovering"
    assert world.calm().phase == "Succeeded"


def test_a_running_job_that_takes_an_edit_it_cannot_be_recovered_with_says_what_blocks_it():
    role = {**dljob()["spec"]["roles"][0], "type": "Elastic", "entrypoint": {"module": "train.py"}}
    machines = [{"name": "cpu", "replicas": 2, "cpu": "500m"}]
    world = World(dljob(roles=[role], nodeGroups=machines)).running()
    world.edit(roles=[{**role, "replicas": 3}]).settle()
    assert (world.phase, world.cond("Accepted")) == ("Running", ("False", "DoesNotFit"))
    world.new_session().settle()
    assert (world.phase, world.status["reason"], world.status["attempt"]) == ("Invalid", "DoesNotFit", 2)
    assert world.cond("Recovering") == ("True", "HeadLost")
    assert world.status["message"].startswith("the job does not fit on its nodeGroups")
    lost = "; attempt 1 is lost (HeadLost), and the next one begins when the spec is corrected"
    assert world.status["message"].endswith(lost)
    world.edit(roles=[role]).step()
    assert world.phase == "Recovering"
    assert (world.calm().phase, world.status["attempt"]) == ("Succeeded", 2)


def broken(**spec: object) -> World:
    """A job that runs, and whose spec was edited to something that cannot be accepted."""
    world = World(dljob(**spec)).running()
    world.edit(roles=[]).settle()
    assert (world.phase, world.cond("Accepted")) == ("Running", ("False", "InvalidSpec"))
    return world


@pytest.mark.parametrize("lost", [False, True])
def test_a_job_that_has_begun_keeps_its_deadline_though_its_spec_went_wrong(lost: bool):
    world = broken(activeDeadlineSeconds=600)
    if lost:
        world.new_session().settle()
        assert world.phase == "Invalid"
    world.now += 601
    world.settle()
    assert world.cond("Failed")[1] == "DeadlineExceeded"


def test_a_job_that_ran_is_not_ended_for_not_having_run_while_it_waits_for_a_better_spec():
    world = broken(preRunningDeadlineSeconds=60).new_session().settle()
    world.now += 601
    world.settle()
    assert (world.phase, world.cond("Recovering")) == ("Invalid", ("True", "HeadLost"))


def test_a_spec_that_went_wrong_gives_no_more_attempts_than_it_allows():
    world = broken(faultTolerance={"maxClusterRestarts": 0}).new_session().settle()
    assert world.cond("Failed") == ("True", "ClusterRestartsExhausted")


def test_a_spec_that_went_wrong_keeps_the_cluster_and_deletes_the_job_as_it_says():
    world = broken(cleanupPolicy="Retain", ttlSecondsAfterFinished=600)
    world.master("Succeeded").settle()
    assert (world.phase, len(world.clusters)) == ("Succeeded", 1)
    world.later(601).settle()
    assert world.job is None


@pytest.mark.parametrize("stage", ["provisioning", "in the queue", "the submission is not posted"])
def test_an_attempt_that_has_not_begun_is_invalid_with_its_spec_and_goes_on_with_a_better_one(stage: str):
    world = World(dljob(preRunningDeadlineSeconds=60)).settle()
    if stage == "in the queue":
        world.cluster["spec"]["suspend"] = True
    if stage == "the submission is not posted":
        world.head_ready().step()
        world.said = RayJobView(world.status["submissionId"], "MISSING")
    good = world.job["spec"]
    world.job["spec"] = {**good, "roles": []}
    world.job["metadata"]["generation"] = 2
    world.settle()
    assert (world.phase, world.status["reason"]) == ("Invalid", "InvalidSpec")
    world.now += 3600
    world.settle()
    assert (world.phase, "startTime" in world.status) == ("Invalid", False), "no deadline and no TTL counts"
    world.job["spec"] = good
    if stage == "in the queue":
        world.cluster["spec"]["suspend"] = False
    assert world.calm().phase == "Succeeded"


def test_an_invalid_job_is_stopped_by_its_annotation():
    world = World(dljob(roles=[])).settle()
    world.job["metadata"]["annotations"] = {names.STOP: "now"}
    assert world.settle().status["completionTime"]


@pytest.mark.parametrize("manifest", sorted(REFUSED.glob("*.yaml")), ids=lambda path: path.stem)
def test_manifests_that_only_the_operator_refuses_are_invalid_with_a_reason(manifest: Path):
    body = YAML(typ="safe").load(manifest.read_text())
    body["metadata"] |= {"namespace": "team", "uid": UID, "generation": 1}
    world = World(body).settle()
    assert world.phase == "Invalid"
    assert world.status["reason"] in ("InvalidSpec", "DoesNotFit", "ForbiddenPod")


def test_a_job_that_others_manage_is_left_alone():
    outcome = World(dljob(managedBy="kueue.x-k8s.io/multikueue")).look()
    assert (outcome.actions, outcome.status, outcome.watch, outcome.events) == ((), None, None, ())
    assert World(dljob(managedBy="dljob.io/operator")).look().actions


def test_choice_of_resources_is_no_edit_of_the_spec():
    roles = [{"name": "w", "entrypoint": {"class": "m.W"}, "resources": {"auto": {"cpu": {"min": "1", "max": "2"}}}}]
    job = dljob(roles=roles)
    choice = (ChosenResource("w", "cpu", "2", "why"),)
    before, after = (accept.blueprint(accept.source(job, chosen), SETTINGS) for chosen in ((), choice))
    assert before.hash == after.hash
    assert after.manifest.spec.roles[0].resources.cpu == "2"
    assert after.manifest.spec.roles[0].resources.auto is None
    assert before.plan.units != after.plan.units


def test_plan_of_a_very_large_spec_is_not_kept():
    text = accept.source(dljob())
    large = accept.source(dljob(config={"a": "x" * accept.USUAL}))
    assert accept.blueprint(text, SETTINGS) is accept.blueprint(text, SETTINGS)
    assert accept.blueprint(large, SETTINGS) is not accept.blueprint(large, SETTINGS)


def test_refusal_of_a_spec_that_is_wrong_in_thousands_of_places_is_cut():
    refused = terms(**{f"wrong{number}": 1 for number in range(2000)})
    assert isinstance(refused, Refused)
    assert len(refused.message) == accept.LONGEST
    assert refused.message.endswith(" ...")
