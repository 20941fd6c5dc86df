"""Why pods end goes down to PrimeMaster: once, about the Ray node that the pod was, and only when it can hear it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from reconcile_kit import World, dljob

from dljob.reconcile.policies import evidence
from dljob.reconcile.state import names
from dljob.reconcile.state.model import Annotate, Command, Trouble, label

GROUPS = [{"name": "cpu", "cpu": "2", "replicas": 3}]
OOM = "OOMKilled: container ray-worker ended with exit code 137 (OOMKilled)"


def world(*ends: str, nodes: bool = True) -> World:
    """A running job whose workers end like that."""
    made = World(dljob(nodeGroups=GROUPS)).running().workers_ready(3, 3).settle()
    head, *workers = made.pods[made.name]
    for at, end in enumerate(ends):
        held = {names.RAY_NODE: f"ray-{at}"} if nodes else {}
        workers[at] = replace(workers[at], end=end, annotations=held)
    made.pods[made.name] = [head, *workers]
    return made


def told(made: World) -> list[tuple[str, str]]:
    return [(command.target, command.by) for command in made.commands if command.kind == "cause"]


def test_an_end_is_told_once_and_that_stands_on_the_pod():
    made = world(OOM).settle()
    assert told(made) == [("node/ray-0", f"{OOM} (pod {made.name}-w0)")]
    assert made.pods[made.name][1].annotations[names.TOLD]
    made.restarted().master()  # another operator, which took no command yet
    made.settle()
    assert len(told(made)) == 1


def test_an_end_is_told_with_the_kubernetes_node_of_the_pod():
    made = world(OOM)
    head, first, *others = made.pods[made.name]
    made.pods[made.name] = [head, replace(first, node="gpu-17"), *others]
    assert told(made.settle()) == [("node/ray-0", f"{OOM} (pod {made.name}-w0 on Kubernetes node gpu-17)")]


def test_an_operator_that_died_before_it_noted_it_tells_it_again_about_the_same_node():
    made = world(OOM)
    (command, noted) = made.look().actions
    assert (command.kind, noted.kind) == ("cause", "Pod")
    made.sent = (command.id,)
    assert made.look().actions == (noted,)


def test_another_end_of_the_same_pod_is_reported_too():
    made = world(OOM).settle()
    head, first, *others = made.pods[made.name]
    made.pods[made.name] = [head, replace(first, restarts=1), *others]
    assert len(told(made.settle())) == 2


def test_a_pods_end_is_reported_with_the_node_known_from_the_placement():
    made = world(OOM, nodes=False)
    place = {"pod": f"{made.name}-w0", "node": "ray-9", "units": ["worker/0"], "ranks": "worker/0"}
    made.view = replace(made.view, placement=(place,))
    assert [action.target for action in made.look().actions if isinstance(action, Command)] == ["node/ray-9"]


@pytest.mark.parametrize(
    "made", [world(OOM, nodes=False), world(""), world(OOM).silent(3.0)], ids=["no node", "no end", "nobody hears"]
)
def test_pods_that_end_in_order_are_not_reported(made: World):
    assert not any(isinstance(action, Command) for action in made.look().actions)


def test_the_heads_end_is_not_told():
    made = world()
    head, *workers = made.pods[made.name]
    made.pods[made.name] = [replace(head, end=OOM, annotations={names.RAY_NODE: "ray-h"}), *workers]
    assert told(made.settle()) == []


def test_an_older_gateway_knows_no_such_command_and_the_job_goes_on():
    made = world(OOM)
    command = made.look().actions[0]
    made.troubles = (Trouble(label(command), 400, "there is no command 'cause'; there are restart and stop", 1),)
    assert [type(action) for action in made.look().actions] == [Annotate]


def test_a_restart_of_that_name_that_was_refused_keeps_nothing_from_being_told():
    made = world(OOM)
    made.troubles = (Trouble("Command restart/cause/1", 400, "the job has no 'cause'; targets are job", 1),)
    assert [type(action) for action in made.look().actions] == [Command, Annotate]


def test_many_pod_ends_are_reported_in_portions(monkeypatch):
    monkeypatch.setattr(evidence, "PODS_A_PASS", 2)
    made = world(OOM, "Evicted: the node was low on resource", "x" * 400)
    assert (len(made.look().actions), made.look().postponed) == (4, 1)
    made.settle()
    assert len(told(made)) == 3
    assert max(len(words) for _, words in told(made)) == evidence.SIZE
