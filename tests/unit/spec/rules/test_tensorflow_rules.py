"""What is refused of TensorFlow's tasks, and what is warned of."""

from __future__ import annotations

from typing import Any

import pytest
from cel_cases import job, task

from dljob.errors import SpecError
from dljob.spec.loading.load import parse
from dljob.spec.rules.tensorflow import tensorflow_warnings

CLUSTER = (task("chief"), task("ps"), task("worker"))
OTHER = {"name": "other", "entrypoint": {"class": "a.B"}}


def problems(*roles: dict[str, Any], **spec: Any) -> list[str]:
    try:
        parse(job({"roles": list(roles), **spec}))
    except SpecError as error:
        return [f"{problem.path}: {problem.message} ({problem.hint})" for problem in error.problems]
    return []


def test_a_cluster_may_have_an_evaluator_that_waits_for_its_chief() -> None:
    evaluator = task("evaluator", dependsOn=[{"role": "chief"}])
    assert problems(*CLUSTER, evaluator, OTHER) == []


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        ((*CLUSTER, {**task("chief"), "name": "second"}), "roles[3].tf.task: chief is the chief already"),
        ((*CLUSTER, {**task("ps"), "name": "second"}), "(give ps more replicas)"),
        ((task("chief", replicas=2), *CLUSTER[1:]), "roles[0].replicas: a TensorFlow cluster has one chief"),
        ((*CLUSTER[1:], OTHER), "roles[0].tf: ps is a task of a TensorFlow cluster, which has no chief"),
        ((CLUSTER[0], CLUSTER[2]), "which has no ps (give the role of the ps tf: {task: ps})"),
        (CLUSTER[:2], "which has no worker"),
        (
            (*CLUSTER[:2], task("worker", entrypoint={"class": "a.B"})),
            "and a fixed number of ranks: worker runs a class",
        ),
        ((*CLUSTER[:2], task("worker", type="Elastic")), "worker is Elastic"),
        ((task("chief", reserve="Quota"), *CLUSTER[1:]), "chief has a quota"),
        ((*CLUSTER[:2], task("worker", maxReplicas=2)), "its number changes (to change replicas, suspend the job)"),
        ((*CLUSTER[:2], task("worker", driver=True)), "roles[2].tf.task: a TensorFlow cluster has one chief, and its"),
        ((task("chief", dependsOn=[{"role": "ps"}]), *CLUSTER[1:]), "chief and ps wait for each other's addresses"),
        (
            (task("chief", env=[{"name": "TF_CONFIG", "value": "{}"}]), *CLUSTER[1:]),
            "roles[0].env[0].name: dljob writes",
        ),
    ],
)
def test_what_is_no_cluster_is_refused_with_a_remedy(roles: tuple[dict[str, Any], ...], said: str) -> None:
    (problem,) = problems(*roles)
    assert said in problem


def test_a_config_of_the_users_own_is_refused_for_the_whole_job_only_where_there_are_tasks() -> None:
    env = [{"name": "MODE", "value": "x"}, {"name": "TF_CONFIG", "value": "{}"}]
    (problem,) = problems(*CLUSTER, env=env)
    assert problem.startswith("spec.env[1].name: dljob writes TF_CONFIG for roles with tf")
    assert problems({"name": "own", "entrypoint": {"module": "a.py"}}, env=env) == []


def test_open_servers_are_warned_of_until_a_network_policy_closes_them() -> None:
    spec = parse(job({"roles": list(CLUSTER)})).spec
    (warning,) = tensorflow_warnings(spec)
    assert "have no authentication" in warning.message
    closed = parse(job({"roles": list(CLUSTER), "networkPolicy": {"enabled": True}})).spec
    plain = parse(job({"roles": [OTHER]})).spec
    assert [*tensorflow_warnings(closed), *tensorflow_warnings(plain)] == []


@pytest.mark.parametrize(("port", "service", "told"), [(0, True, 1), (8080, True, 0), (0, False, 0)])
def test_a_service_at_a_free_port_that_opens_the_servers_is_warned_of(port: int, service: bool, told: int) -> None:
    web = {**OTHER, "ports": [{"name": "http", "port": port}], "service": service}
    spec = parse(job({"roles": [*CLUSTER, web], "networkPolicy": {"enabled": True}})).spec
    found = [*tensorflow_warnings(spec)]
    assert len(found) == told
    for one in found:
        assert one.loc == ("spec", "roles", 3, "ports", 0)
        assert "opens all free ports to the namespace for the Service of other, TensorFlow's too" in one.message


@pytest.mark.parametrize(("name", "port"), [("tf", 2222), ("board", 6006)])
def test_a_service_of_a_task_opens_its_server_whatever_the_ports_are(name: str, port: int) -> None:
    chief = task("chief", ports=[{"name": name, "port": port}], service=True)
    spec = parse(job({"roles": [chief, *CLUSTER[1:]], "networkPolicy": {"enabled": True}})).spec
    (warning,) = tensorflow_warnings(spec)
    assert warning.loc == ("spec", "roles", 0, "service")
    assert "opens the port of TensorFlow to the namespace for the Service of chief" in warning.message
    assert warning.hint.startswith("take service out")
