"""TensorFlow's tasks in a plan: their ports, who restarts with whom, and TF_CONFIG."""

from __future__ import annotations

import json

import pytest
from plan_kit import job, role

from dljob.cli.placement import render_plan
from dljob.master.start.assign import would_be_nodes
from dljob.plan.plan import plan
from dljob.plan.tensorflow import checksum, resharded, servers_of, tf_config


def task(name, count=1, **more):
    known = {"entrypoint": {"module": "a.py"}, "driver": name == "chief", "tf": {"task": name}}
    return role(name, count, **{**known, **more})


def roles(*more):
    return plan(job(task("chief"), task("ps", 2), task("worker", 2), task("evaluator"), *more)).roles


def test_each_task_has_its_port_its_environment_and_its_couplings():
    made = roles(role("other"))
    assert {name: (one.tf, one.ports, one.restart_with) for name, one in made.items()} == {
        "chief": ("chief", (("tf", 0),), ()),
        "ps": ("ps", (("tf", 0),), ("chief",)),
        "worker": ("worker", (("tf", 0),), ()),
        "evaluator": ("evaluator", (), ()),
        "other": ("", (), ()),
    }


def test_a_port_and_couplings_of_the_users_own_are_kept():
    servers = {"ports": [{"name": "tf", "port": 2222}], "restartPolicy": {"with": ["evaluator", "chief"]}}
    chief = task("chief", ports=[{"name": "board"}])
    made = plan(job(chief, task("ps", **servers), task("worker"), task("evaluator"))).roles
    assert made["ps"].ports == (("tf", 2222),)
    assert made["ps"].restart_with == ("evaluator", "chief")
    assert made["chief"].ports == (("board", 0), ("tf", 0))


def test_the_config_says_who_the_rank_is_and_where_all_tasks_listen():
    made = roles()
    cluster = {"worker": ["a:2", "b:2"], "chief": ["a:1"]}
    assert json.loads(tf_config(made["worker"], 1, cluster)) == {
        "cluster": {"chief": ["a:1"], "worker": ["a:2", "b:2"]},
        "task": {"type": "worker", "index": 1},
    }
    assert checksum(cluster) == checksum(dict(reversed(cluster.items())))
    assert checksum(cluster) != checksum({**cluster, "chief": ["a:3"]})


OPENS_FREE = "opens all free ports to the namespace for the Service of web, TensorFlow's too (give the port a number"


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"ports": [{"name": "http"}], "service": True}, f"does not close them: networkPolicy {OPENS_FREE}"),
        ({"ports": [{"name": "http", "port": 8080}], "service": True}, "closes them"),
        ({"ports": [{"name": "http"}]}, "closes them"),
        ({}, "closes them"),
    ],
)
def test_the_plan_tells_whether_a_network_policy_closes_the_servers(other, said):
    made = plan(job(task("chief"), task("ps"), task("worker"), role("web", **other)))
    assert f"; networkPolicy {said}" in render_plan(made, would_be_nodes(made), "table")


def test_the_plan_tells_of_a_task_whose_service_opens_its_server():
    worker = task("worker", ports=[{"name": "board", "port": 6006}], service=True)
    made = plan(job(task("chief"), task("ps"), worker))
    text = render_plan(made, would_be_nodes(made), "table")
    assert "does not close them: networkPolicy opens the port of TensorFlow to the namespace" in text


def test_the_number_of_servers_is_known_to_the_chief_alone():
    made = roles()
    cluster = {"chief": ["a:1"], "ps": ["a:2", "b:2"], "worker": ["a:3", "b:3"]}
    assert servers_of(tf_config(made["chief"], 0, cluster)) == 2
    assert servers_of(tf_config(made["worker"], 0, cluster)) == 0


@pytest.mark.parametrize("config", ["", "{", "[]", '{"cluster": {}}', '{"cluster": {"ps": 1}, "task": 2}'])
def test_a_config_of_somebody_elses_names_no_servers(config):
    assert servers_of(config) == 0


def test_a_checkpoint_of_another_number_of_servers_is_told_with_both_numbers():
    words = resharded(40, 1, 2)
    assert "the checkpoint of step 40 was written with 1 parameter server, and this attempt has 2" in words
    assert "replicas: 1 of the role of the ps reads it" in words
    assert [resharded(40, *numbers) for numbers in ((2, 2), (0, 2), (2, 0))] == ["", "", ""]
