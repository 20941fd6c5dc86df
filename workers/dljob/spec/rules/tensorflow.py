"""The rules about `roles[].tf`: one chief, servers of fixed number that start together, and nobody else's TF_CONFIG."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dljob.spec import cel
from dljob.spec.model import DLJobSpec, Role
from dljob.spec.rules.findings import ROLE_NAMES, Check, Finding
from dljob.spec.text.tree import Loc


def _tasks(spec: DLJobSpec) -> Iterator[tuple[int, Role, str]]:
    for index, role in enumerate(spec.roles):
        if role.tf is not None:
            yield index, role, role.tf.task


def _cluster(spec: DLJobSpec) -> Iterator[Finding]:
    first: dict[str, tuple[int, str]] = {}
    for index, role, task in _tasks(spec):
        loc: Loc = ("spec", "roles", index, "tf", "task")
        if task in first:
            at, name = first[task]
            words = f"{name} is the {task} already: TF_CONFIG has one list of addresses for each task"
            hint = "a cluster has one chief" if task == "chief" else f"give {name} more replicas"
            yield Finding(loc, words, hint, (loc, ("spec", "roles", at, "tf", "task")))
        first.setdefault(task, (index, role.name))
    for task in ("chief", "ps", "worker"):
        if first and task not in first:
            at, name = next(iter(first.values()))
            words = f"{name} is a task of a TensorFlow cluster, which has no {task}"
            hint, place = f"give the role of the {task} tf: {{task: {task}}}", ("spec", "roles", at, "tf")
            tasks = (("spec", "roles", number, "tf") for number in range(len(spec.roles)))
            yield Finding(place, words, hint, (ROLE_NAMES, *tasks))


def _roles(spec: DLJobSpec) -> Iterator[Finding]:
    for index, role, task in _tasks(spec):
        loc: Loc = ("spec", "roles", index)
        if reason := _unfit(role):
            keys = ("tf", "type", "entrypoint", "reserve", "minReplicas", "maxReplicas")
            reads = tuple((*loc, key) for key in keys)
            hint = "to change replicas, suspend the job" if "number" in reason else ""
            yield Finding((*loc, "tf"), f"{cel.TENSORFLOW.message}: {role.name} {reason}", hint, reads)
        reads = ((*loc, "tf"), (*loc, "replicas"), (*loc, "driver"))
        if task == "chief" and role.replicas != 1:
            words = f"{cel.TENSORFLOW_TASK.message}: {role.name} has {role.replicas} ranks"
            yield Finding((*loc, "replicas"), words, "leave replicas out", reads)
        if task != "chief" and role.driver:
            words = f"{cel.TENSORFLOW_TASK.message}: the job would wait for {role.name}, a server, to end"
            yield Finding((*loc, "tf", "task"), words, "set driver: false", reads)


def _unfit(role: Role) -> str:
    """Return why a role can be no task; empty if it can."""
    if role.entrypoint.class_ is not None:
        return "runs a class"
    if role.type != "Actor":
        return "is Elastic"
    if role.reserve == "Quota":
        return "has a quota"
    bounds = (role.min_replicas, role.max_replicas)
    return "" if bounds == (None, None) else "has minReplicas or maxReplicas, so its number changes"


def _start(spec: DLJobSpec) -> Iterator[Finding]:
    members = {role.name for _, role, task in _tasks(spec) if task != "evaluator"}
    for index, role, task in _tasks(spec):
        for at, dependency in enumerate(role.depends_on):
            if dependency.role in members and task != "evaluator":
                loc: Loc = ("spec", "roles", index, "dependsOn", at)
                words = f"{role.name} and {dependency.role} wait for each other's addresses, so they start together"
                yield Finding(loc, words, "leave it out", (loc, ("spec", "roles", index, "tf")))


def _config(spec: DLJobSpec) -> Iterator[Finding]:
    any_task = any(True for _ in _tasks(spec))
    places: list[tuple[Loc, str]] = [
        (("spec", "env", at), variable.name) for at, variable in enumerate(spec.env) if any_task
    ]
    for index, role, _ in _tasks(spec):
        places += [(("spec", "roles", index, "env", at), variable.name) for at, variable in enumerate(role.env)]
    for loc, name in places:
        if name == "TF_CONFIG":
            words = "dljob writes TF_CONFIG for roles with tf, with the addresses of the moment"
            yield Finding((*loc, "name"), words, "take it out, or take tf out of the roles")


TENSORFLOW_RULES: tuple[Check, ...] = (_cluster, _roles, _start, _config)


NO_AUTHENTICATION = "TensorFlow's servers have no authentication: whoever reaches their port can run code in them"
FIXED_PORT = "give the port a number below 20000"
NO_SERVICE = "take service out: tasks find each other by TF_CONFIG"


def opening(role: str, task: str, numbers: Iterable[int]) -> tuple[str, str]:
    """Return why the Service of a role lets the namespace reach TensorFlow's servers, and a remedy; empty if not.

    `task` is the role's own, empty without one; `numbers` are those of its ports, 0 for a free one.
    """
    if task not in ("", "evaluator"):
        return f"networkPolicy opens the port of TensorFlow to the namespace for the Service of {role}", NO_SERVICE
    if 0 in numbers:  # The policy cannot tell a free port of a Service from one of TensorFlow.
        words = f"networkPolicy opens all free ports to the namespace for the Service of {role}, TensorFlow's too"
        return words, FIXED_PORT
    return "", ""


def tensorflow_warnings(spec: DLJobSpec) -> Iterator[Finding]:
    """Warn that whoever reaches a TensorFlow server can run code in it, unless networkPolicy closes it."""
    first_task = next(_tasks(spec), None)
    if first_task is None:
        return
    if not spec.network_policy.enabled:
        hint = "on Kubernetes set networkPolicy: {enabled: true}"
        yield Finding(("spec", "roles", first_task[0], "tf"), NO_AUTHENTICATION, hint)
        return
    for index, role in enumerate(spec.roles):
        numbers = [port.port for port in role.ports]
        words, hint = opening(role.name, role.tf.task if role.tf else "", numbers) if role.service else ("", "")
        if words:
            at = ("service",) if hint == NO_SERVICE else ("ports", numbers.index(0))
            yield Finding(("spec", "roles", index, *at), f"{words}: {NO_AUTHENTICATION}", hint)
