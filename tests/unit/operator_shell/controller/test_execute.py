"""Each action as a call: done once, done twice, refused, and cut off at every call."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from json import loads
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shell_kit import JOB, UID, Shell, dljob, shell, token

from dljob.kube.api import ApiError
from dljob.kube.head import HeadError
from dljob.reconcile.policies.resources import MOST_BYTES
from dljob.reconcile.state import names
from dljob.reconcile.state.model import (
    Action,
    Annotate,
    Command,
    Create,
    CreateToken,
    Delete,
    KeepResourceUse,
    PatchCluster,
    SaveLogs,
    Submit,
)
from dljob_operator.controller import execute
from dljob_operator.controller.execute import StaleError, TakenError, difference
from dljob_operator.controller.observe import OperatorMemory
from dljob_operator.watch.workqueue import Key

LABELS = {"dljob.io/name": "hello"}
C1 = names.cluster_name("hello", UID, 1)


@pytest.fixture
async def it() -> AsyncIterator[Shell]:
    async with shell() as made:
        made.fake.put("dljobs", {**dljob(), "metadata": {"name": "hello", "uid": UID}})
        made.sync()
        yield made


def owner(it: Shell) -> dict[str, Any]:
    uid = it.fake.one("dljobs", "hello")["metadata"]["uid"]
    return {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "name": "hello", "uid": uid, "controller": True}


def body(it: Shell, kind: str = "RayCluster", name: str = C1) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name, "ownerReferences": [owner(it)]}, "spec": {}}


async def do(it: Shell, action: Action) -> None:
    await it.executor.perform(JOB, it.memory(), action)


async def test_a_created_cluster_is_known_at_once(it: Shell) -> None:
    await do(it, Create("RayCluster", body(it)))
    assert it.cache.clusters.get(Key("default", C1)) is not None


@pytest.mark.parametrize("kind", ["RayCluster", "ConfigMap", "NetworkPolicy"])
async def test_an_existing_object_of_ours_is_adopted(it: Shell, kind: Any) -> None:
    await do(it, Create(kind, body(it, kind)))
    await do(it, Create(kind, body(it, kind)))
    assert len(it.fake.objects) == 2


async def test_an_existing_object_of_others_is_refused(it: Shell) -> None:
    other = {"kind": "RayJob", "name": "x", "uid": "u", "controller": True}
    it.fake.put("rayclusters", {"metadata": {"name": C1, "ownerReferences": [other]}})
    with pytest.raises(TakenError, match=f"RayCluster {C1} exists already and belongs to RayJob x") as caught:
        await do(it, Create("RayCluster", body(it)))
    assert caught.value.status == 409
    it.fake.put("rayclusters", {"metadata": {"name": C1}})
    with pytest.raises(TakenError, match="belongs to nobody"):
        await do(it, Create("RayCluster", body(it)))


@pytest.mark.parametrize(
    "now",
    [
        {"status": {"attempt": 2}},
        {"status": {"completionTime": "2026-01-01T00:00:00Z"}},
        {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
        {"metadata": {"uid": UID.replace("1", "2")}},
    ],
)
async def test_no_machines_are_taken_for_what_only_an_old_view_wants(it: Shell, now: dict[str, Any]) -> None:
    """As after a restart, when the API server that is asked lags."""
    meta = {"name": "hello", "uid": UID, **now.get("metadata", {})}
    it.fake.put("dljobs", {**dljob(), **now, "metadata": meta})
    with pytest.raises(StaleError, match="not wanted any more"):
        await do(it, Create("RayCluster", {**body(it), "metadata": {"name": C1}}))
    assert it.fake.names("rayclusters") == []
    assert it.cache.jobs.get(JOB) == it.fake.one("dljobs", "hello")


async def test_the_token_is_derived_and_made_once(it: Shell) -> None:
    spec, action = Create("ConfigMap", body(it, "ConfigMap", "c1-spec")), CreateToken("c1-token", C1, "c1-spec", LABELS)
    for _ in range(2):
        await do(it, spec)
        await do(it, action)
    made = it.fake.one("secrets", "c1-token")
    assert base64.b64decode(made["data"]["auth_token"]).decode() == token(owner(it)["uid"], C1)
    assert made["metadata"]["labels"] == LABELS
    assert ("GET", "/api/v1/namespaces/default/secrets/c1-token") not in it.fake.calls  # no right to read Secrets
    it.fake.fail("POST", "secrets", 403)
    with pytest.raises(ApiError):
        await do(it, CreateToken("c2-token", "c2", "c1-spec", LABELS))


async def test_the_token_goes_with_the_spec_of_its_attempt(it: Shell) -> None:
    """Also where the ConfigMap was made by an operator that died before it made the Secret."""
    spec = Create("ConfigMap", body(it, "ConfigMap", "c1-spec"))
    await it.executor.perform(JOB, OperatorMemory(UID), spec)
    await do(it, spec)
    await do(it, CreateToken("c1-token", C1, "c1-spec", LABELS))
    uid = it.fake.one("configmaps", "c1-spec")["metadata"]["uid"]
    owners = it.fake.one("secrets", "c1-token")["metadata"]["ownerReferences"]
    assert owners == [{"apiVersion": "v1", "kind": "ConfigMap", "name": "c1-spec", "uid": uid}]
    await do(it, Delete("ConfigMap", "c1-spec", ""))
    assert it.fake.names("secrets") == []


async def test_a_deletion_names_the_uid(it: Shell) -> None:
    await do(it, Create("RayCluster", body(it)))
    uid = it.fake.one("rayclusters", C1)["metadata"]["uid"]
    with pytest.raises(ApiError, match="UID"):
        await do(it, Delete("RayCluster", C1, "another"))
    await do(it, Delete("RayCluster", C1, uid))
    assert it.fake.names("rayclusters") == []
    assert it.cache.clusters.get(Key("default", C1)) is None
    await do(it, Delete("RayCluster", C1, uid))  # gone already


async def test_a_deletion_that_a_finalizer_holds_back_is_seen_as_leaving(
    it: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    await do(it, Create("RayCluster", body(it)))
    held = it.fake.one("rayclusters", C1)
    meta = {**held["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "999"}

    async def delete(*_: Any, **__: Any) -> dict[str, Any]:
        return {**held, "metadata": meta}

    monkeypatch.setattr(it.kube, "delete", delete)
    await do(it, Delete("RayCluster", C1, held["metadata"]["uid"]))
    kept = it.cache.clusters.get(Key("default", C1))
    assert kept is not None
    assert kept["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:00Z"


def pod(it: Shell, **meta: Any) -> dict[str, Any]:
    return it.fake.put("pods", {"kind": "Pod", "metadata": {"name": "p1", **meta}, "spec": {}})


async def test_a_pod_is_given_its_grace_and_known_to_be_leaving(it: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    made = pod(it)
    given: list[dict[str, Any]] = []
    answers = [
        {**made, "metadata": {**made["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z",
                              "deletionGracePeriodSeconds": grace, "resourceVersion": str(90 + at)}}
        for at, grace in enumerate((5, 0))
    ]  # fmt: skip

    async def call(_method: str, _path: str, options: dict[str, Any]) -> dict[str, Any]:
        given.append(options)
        return answers.pop(0)

    monkeypatch.setattr(it.kube, "call", call)
    it.cache.put_pod(made)
    where = Key("default", "p1")
    await do(it, Delete("Pod", "p1", made["metadata"]["uid"], grace=5))
    known = it.cache.pods.get(where)
    assert known is not None
    assert known.pod.leaving
    await do(it, Delete("Pod", "p1", made["metadata"]["uid"], grace=0))
    assert it.cache.pods.get(where) is None, "it is gone, though the API server answers with it"
    assert [(options["gracePeriodSeconds"], bool(options["preconditions"]["uid"])) for options in given] == [
        (5, True),
        (0, True),
    ]


async def test_a_pod_without_a_grace_has_its_own_and_another_of_its_name_is_left_alone(it: Shell) -> None:
    made = pod(it)
    with pytest.raises(ApiError, match="UID"):
        await do(it, Delete("Pod", "p1", "another"))
    it.cache.put_pod(made)
    await do(it, Delete("Pod", "p1", made["metadata"]["uid"]))
    await do(it, Delete("Pod", "p1", made["metadata"]["uid"]))  # gone already
    assert it.fake.names("pods") == []
    assert it.cache.pods.get(Key("default", "p1")) is None


async def test_annotations_are_merged_and_removed(it: Shell) -> None:
    await do(it, Annotate("DLJob", "hello", {"dljob.io/a": "1", "dljob.io/b": "2"}))
    await do(it, Annotate("DLJob", "hello", {"dljob.io/a": None}))
    assert it.fake.one("dljobs", "hello")["metadata"]["annotations"] == {"dljob.io/b": "2"}
    kept = it.cache.jobs.get(JOB)
    assert kept is not None
    assert kept["metadata"]["annotations"] == {"dljob.io/b": "2"}


async def test_a_pod_that_is_gone_needs_no_annotation(it: Shell) -> None:
    await do(it, Annotate("Pod", "gone", {"dljob.io/units": "a"}))
    with pytest.raises(ApiError):
        await do(it, Annotate("RayCluster", "gone", {"dljob.io/units": "a"}))


def patchable(it: Shell) -> PatchCluster:
    """A RayCluster with a group, and a change of it."""
    group = {"groupName": "a", "template": {"spec": {"containers": []}}}
    spec = {"headGroupSpec": {"template": {"spec": {}}}, "workerGroupSpecs": [group]}
    it.fake.put("rayclusters", {**body(it), "spec": spec})
    return PatchCluster(C1, it.fake.one("rayclusters", C1)["metadata"]["uid"], ("n1",))


async def test_a_patch_is_made_once_and_known_at_once(it: Shell) -> None:
    action = patchable(it)
    await do(it, action)
    await do(it, action)
    assert [call for call in it.fake.writes if "rayclusters" in call[1]] == [
        ("PATCH", f"/apis/ray.io/v1/namespaces/default/rayclusters/{C1}")
    ]
    kept = it.cache.clusters.get(Key("default", C1))
    assert kept is not None
    assert kept["metadata"]["annotations"] == {"dljob.io/excluded-nodes": "n1"}
    assert "n1" in str(kept["spec"])  # an edited one is kept whole


async def test_a_patch_whose_tests_fail_is_made_from_what_is_there_now(it: Shell) -> None:
    """KubeRay writes to the status between the look and the patch."""
    action = patchable(it)
    it.fake.fail("PATCH", "rayclusters", 422, times=2)
    await do(it, action)
    assert "n1" in str(it.fake.one("rayclusters", C1)["spec"])
    await do(it, PatchCluster(action.name, action.uid, ()))
    it.fake.fail("PATCH", "rayclusters", 422, times=3)
    with pytest.raises(ApiError):
        await do(it, action)
    it.fake.fail("PATCH", "rayclusters", 403)
    with pytest.raises(ApiError):
        await do(it, action)
    assert it.fake.faults[-1].times == 0


async def test_another_cluster_of_that_name_is_not_patched(it: Shell) -> None:
    action = patchable(it)
    with pytest.raises(ApiError):
        await do(it, PatchCluster(action.name, "another", action.excluded))
    assert "n1" not in str(it.fake.one("rayclusters", C1))


def ordered(it: Shell, submission: str = "hello-1") -> str:
    """The status says so; gives the DLJob's uid."""
    job = it.fake.one("dljobs", "hello")
    it.fake.put("dljobs", {**job, "status": {"submissionId": submission}})
    return owner(it)["uid"]


async def test_a_submission_that_another_operator_gave_up_is_not_made(it: Shell) -> None:
    it.head.token = token(ordered(it), C1)
    submit = Submit("hello-1", C1, "10.0.0.1", ("x",), {}, {})
    ordered(it, "hello-2")
    with pytest.raises(HeadError, match="hello-1 is not wanted any more"):
        await do(it, submit)
    assert it.head.posted == []
    seen = it.cache.jobs.get(JOB)
    assert seen is not None
    assert seen["status"] == {"submissionId": "hello-2"}


async def test_a_submission_and_a_command_reach_the_head(it: Shell) -> None:
    uid = ordered(it)
    it.head.token = token(uid, C1)
    submit = Submit("hello-1", C1, "10.0.0.1", ("python", "-m", "x"), {"a": 1}, {"k": "v"})
    await do(it, submit)
    await do(it, submit)
    assert [posted["submission_id"] for posted in it.head.posted] == ["hello-1"]
    await do(it, Command("c-1", C1, "10.0.0.1", "stop", "job", "me"))
    assert it.head.commands == [{"id": "c-1", "kind": "stop", "target": "job", "by": "me"}]
    assert it.memory().commands == ("c-1",)
    it.head.token = "other"
    with pytest.raises(HeadError, match="no token"):
        await do(it, submit)


async def test_a_launcher_that_is_posted_again_has_the_environment_of_its_attempt(it: Shell) -> None:
    it.head.token = token(ordered(it, "hello-1-r1"), C1)
    submit = Submit("hello-1-r1", C1, "10.0.0.1", ("x",), {"env_vars": {"A": "new"}}, {}, spec_map=f"{C1}-spec")
    with pytest.raises(HeadError, match=f"ConfigMap {C1}-spec with the attempt's spec is gone"):
        await do(it, submit)
    spec = '{"spec": {"runtimeEnv": {"env_vars": {"A": "old"}}}}'
    it.fake.put("configmaps", {"metadata": {"name": f"{C1}-spec"}, "data": {"spec.json": spec}})
    await do(it, submit)
    assert [posted["runtime_env"] for posted in it.head.posted] == [{"env_vars": {"A": "old"}}]


async def test_a_head_that_came_back_without_its_memory_gets_no_second_launcher(it: Shell) -> None:
    """It would start a second PrimeMaster, while the ranks of the first may live."""
    it.head.token = token(ordered(it, "hello-1-r1"), C1)
    submit = Submit("hello-1-r1", C1, "10.0.0.1", ("x",), {}, {}, session="session_1")
    it.head.session = "session_2"
    with pytest.raises(HeadError, match="has lost its memory: Ray's session is session_2, not session_1"):
        await do(it, submit)
    assert it.head.posted == []
    it.head.session = "session_1"
    await do(it, submit)
    assert [posted["submission_id"] for posted in it.head.posted] == ["hello-1-r1"]


async def test_a_head_that_restarted_since_the_order_gets_nothing(it: Shell) -> None:
    """The watch may not have told yet; Ray's new session would take a known id once more."""
    it.head.token = token(ordered(it), C1)
    submit = Submit("hello-1", C1, "10.0.0.1", ("x",), {}, {}, ("c1-head", "containerd://a"), {"s.json": "{}"})
    pod = {"metadata": {"name": "c1-head"}, "spec": {"containers": [{"name": "ray-head"}]}}
    for restarted in ("containerd://b", ""):
        status = {"phase": "Running", "containerStatuses": [{"name": "ray-head", "containerID": restarted}]}
        it.fake.put("pods", {**pod, "status": status})
        with pytest.raises(HeadError, match="c1-head is another one than the submission was ordered for, or restarted"):
            await do(it, submit)
    del it.fake.objects["pods", "default", "c1-head"]
    it.fake.put("pods", {**pod, "metadata": {"name": "c1-head-2"}, "status": status})
    with pytest.raises(HeadError):
        await do(it, submit)
    assert (it.head.posted, it.head.kept) == ([], {})
    status["containerStatuses"][0]["containerID"] = "containerd://a"
    it.fake.put("pods", {**pod, "status": status})
    await do(it, submit)
    assert len(it.head.posted) == 1


async def test_logs_are_kept_in_a_config_map(it: Shell) -> None:
    uid = owner(it)["uid"]
    it.head.token = token(uid, C1)
    it.head.tails = {"actor/0": "last words\n", "critic/11": "bye\n"}
    action = SaveLogs("hello-logs", C1, "10.0.0.1", owner(it), LABELS)
    await do(it, action)
    assert it.fake.one("configmaps", "hello-logs")["data"].keys() == {"actor-0.log", "critic-11.log"}
    it.head.master_log = '{"message": "why"}\n'
    await do(it, action)
    await do(it, action)
    made = it.fake.one("configmaps", "hello-logs")
    ranks = {"actor-0.log": "last words\n", "critic-11.log": "bye\n"}
    assert made["data"] == {**ranks, "master.log": '{"message": "why"}\n'}
    assert made["metadata"]["annotations"] == {"dljob.io/cut": "actor/9"}
    assert made["metadata"]["ownerReferences"] == [owner(it)]
    assert it.memory().logs_saved is True


async def test_the_last_status_is_kept_beside_the_logs_unless_it_is_large(
    it: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    it.head.token = token(owner(it)["uid"], C1)
    it.head.tails = {"actor/0": "last words\n"}
    last = {"version": 7, "phase": "Failed", "ledger": {"goodput": 0.5}}
    it.head.snapshots[names.job_uid(owner(it)["uid"])] = last
    action = SaveLogs("hello-logs", C1, "10.0.0.1", owner(it), LABELS)
    monkeypatch.setattr(execute, "STATUS_BYTES", 10)
    await do(it, action)
    assert it.fake.one("configmaps", "hello-logs")["data"].keys() == {"actor-0.log"}
    monkeypatch.undo()
    await do(it, action)
    assert loads(it.fake.one("configmaps", "hello-logs")["data"]["status.json"]) == {**last, "ranks": None}


async def test_a_config_map_of_that_name_that_is_not_ours_is_left_alone(it: Shell) -> None:
    it.head.token = token(owner(it)["uid"], C1)
    it.head.tails = {"actor/0": "last words\n"}
    theirs = it.fake.put("configmaps", {"metadata": {"name": "hello-logs"}, "data": {"fluent.conf": "theirs"}})
    action = SaveLogs("hello-logs", C1, "10.0.0.1", owner(it), LABELS)
    with pytest.raises(TakenError, match="ConfigMap hello-logs exists already and belongs to nobody"):
        await do(it, action)
    assert it.fake.one("configmaps", "hello-logs") == theirs
    assert it.memory().logs_saved is not True


async def test_the_status_is_written_over_what_was_seen(it: Shell) -> None:
    seen = it.cache.jobs.get(JOB)
    assert seen is not None
    made = await it.executor.write_status(JOB, seen, {"phase": "Pending", "roles": [1]})
    assert made["status"] == {"phase": "Pending", "roles": [1]}
    again = it.cache.jobs.get(JOB)
    assert again is not None
    assert again["status"] == {"phase": "Pending", "roles": [1]}
    await it.executor.write_status(JOB, again, {"phase": "Running"})
    assert it.fake.one("dljobs", "hello")["status"] == {"phase": "Running"}


async def test_a_status_from_a_stale_view_is_not_written(it: Shell) -> None:
    seen = it.cache.jobs.get(JOB)
    assert seen is not None
    it.fake.put("dljobs", {**it.fake.one("dljobs", "hello"), "spec": {"changed": True}})
    with pytest.raises(ApiError) as caught:
        await it.executor.write_status(JOB, seen, {"phase": "Pending"})
    assert caught.value.status == 409
    await it.executor.refresh(JOB)
    fresh = it.cache.jobs.get(JOB)
    assert fresh is not None
    assert fresh["spec"] == {"changed": True}


async def test_our_own_annotation_in_between_is_no_stale_view(it: Shell) -> None:
    seen = it.cache.jobs.get(JOB)
    assert seen is not None
    await do(it, Annotate("DLJob", "hello", {"dljob.io/a": "1"}))
    await it.executor.write_status(JOB, seen, {"phase": "Pending"})
    assert it.fake.one("dljobs", "hello")["status"] == {"phase": "Pending"}


async def test_a_late_status_does_not_land_on_a_namesake(it: Shell) -> None:
    seen = it.cache.jobs.get(JOB)
    assert seen is not None
    it.fake.take("dljobs", "hello")
    it.fake.put("dljobs", dljob())
    with pytest.raises(ApiError):
        await it.executor.write_status(JOB, seen, {"phase": "Failed"})
    it.fake.take("dljobs", "hello")
    await it.executor.refresh(JOB)
    assert it.cache.jobs.get(JOB) is None


json = st.recursive(
    st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(st.sampled_from("abc"), json, max_size=3)


@given(objects, objects)
def test_the_patch_turns_one_status_into_the_other(old: dict[str, Any], new: dict[str, Any]) -> None:
    import copy

    from fake_cluster import _merge

    merged = copy.deepcopy(old)
    patch = difference(old, new)
    _merge(merged, patch)
    assert merged == new
    assert (patch == {}) == (old == new)


@pytest.mark.parametrize(("kind", "plural"), [("ConfigMap", "configmaps"), ("NetworkPolicy", "networkpolicies")])
async def test_children_of_an_attempt_stay_where_deletion_is_forbidden(kind: Any, plural: str) -> None:
    async with shell() as it:
        it.fake.put("dljobs", dljob())
        it.sync()
        it.fake.put(plural, {"metadata": {"name": "c-child"}})
        it.fake.fail("DELETE", plural, 403)
        await it.executor.perform(JOB, it.memory(), Delete(kind, "c-child", ""))
        assert it.fake.names(plural) == ["c-child"]
        await it.executor.perform(JOB, it.memory(), Delete(kind, "c-child", ""))
        assert it.fake.names(plural) == []
        await it.executor.perform(JOB, it.memory(), Delete(kind, "c-child", ""))


async def test_use_of_resources_is_kept_beside_that_of_other_names(it: Shell) -> None:
    await do(it, KeepResourceUse("hello", "[1]"))
    made = it.fake.one("configmaps", names.RESOURCE_USE)
    assert made["data"] == {"hello": "[1]"}
    assert "ownerReferences" not in made["metadata"]
    it.fake.put("configmaps", {**made, "data": {"other": "[2]", "hello": "[1]"}})
    await do(it, KeepResourceUse("hello", "[3]"))
    assert it.fake.one("configmaps", names.RESOURCE_USE)["data"] == {"other": "[2]", "hello": "[3]"}
    it.fake.fail("PATCH", "configmaps", 403)
    with pytest.raises(ApiError):
        await do(it, KeepResourceUse("hello", "[4]"))


async def test_use_of_other_names_makes_room(it: Shell) -> None:
    old = {"data": {"old": "x" * MOST_BYTES}}
    it.fake.put("configmaps", {"metadata": {"name": names.RESOURCE_USE}, **old})
    await do(it, KeepResourceUse("hello", "[1]"))
    assert it.fake.one("configmaps", names.RESOURCE_USE)["data"] == {"hello": "[1]"}
    assert it.memory().use_kept
