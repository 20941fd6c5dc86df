"""The CRD on a real API server: it takes and refuses what the loader does, and stores what means the same."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster.handle import Cluster
from hypothesis import HealthCheck, given, settings
from kubernetes import client, config
from ruamel.yaml import YAML

from dljob.errors import SpecError
from dljob.plan.plan import plan
from dljob.raycluster.render import RenderOptions, effective, render_raycluster
from dljob.spec.loading.load import parse

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "unit" / "spec"))

from bound_cases import bounds
from cel_cases import FREE, RULES, job, role
from spec_strategies import manifests, spoilt

ROOT = Path(__file__).resolve().parents[3]
JOBS = "/apis/dljob.io/v1alpha1/namespaces/default/dljobs"
STRICT = [("fieldValidation", "Strict")]
DRY = [("dryRun", "All"), *STRICT]


class RefusedError(Exception):
    """The API server said no; the message is its own."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Server:
    """The API server, asked as kubectl asks: unknown fields are refused."""

    def __init__(self, api: client.ApiClient) -> None:
        self.api = api

    def call(self, method: str, path: str, body: Any = None, *, query: list[tuple[str, str]]) -> dict[str, Any]:
        """Its answer. Raises RefusedError with its words."""
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        asked = self.api.param_serialize(
            method, path, query_params=query, header_params=headers, body=body, auth_settings=["BearerToken"]
        )
        answer = self.api.call_api(*asked)
        made: dict[str, Any] = json.loads(answer.read())
        if answer.status >= 400:
            raise RefusedError(answer.status, str(made["message"]))
        return made

    def create(self, document: dict[str, Any]) -> dict[str, Any]:
        """What it would store."""
        return self.call("POST", JOBS, document, query=DRY)

    def refusal(self, document: dict[str, Any]) -> str:
        """Why it would not take a document; empty when it would."""
        try:
            self.create(document)
        except RefusedError as error:
            return str(error)
        return ""


@pytest.fixture(scope="module")
def server(plane: Cluster) -> Iterator[Server]:
    with config.new_client_from_config(str(plane.kubeconfig)) as api:
        yield Server(api)


def plain(document: dict[str, Any]) -> dict[str, Any]:
    """A document as kubectl sends it: without nulls."""
    return json.loads(
        json.dumps(document, default=str), object_hook=lambda o: {k: v for k, v in o.items() if v is not None}
    )


def test_every_rule_takes_its_right_case_and_refuses_its_wrong_one(server: Server) -> None:
    wrong: list[str] = []
    for case in RULES:
        if case.before:
            continue
        taken, refused = server.refusal(plain(case.accepted)), server.refusal(plain(case.refused))
        wrong += [f"{case.rule}: refused: {taken}"] if taken else []
        wrong += [] if case.rule in refused else [f"{case.rule}: said {refused or 'nothing'}"]
    assert wrong == []


def test_rules_about_changes_refuse_edits_of_immutable_fields(server: Server) -> None:
    for case in (case for case in RULES if case.before):
        made = stored(server, case.before, case.status)
        path = f"{JOBS}/{made['metadata']['name']}"
        try:
            version = {"resourceVersion": made["metadata"]["resourceVersion"]}
            change, refused = ({**d, "metadata": {**d["metadata"], **version}} for d in (case.accepted, case.refused))
            server.call("PUT", path, change, query=DRY)
            with pytest.raises(RefusedError) as caught:
                server.call("PUT", path, refused, query=DRY)
            assert case.rule in str(caught.value)
        finally:
            server.call("DELETE", path, query=[])


def stored(server: Server, document: dict[str, Any], status: dict[str, Any] | None) -> dict[str, Any]:
    """A job of which the operator has said something."""
    made = server.call("POST", JOBS, document, query=STRICT)
    if status is None:
        return made
    return server.call("PUT", f"{JOBS}/{made['metadata']['name']}/status", {**made, "status": status}, query=[])


def test_fields_immutable_while_a_job_runs_may_change_when_it_does_not(server: Server) -> None:
    wrong = [case for case in RULES if case.status]
    assert len(wrong) > 15
    for case in wrong:
        for more, status in FREE:
            assert case.before is not None
            before = {**case.before, "spec": {**case.before["spec"], **more}}
            made = stored(server, before, status)
            path = f"{JOBS}/{made['metadata']['name']}"
            try:
                version = {"resourceVersion": made["metadata"]["resourceVersion"]}
                change = {**case.refused, "metadata": {**case.refused["metadata"], **version}}
                server.call("PUT", path, change, query=DRY)
            finally:
                server.call("DELETE", path, query=[])


def test_every_bound_holds_on_both_sides(server: Server) -> None:
    wrong = [f"{bound}: {said or 'taken'}" for bound in bounds() if bool(said := server.refusal(bound.job)) == bound.ok]
    assert wrong == []


def test_a_document_stored_by_the_server_means_what_the_loader_read(server: Server) -> None:
    documents = [plain(case.accepted) for case in RULES] + [bound.job for bound in bounds() if bound.ok]
    for document in documents:
        stored = server.create(document)
        assert parse({**document, "spec": stored["spec"]}) == parse(document)


@given(manifests())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_job_that_loads_is_taken_and_means_the_same(server: Server, document: dict[str, Any]) -> None:
    stored = server.create(document)
    assert parse({**document, "spec": stored["spec"]}) == parse(document)


@given(spoilt())
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_loader_refuses_whatever_the_server_refuses(server: Server, document: dict[str, Any]) -> None:
    """So `dljob validate` never says yes to what `kubectl apply` says no to."""
    try:
        parse(document)
    except SpecError:
        return
    assert server.refusal(document) == ""


def test_pods_are_as_restricted_as_any_image_allows(plane: Cluster, server: Server) -> None:
    """Of PodSecurity's `restricted` only runAsNonRoot is left to the user, whose image may run as root."""
    plane.kubectl("create", "namespace", "restricted-check")
    plane.kubectl("label", "namespace", "restricted-check", "pod-security.kubernetes.io/enforce=restricted")
    plane.kubectl("wait", "-n", "restricted-check", "serviceaccount/default", "--for=create", "--timeout=60s")
    user = {"spec": {"securityContext": {"runAsNonRoot": True, "runAsUser": 1000}}}
    try:
        for template, words in ((user, ""), ({}, "runAsNonRoot != true")):
            spec = {"roles": [role(nodeGroup="g")], "head": {"template": template}, "code": {"configMap": "c"}}
            spec["nodeGroups"] = [{"name": "g", "template": template}]
            manifest = effective(parse(job(spec)), "example/runtime:1", "2.60.0")
            cluster = render_raycluster(
                plan(manifest), manifest, RenderOptions("j-1", spec_map="j-1-spec", init_image="example/dljob:1")
            )
            for group in (cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]):
                pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, **group["template"]}
                pod["metadata"] = {"name": "p"}
                said = ""
                try:
                    server.call("POST", "/api/v1/namespaces/restricted-check/pods", pod, query=DRY)
                except RefusedError as error:
                    said = str(error)
                assert bool(said) == bool(words)
                assert words in said
                assert said.count("!=") <= 1, said
    finally:
        plane.kubectl("delete", "namespace", "restricted-check", "--wait=false")


def test_a_whole_status_is_taken_and_what_it_does_not_know_is_kept(server: Server) -> None:
    made = server.call("POST", JOBS, job({"roles": [role()]}, "status-check"), query=STRICT)
    path = f"{JOBS}/status-check"
    condition = {
        "type": "Accepted",
        "status": "True",
        "reason": "SpecAccepted",
        "message": "",
        "observedGeneration": 1,
        "lastTransitionTime": "2026-11-20T10:00:00Z",
    }
    status = {"phase": "Running", "rolesReady": "1/1", "conditions": [condition], "brandNew": {"x": 1}}
    try:
        taken = server.call("PUT", f"{path}/status", {**made, "status": status}, query=[])
        assert taken["status"] == status
        for bad in ({"phase": "Walking"}, {"conditions": [condition, condition]}, {"restartsTotal": "many"}):
            with pytest.raises(RefusedError) as caught:
                server.call("PUT", f"{path}/status", {**taken, "status": bad}, query=[])
            assert caught.value.code == 422
    finally:
        server.call("DELETE", path, query=[])


def test_the_examples_are_taken_with_what_they_bring_along(plane: Cluster) -> None:
    hello = plane.kubectl("create", "--dry-run=server", "-o", "name", "-f", str(ROOT / "examples/hello-cpu/dljob.yaml"))
    tiny = plane.kubectl("create", "--dry-run=server", "-o", "name", "-k", str(ROOT / "examples/grpo-tiny"))
    assert hello.split() == ["dljob.dljob.io/hello", "configmap/hello"]
    assert sorted(tiny.split()) == ["configmap/grpo-tiny", "dljob.dljob.io/grpo-tiny"]
    plane.kubectl("create", "--dry-run=server", "-f", str(ROOT / "examples/torchrun-ddp/dljob.yaml"))


def test_samples_of_the_api_are_taken_and_kuberay_takes_their_clusters(plane: Cluster, server: Server) -> None:
    for path in sorted((ROOT / "tests" / "golden" / "samples").glob("*.yaml")):
        document = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
        assert server.refusal(document) == "", path.name
        manifest = effective(parse(document), "example/runtime:1", "2.60.0")
        uid, labels = "0" * 8, {"dljob.io/name": manifest.metadata.name}
        owner = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "name": "j", "uid": uid, "controller": True}
        options = RenderOptions("j-1", "default", owner, labels, {}, "j-1-token", "j-1-spec", "example/dljob:1")
        cluster = render_raycluster(plan(manifest), manifest, options)
        before = copy.deepcopy(cluster)
        made = server.call("POST", "/apis/ray.io/v1/namespaces/default/rayclusters", cluster, query=DRY)
        assert before == cluster
        assert lost(cluster["spec"], made["spec"]) == [], "the served RayCluster drops a field"


def lost(ours: Any, theirs: Any, path: str = "spec") -> list[str]:
    """Paths of ours that are not there, or are otherwise."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [gone for name, value in ours.items() for gone in lost(value, theirs.get(name), f"{path}.{name}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [gone for a, b in zip(ours, theirs, strict=True) for gone in lost(a, b, f"{path}[]")]
    return [] if ours == theirs else [path]


def test_explain_and_get_are_for_people(plane: Cluster) -> None:
    explained = plane.kubectl("explain", "dljob.spec.roles")
    assert "The roles: kinds of processes, and the number of each." in explained
    assert "replicasPerGroup\t<integer>" in explained
    assert "Devices of each rank; left out: none." in explained
    plane.kubectl("apply", "-f", "-", stdin=json.dumps(job({"roles": [role()]}, "columns-check")))
    try:
        table = plane.kubectl("get", "dlj", "columns-check", "-o", "wide").split("\n")[0].split()
        assert table == [
            *("NAME", "PHASE", "REASON", "ROLES", "DEVICES", "RESTARTS", "STEP", "AGE"),
            *("CLUSTER", "ATTEMPT", "GOODPUT", "LASTFAULT"),
        ]
    finally:
        plane.kubectl("delete", "dljob", "columns-check")
