"""Jobs that mean harm, or say too much: nothing of theirs is run by a shell, and nothing that we write has no bound."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reconcile_kit import World, copied, dljob, snapshot

from dljob.errors import SpecError
from dljob.reconcile.state.context import stamp
from dljob.reconcile.state.model import Annotate, Create, Submit
from dljob.reconcile.state.snapshot import digest
from dljob.spec.loading.load import parse
from dljob.spec.status import status_schema

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


@settings(max_examples=100, deadline=None)
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
    job = dljob()
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


AT = "2027-01-15T08:00:00Z"
TOLD = snapshot(
    "Running",
    reason="Restarting",
    completionTime=AT,
    restarts=dict.fromkeys(("process", "role", "master"), 1),
    recentFaults=[{"level": "Role", "reason": "r", "target": "t", "detectedAt": AT, "recoveredAt": AT, "lostSteps": 1}],
    nodes={"replaced": 1, "wanted": {"cpu": 2}, "excluded": [{"name": "n", "reason": "r", "since": AT, "until": AT}]},
    carry={"v": 1},
    progress={"step": 4, "stepTime": AT, "lastCheckpointStep": 3, "lastCheckpointTime": AT, "secondsPerStep": 1.0}
    | {"metrics": {"loss": 0.5}, "goodputPermille": 900},
    placement={"units": 2, "ready": 1, "pending": 1, "notReady": [{"name": "worker/0", "node": "n", "why": "w"}]},
    cuts={"committed": 2, "givenUp": 0, "why": "w", "last": 2, "lastTime": AT, "restored": 1, "restoredCut": 1},
    endpoints=[{"role": "worker", "ready": 1, "desired": 2, "addresses": [{"http": "10.0.0.1:80"}]}],
    resourceUse=[{"name": "worker", "peakMiB": 1, "measurements": 3, "outOfMemory": 0, "cpuMillis": 1}],
)
ODD_VALUES: tuple[Any, ...] = (
    *("x", "x" * 4000, "Requested", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59Z", "2027-01-15", ""),
    *(True, None, 2**53 + 1, 10**400, -(10**400), float("nan"), float("inf"), [], {}, [{}], {"a": {"b": []}}),
)
CHECKER = jsonschema.FormatChecker(formats=())
CHECKER.checks("int64")(lambda value: not isinstance(value, int) or -(2**63) <= value < 2**63)
CHECKER.checks("date-time")(
    lambda value: not isinstance(value, str) or bool(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", value))
)
SCHEMA = jsonschema.Draft7Validator(status_schema(), format_checker=CHECKER)


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of every value of a snapshot, and of the objects and lists around it."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield (*path, key)
        yield from leaves(inner, (*path, key))


def with_value(said: dict[str, Any], path: tuple[str | int, ...], value: object) -> dict[str, Any]:
    made: Any = copy.deepcopy(said)
    found = made
    for key in path[:-1]:
        found = found[key]
    found[path[-1]] = value
    return made


def test_the_api_server_takes_the_status_whatever_a_head_says() -> None:
    """A status that it refused would be refused in each pass, and with it the end of the job that is written there."""
    running = World().running()
    digests: set[str] = set()
    for path, phase, value in itertools.product(leaves(TOLD), ("Running", "Failed"), ODD_VALUES):
        said = digest(with_value({**TOLD, "phase": phase}, path, value))
        if repr(said) in digests:  # most values are dropped, and leave the same as another one does
            continue
        digests.add(repr(said))
        world = copied(running)
        assert world.view is not None
        world.view = dataclasses.replace(world.view, snapshot=said)
        world.settle()
        json.dumps(world.status, allow_nan=False)
        refused = [error.message for error in SCHEMA.iter_errors(world.status)]
        assert not refused, (path, value, refused)
    assert len(digests) > len(ODD_VALUES)


def test_a_job_ends_no_later_than_now_whatever_a_head_says() -> None:
    """Its DLJob's time to live counts from then."""
    world = World().running()
    said = digest({**TOLD, "phase": "Succeeded", "completionTime": "9999-12-31T23:59:59Z"})
    assert world.view is not None
    world.view = dataclasses.replace(world.view, snapshot=said)
    assert world.settle().status["completionTime"] <= stamp(world.now)
