"""Jobs that mean harm, or say too much: nothing of theirs is run by a shell, and nothing that we write has no bound."""

from __future__ import annotations

import copy
import itertools
import json
import shlex
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reconcile_kit import World, dljob

from dljob.errors import SpecError
from dljob.reconcile.state.model import Annotate, Create, Submit
from dljob.spec.loading.load import parse

ODD = (
    *(
        "$(touch /tmp/x)",
        "`id`",
        "; rm -rf /",
        "&& id",
        "| cat",
        "> /etc/passwd",
        "$HOME",
        "$(POD_NAME)",
        "$$(POD_NAME)",
    ),
    *("{{ .Values.x }}", "{0.__class__}", "%s%n%x", "${jndi:ldap://x}", "<script>alert(1)</script>", "' OR 1=1 --"),
    *(
        "../../etc/passwd",
        "a\nb: c",
        "a\r\nHost: x",
        "\ttab",
        "\x1b[31mred",
        "\u202etxet",
        "\u200bx",
        "\ufeff",
        "é" * 9,
    ),
    *(
        "\U0001f4a3",
        "--help",
        "-c",
        "=",
        "",
        " ",
        "null",
        "~",
        "!!python/object:os.system",
        "*anchor",
        "\x00",
        "x" * 40_000,
    ),
)
HOSTILE = st.sampled_from(ODD) | st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
PLACES: tuple[tuple[str | int, ...], ...] = (
    ("metadata", "annotations", "x.test/a"),
    ("metadata", "labels", "volcano.sh/queue-name"),
    *(("spec", *path) for path in (("image",), ("rayVersion",), ("env", 0, "value"), ("env", 0, "name"))),
    *(
        ("spec", "roles", 0, *path)
        for path in (("args", 0), ("entrypoint", "class"), ("config", "k"), ("env", 0, "value"))
    ),
    *(
        ("spec", "roles", 0, *path)
        for path in (("name",), ("resources", "cpu"), ("annotations", "scheduling.dljob.io/x"))
    ),
    *(("spec", "runtimeEnv", *path) for path in (("env_vars", "A"), ("working_dir",), ("pip", 0))),
    *(("spec", *path) for path in (("code", "configMap"), ("checkpoint", "path"), ("checkpoint", "claimName"))),
    *(("spec", "scheduling", *path) for path in (("queueName",), ("labels", "kai.scheduler/queue"))),
    ("spec", "head", "template", "metadata", "annotations", "x.test/b"),
    ("spec", "head", "template", "spec", "containers", 0, "args", 0),
    ("spec", "rayClusterTemplate", "metadata", "labels", "x.test/c"),
    ("spec", "config", "deep"),
)
KINDS = ("ConfigMap", "RayCluster")


def put(data: Any, path: tuple[str | int, ...], value: object) -> None:
    """Put a value into a place, with what is needed around it."""
    for key, after in itertools.pairwise(path):
        made: Any = [] if isinstance(after, int) else {}
        if isinstance(key, int):
            while len(data) <= key:
                data.append({"name": "ray-head"} if path[-2:] == ("args", 0) and path[1] == "head" else made)
            data = data[key]
        else:
            data = data.setdefault(key, made)
    if isinstance(path[-1], int):
        data.append(value)
    else:
        data[path[-1]] = value


def lived(job: dict[str, Any]) -> list[Any]:
    """What the operator does about a job from its creation to its submission and its run."""
    world, done = World(job), []
    execute = world.execute
    world.execute = lambda action: (done.append(action), execute(action))  # type: ignore[method-assign]
    world.settle()
    if world.clusters:
        world.head_ready().settle()
        world.workers_ready().master("Running").settle()
    assert len(json.dumps(world.status)) < 64 * 1024
    return done


def bounded(actions: list[Any]) -> None:
    for action in actions:
        if isinstance(action, Create):
            annotations = action.body["metadata"].get("annotations", {})
            assert sum(len(key) + len(value.encode()) for key, value in annotations.items()) < 256 * 1024
            assert sum(len(text.encode()) for text in action.body.get("data", {}).values()) < 1024 * 1024
        if isinstance(action, Annotate):
            assert sum(len((text or "").encode()) for text in action.annotations.values()) < 256 * 1024


PLAIN: list[Any] = lived(dljob())


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PLACES), HOSTILE), min_size=1, max_size=3))
def test_no_shell_evaluates_text_from_the_spec(written: list[tuple[tuple[str | int, ...], str]]) -> None:
    job = copy.deepcopy(dljob())
    for path, text in written:
        put(job, path, text)
    done = lived(job)
    bounded(done)
    (plain,) = (action for action in PLAIN if isinstance(action, Submit))
    for action in done:
        if isinstance(action, Submit):
            version = action.argv[action.argv.index("--ray") + 1]
            assert all(part.isdigit() for part in version.split("."))
            assert [*action.argv].remove(version) == [*plain.argv].remove("2.60.0")
            assert shlex.split(shlex.join(action.argv)) == list(action.argv)
            assert action.metadata.keys() == plain.metadata.keys()


SECRET = "planted-7f3c9a"
WRONG = (
    {"name": "A B", "value": SECRET},
    {"name": "A", "value": {"x": SECRET}},
    {"name": "A", "value": [SECRET]},
    {"name": "A", "value": SECRET + "\x00"},
    {"name": "A", "value": SECRET, "odd": SECRET},
    {"name": "A", "value": SECRET * 4000},
    {"name": "A", "valueFrom": {"secretKeyRef": {"name": SECRET}}},
    SECRET,
)


@pytest.mark.parametrize("entry", WRONG)
@pytest.mark.parametrize("where", ["job", "role"])
def test_a_refusal_does_not_repeat_the_value(entry: Any, where: str) -> None:
    job = copy.deepcopy(dljob())
    (job["spec"] if where == "job" else job["spec"]["roles"][0])["env"] = [entry, {"name": "B", "value": SECRET}]
    with pytest.raises(SpecError) as caught:
        parse({key: job[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": "j"}})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("text", ["x", "é"])
def test_a_spec_that_no_configmap_holds_is_refused(text: str) -> None:
    role = dljob()["spec"]["roles"][0]
    roles = [{**role, "name": f"r{at}", "config": {"k": text * 45_000}} for at in range(32)]
    world = World(dljob(roles=roles)).settle()
    assert world.cond("Accepted") == ("False", "InvalidSpec")
    assert "bytes as JSON, and a ConfigMap of it holds 1000000" in world.message("Accepted")
    assert not world.clusters
    assert World(dljob(roles=roles[:2])).settle().cond("Accepted")[0] == "True"


def test_the_status_of_ten_thousand_ranks_has_its_size() -> None:
    """32 roles, and PrimeMaster has as much to say of each thing as it can."""
    role = dljob()["spec"]["roles"][0]
    roles = [{**role, "name": f"role-{at:02}-with-a-long-nam", "replicas": 313} for at in range(32)]
    world = World(dljob(roles=roles)).settle().head_ready().settle()
    long = "é" * 100_000
    counts = {"desired": 313, "ready": 1, "running": 1, "succeeded": 0, "failed": 312, "restarts": 10**9}
    at = "2027-01-15T08:00:00Z"
    fault = {"level": "Role", "reason": long, "target": long, "firstCause": long, "detectedAt": at, "lostSteps": 10**12}
    world.master(
        "Running",
        roles=[{"name": one["name"], **counts} for one in roles] * 4,
        recentFaults=[fault] * 500,
        lastFault=fault,
        message=long,
        placement={"units": 10_000, "ready": 1, "pending": 9_999, "notReady": [{"name": long, "why": long}] * 9_999},
        nodes={"replaced": 1, "excluded": [{"name": long, "reason": long, "since": at, "until": at}] * 1_000},
        progress={"step": 10**12, "metrics": {f"{long}{n}": 1.5 for n in range(1_000)}},
        carry={"v": 1, "state": long},
    ).settle()
    size = len(json.dumps(world.status, ensure_ascii=False).encode())
    print(f"{size} bytes of status")
    assert size < 256 * 1024
