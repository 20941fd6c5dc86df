"""doctor: what it makes of a cluster's answers."""

from __future__ import annotations

import json
import os
import py_compile
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from fake_kube import FakeKube

from dljob.cli import main
from dljob.cli.kubernetes import checks, doctor
from dljob.cli.kubernetes.doctor import CheckResult
from dljob.cli.machine import checks as machine
from dljob.errors import UsageError
from dljob.kube.api import CRDS, DEPLOYMENTS, NODES, PODS, ApiError, Resource
from dljob.spec.crd import crd

OWN = doctor.check_packages()[0].message.split()[0]
SAR = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
QUOTAS = "/api/v1/namespaces/team/resourcequotas"


@pytest.fixture(autouse=True)
def unseen_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine is looked at elsewhere: in `machine`."""
    monkeypatch.setattr(machine, "check_machine", list)


def deployment(
    name: str, version: str, ready: int = 1, *, label: bool = True, image: str = "x/y:v9", **marks: str
) -> dict[str, Any]:
    annotations = {f"dljob.io/webhook-{key.replace('_', '-')}": value for key, value in marks.items()}
    labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/component": "operator"}
    return {
        "metadata": {
            "name": name,
            "annotations": annotations,
            "labels": {**labels, **({"app.kubernetes.io/version": version} if label else {})},
        },
        "spec": {"replicas": 1, "template": {"spec": {"containers": [{"image": image}]}}},
        "status": {"readyReplicas": ready},
    }


def node(name: str, *, ready: bool = True, cordoned: bool = False, **devices: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {"unschedulable": True} if cordoned else {},
        "status": {
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "allocatable": {"cpu": "8", "pods": "110", "memory": "32Gi", **devices},
        },
    }


def put(kube: FakeKube, resource: Resource, body: dict[str, Any]) -> None:
    kube.put(resource, body, "dljob-system" if resource.namespaced else "")


@pytest.fixture
def sound(kube: FakeKube) -> FakeKube:
    """A cluster that lacks nothing."""
    kube.calls = {
        "/version": {"gitVersion": "v1.36.3"},
        "/apis/authentication.k8s.io/v1/selfsubjectreviews": {"status": {"userInfo": {"username": "ada"}}},
        SAR: {"status": {"allowed": True}},
        "/apis/dljob.io/v1alpha1": {},
        "/apis/ray.io/v1": {"resources": [{"name": "rayclusters"}]},
        QUOTAS: {"items": []},
    }
    put(kube, CRDS, {**crd(), "metadata": {"name": "dljobs.dljob.io", "labels": {"app.kubernetes.io/version": OWN}}})
    put(kube, DEPLOYMENTS, deployment("kuberay-operator", "1.6.2"))
    put(kube, DEPLOYMENTS, deployment("dljob", OWN, certificate_expires="2999-01-01T00:00:00Z"))
    put(kube, NODES, node("a", **{"nvidia.com/gpu": "8"}))
    return kube


def look(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, dict[str, str]]]:
    code = main.run(["doctor", "-k", "-o", "json", *words])
    return code, {one["check"]: one for one in json.loads(capsys.readouterr().out)}


def test_doctor_finds_nothing_wrong_in_a_sound_cluster(sound, capsys):
    code, found = look(capsys)
    assert code == 0
    assert {name: one["state"] for name, one in found.items() if name not in ("ray", "torch")} == dict.fromkeys(
        ["dljob", "cluster", "rights", "DLJob CRD", "KubeRay", "operator", "webhook", "quota", "nodes"], "ok"
    )
    assert found["cluster"]["message"] == "Kubernetes v1.36.3 at https://cluster.test:6443, as ada, in team"
    assert found["nodes"]["message"] == "1 of 1 node takes pods: 8 nvidia.com/gpu"
    assert sound.closed == 1


def test_the_table_has_the_fix_below_its_line(sound, capsys):
    del sound.objects["deployments", "dljob-system", "dljob"]
    assert main.run(["doctor", "-k"]) == 1
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if "fail" in line)
    assert lines[at].split(maxsplit=2) == ["fail", "operator", "no Deployment of the dljob operator is seen"]
    assert lines[at + 1].strip().startswith("-> ")


def remove(*key: str) -> Any:
    return lambda kube: kube.objects.pop(key)


def answer(path: str, said: Any) -> Any:
    return lambda kube: kube.calls.__setitem__(path, said)


def unanswered(path: str) -> Any:
    return lambda kube: kube.calls.pop(path)


def replaced(resource: Resource, body: dict[str, Any]) -> Any:
    return lambda kube: put(kube, resource, body)


def older(kube: FakeKube) -> None:
    theirs = crd()
    spec = theirs["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    del spec["collocations"]
    spec["novelty"] = {"type": "object", "properties": {"inner": {"type": "string"}}}
    put(kube, CRDS, {**theirs, "metadata": {"name": "dljobs.dljob.io"}})


WRONG: list[tuple[Any, str, str, str]] = [
    (unanswered("/apis/dljob.io/v1alpha1"), "DLJob CRD", "fail", "this cluster serves no DLJobs"),
    (older, "DLJob CRD", "warn", "lacks spec.collocations; has spec.novelty, which this dljob does not know"),
    (lambda kube: kube.forbidden.add("get customresourcedefinitions"), "DLJob CRD", "ok", "may not read its fields"),
    (unanswered("/apis/ray.io/v1"), "KubeRay", "fail", "serves no RayClusters"),
    (lambda kube: setattr(kube.transport, "openapi", b"{}"), "KubeRay", "fail", "fields are missing in it"),
    (remove("deployments", "dljob-system", "kuberay-operator"), "KubeRay", "warn", "no Deployment of its operator"),
    (replaced(DEPLOYMENTS, deployment("kuberay-operator", "1.5.1")), "KubeRay", "fail", "too old"),
    (replaced(DEPLOYMENTS, deployment("kuberay-operator", "", label=False, image="q/kuberay/operator:v1.4.0")),
     "KubeRay", "fail", "1.4.0"),
    (replaced(DEPLOYMENTS, deployment("kuberay-operator", "1.6.2", ready=0)), "KubeRay", "fail", "0/1 ready"),
    (replaced(DEPLOYMENTS, deployment("dljob", OWN, ready=0)), "operator", "fail", "0/1 ready"),
    (replaced(DEPLOYMENTS, deployment("dljob", "9.9.9")), "operator", "warn", f"this dljob is {OWN}"),
    (replaced(DEPLOYMENTS, deployment("dljob", OWN)), "webhook", "skip", "off: DLJobs that cannot be run are admitted"),
    (replaced(DEPLOYMENTS, deployment("dljob", OWN, secret="s")), "webhook", "ok", "certificate is in Secret s"),
    (replaced(DEPLOYMENTS, deployment("dljob", OWN, certificate_expires="2020-01-01T00:00:00Z")), "webhook", "warn",
     "its certificate expired on 2020-01-01T00:00:00Z: DLJobs are not judged"),
    (lambda kube: kube.forbidden.add("list deployments"), "operator", "skip", "this user may not look"),
    (lambda kube: kube.forbidden.add("list nodes"), "nodes", "skip", "this user may not look"),
    (replaced(NODES, node("a", ready=False)), "nodes", "fail", "0 of 1 node take pods"),
    (replaced(NODES, node("b", cordoned=True, **{"huawei.com/Ascend910": "8"})), "nodes", "ok", "1 of 2 nodes"),
    (answer(QUOTAS, {"items": [{"metadata": {"name": "q"}, "status": {"hard": {"pods": "4", "cpu": "9"},
     "used": {"pods": "4", "cpu": "1"}}}]}), "quota", "warn", "q: used up: pods 4 of 4"),
    (answer(QUOTAS, ApiError(500, "InternalError", "etcd is away")), "quota", "fail", "etcd is away"),
    (answer(SAR, lambda body: {"status": {"allowed": body["spec"]["resourceAttributes"]["subresource"] != "proxy"}}),
     "rights", "fail", "get pods/proxy (logs of running jobs)"),
    (answer("/version", ApiError(0, "Unreachable", "no answer")), "cluster", "fail", "no answer"),
]  # fmt: skip


@pytest.mark.parametrize("case", WRONG, ids=lambda case: f"{case[1]}-{case[3][:24]}")
def test_doctor_tells_what_is_wrong_and_how_bad_it_is(case, sound, capsys):
    change, check, state, words = case
    change(sound)
    code, found = look(capsys)
    assert (found[check]["state"], words in found[check]["message"]) == (state, True), found[check]
    assert code == (1 if state == "fail" else 0)
    assert found[check]["fix"] or state == "ok" or "may not look" in found[check]["message"]


def test_doctor_warns_of_a_certificate_close_to_its_end():
    marks = {"dljob.io/webhook-certificate-expires": "2027-01-31T00:00:00Z"}
    at = datetime(2027, 1, 20, 12, tzinfo=UTC).timestamp()
    found = doctor.webhook(marks, at)
    assert (found.state, found.message) == ("warn", "its certificate holds for 10 days")
    assert doctor.webhook(marks, at - 86400 * 30).state == "ok"


@pytest.mark.parametrize(
    ("days", "state", "said"),
    [(90, "ok", "holds for 90 days"), (3, "warn", "holds for 3 days"), (-1, "warn", "expired on 20")],
)
def test_the_certificate_of_an_existing_secret_is_told_by_the_operators_metrics(days, state, said, sound, capsys):
    operator = deployment("dljob", OWN, secret="s")
    operator["spec"]["template"]["spec"]["containers"][0]["ports"] = [{"name": "metrics", "containerPort": 9090}]
    put(sound, DEPLOYMENTS, operator)
    for pod, more in (("a", 5), ("b", 0)):
        put(sound, PODS, {"metadata": {"name": pod, "labels": operator["metadata"]["labels"]}})
        metric = f"# HELP x y\n{doctor.CERTIFICATE_METRIC} {(days + more) * 86400 + 60:.6e}\n"
        sound.calls[f"dljob-system/{pod}:9090/metrics"] = metric
    _, found = look(capsys)
    assert (found["webhook"]["state"], said in found["webhook"]["message"]) == (state, True), found["webhook"]
    assert ("put a new certificate into Secret s" in found["webhook"]["fix"]) == (state == "warn")


def test_a_cluster_that_hangs_is_not_waited_for(sound, capsys, monkeypatch):
    import asyncio

    async def hang(_kube: object, _namespace: str) -> CheckResult:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(checks, "WITHIN_S", 0.05)
    monkeypatch.setattr(checks, "CHECKS", (("nodes", hang),))
    code, found = look(capsys)
    assert (code, found["nodes"]["message"]) == (1, "no answer within 0.05 s")


@pytest.mark.parametrize("error", [UsageError("no client"), ApiError(0, "NoConfig", "no context named 'x'")])
def test_doctor_tells_why_the_cluster_cannot_be_reached(error, kube, capsys, monkeypatch):
    from dljob.api.kubernetes import connect

    async def refuse(_context: str | None = None) -> None:
        raise error

    monkeypatch.setattr(connect, "connect", refuse)
    code, found = look(capsys, "--context", "x")
    assert code == 1
    (failed,) = [one for one in found.values() if one["state"] == "fail"]
    assert failed["message"] == error.message  # type: ignore[attr-defined]
    assert failed["fix"]


def test_without_a_kubeconfig_no_cluster_is_missed(kube, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main.run(["doctor"]) == 0
    assert "no kubeconfig, so no cluster was looked at" in capsys.readouterr().out
    assert kube.contexts == []  # type: ignore[attr-defined]


def test_a_package_that_is_not_installed_here_is_no_failure(monkeypatch):
    monkeypatch.setattr(doctor, "_installed", lambda package: "" if package == "torch" else "1")
    torch = doctor.check_packages()[-1]
    assert (torch.state, torch.fix) == ("skip", "pip install 'dljob[torch]', if you want Elastic roles here")
    assert doctor.healthy(doctor.check_packages())


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("compiled, forbidden, read-only", ""),
        ("not compiled yet", ""),
        ("forbidden", "PYTHONDONTWRITEBYTECODE is set"),
        ("read-only", "its folder cannot be written to"),
    ],
)
def test_a_package_that_each_process_compiles_again_is_told_with_what_compiles_it(case, why, tmp_path, monkeypatch):
    file = tmp_path / "site packages" / "torch" / "__init__.py"
    file.parent.mkdir(parents=True)
    file.write_text("x = 1\n")
    monkeypatch.setattr(sys, "path", [str(file.parent.parent), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", "forbidden" in case)
    monkeypatch.setattr(os, "access", lambda *_: "read-only" not in case)  # root may write anywhere
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    if case.startswith("compiled"):
        py_compile.compile(str(file))
    torch = doctor.check_packages()[-1]
    assert torch.state == ("warn" if why else "ok")
    assert torch.message.endswith(why)
    assert doctor.healthy(doctor.check_packages())
    if why:
        subprocess.run(shlex.split(torch.fix), check=True)
        assert doctor.check_packages()[-1].state == "ok"
