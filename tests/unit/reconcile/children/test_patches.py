"""A running RayCluster is changed by operations that test what they rest on, and take nothing away from others."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reconcile_kit import World, dljob

from dljob.kube.errors import ApiError
from dljob.reconcile.children.patches import HOSTNAME, REQUIRED, affinity, excluded, excluding, operations
from dljob.reconcile.children.patches import avoided_nodes as all_away
from dljob.reconcile.state import names
from dljob.reconcile.state.model import PatchCluster
from dljob.testing.world.fault_schedule import chance
from dljob_operator.testing.api_server import ApiServer
from dljob_operator.testing.virtual_time import Agenda

GROUPS = [{"name": "a", "cpu": "2", "replicas": 2}, {"name": "b", "cpu": "2"}]
ZONE = {"key": "zone", "operator": "In", "values": ["z1"]}


def away(*nodes: str) -> dict[str, Any]:
    return {"key": HOSTNAME, "operator": "NotIn", "values": list(nodes)}


def required(*terms: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}, **more}}


OURS = required({"matchExpressions": [away("n1")]})
EMPTY: dict[str, Any] = {}
PREFERRED = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}
CASES = [
    (EMPTY, OURS),
    (required({"matchExpressions": [ZONE]}), required({"matchExpressions": [ZONE, away("n1")]})),
    (
        required({"matchExpressions": [ZONE]}, {"matchFields": [ZONE]}),
        required({"matchExpressions": [ZONE, away("n1")]}, {"matchFields": [ZONE], "matchExpressions": [away("n1")]}),
    ),
    ({"podAffinity": {"x": [1]}}, {"podAffinity": {"x": [1]}, **OURS}),
    ({"nodeAffinity": PREFERRED}, required({"matchExpressions": [away("n1")]}, **PREFERRED)),
    (required(EMPTY), required(EMPTY)),
    (required({"matchExpressions": [away("n1")]}), required({"matchExpressions": [away("n1"), away("n1")]})),
]


@pytest.mark.parametrize(("old", "new"), CASES)
def test_node_affinity_of_others_stays_when_ours_is_removed(old: dict[str, Any], new: dict[str, Any]):
    assert affinity(old, (), ("n1",)) == new
    assert affinity(new, ("n1",), ()) == old


def test_one_exclusion_takes_the_place_of_another():
    assert affinity(OURS, ("n1",), ("n1", "n2")) == required({"matchExpressions": [away("n1", "n2")]})


def test_an_exclusion_removed_by_others_is_not_missed():
    assert affinity({}, ("n1",), ()) == {}


def cluster(**more: Any) -> dict[str, Any]:
    made = World(dljob(nodeGroups=GROUPS, **more)).settle().cluster
    return {**made, "metadata": {**made["metadata"], "resourceVersion": "7"}}


def patched(body: dict[str, Any], *nodes: str) -> dict[str, Any]:
    """What an API server makes of it."""
    server = ApiServer(Agenda(0.0, chance("patches")))
    server.objects["RayCluster", body["metadata"]["name"]] = copy.deepcopy(body)
    action = PatchCluster(body["metadata"]["name"], body["metadata"]["uid"], nodes)
    return server.json_patch("RayCluster", action.name, operations(body, action))


def test_every_group_keeps_away_and_the_cluster_says_so():
    body = cluster()
    made = patched(body, "n1", "n2")
    assert made["metadata"]["annotations"][names.EXCLUDED] == "n1,n2"
    assert excluded(made) == ("n1", "n2")
    groups = [made["spec"]["headGroupSpec"], *made["spec"]["workerGroupSpecs"]]
    wanted = required({"matchExpressions": [away("n1", "n2")]})
    assert [group["template"]["spec"]["affinity"] for group in groups] == [wanted] * 3
    assert made["metadata"]["generation"] == 2
    back = patched(made)
    assert back["spec"] == body["spec"]
    assert excluded(back) == ()


def test_excluded_nodes_are_read_from_all_groups_whoever_wrote_them():
    body = patched(cluster(), "n1")
    pod = body["spec"]["workerGroupSpecs"][0]["template"]["spec"]
    pod["affinity"] = required({"matchExpressions": [ZONE, away("n3"), away("n1")]})
    assert all_away(body) == {"n1", "n3"}
    assert all_away({**body, "spec": {}}) is None


def test_no_patch_is_sent_when_nothing_differs():
    body = cluster()
    name, uid = body["metadata"]["name"], body["metadata"]["uid"]
    made = patched(body, "n1")
    assert operations(made, PatchCluster(name, uid, ("n1",))) == []
    assert operations(made, PatchCluster(name, uid)) == []
    assert operations(body, PatchCluster(name, uid, ())) == []


def test_a_group_that_fits_no_node_is_left_alone():
    body = cluster()
    body["spec"]["workerGroupSpecs"][0]["template"]["spec"]["affinity"] = required(EMPTY)
    wanted = operations(body, PatchCluster(body["metadata"]["name"], body["metadata"]["uid"], ("n1",)))
    assert not any("workerGroupSpecs/0/template" in operation["path"] for operation in wanted)
    assert any("workerGroupSpecs/1/template" in operation["path"] for operation in wanted)


def test_a_cluster_without_annotations_gets_some():
    body = cluster()
    body["metadata"] = {key: value for key, value in body["metadata"].items() if key != "annotations"}
    assert patched(body, "n1")["metadata"]["annotations"] == {names.EXCLUDED: "n1"}


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda body: body["metadata"].update(resourceVersion="8"), "resourceVersion"),
        (lambda body: body["metadata"].update(uid="another"), "uid"),
        (lambda body: body["spec"]["workerGroupSpecs"].reverse(), "groupName"),
    ],
)
def test_a_group_that_changed_since_it_was_read_is_left_alone(change: Any, path: str):
    body = cluster()
    server = ApiServer(Agenda(0.0, chance("patches")))
    now = copy.deepcopy(body)
    change(now)
    server.objects["RayCluster", body["metadata"]["name"]] = now
    action = PatchCluster(body["metadata"]["name"], body["metadata"]["uid"], ("n1",))
    with pytest.raises(ApiError, match=path):
        server.json_patch("RayCluster", action.name, operations(body, action))


def test_a_cluster_that_is_made_with_it_is_as_one_that_was_patched():
    body = cluster()
    made, later = excluding(body, ("n1",)), patched(body, "n1")
    assert made["spec"] == later["spec"]
    assert made["metadata"]["annotations"] == later["metadata"]["annotations"]
    assert excluding(body, ()) == body


nodes = st.lists(st.sampled_from(["n1", "n2", "n3"]), unique=True).map(tuple)
expressions = st.lists(st.sampled_from([ZONE, away("n1"), away("n2")]), max_size=2)
terms = st.one_of(
    st.just(EMPTY),
    st.builds(lambda found, fields: {"matchFields": [ZONE], **found} if fields else found,
              st.builds(lambda e: {"matchExpressions": e} if e else {}, expressions), st.booleans()),
)  # fmt: skip
affinities = st.one_of(st.just(EMPTY), st.builds(required, terms), st.builds(required, terms, terms))


@given(affinities, nodes, nodes)
def test_adding_and_removing_an_exclusion_restores_the_affinity(
    old: dict[str, Any], first: tuple[str, ...], second: tuple[str, ...]
):
    once = affinity(old, (), first)
    assert affinity(affinity(once, first, second), second, first) == once
    assert affinity(once, first, ()) == old
