"""The chart on a real API server, by the real helm: install, upgrade, rollback, uninstall, rights, refusals."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cluster import cache, processes, up
from cluster.handle import Cluster, KubectlError, kubectl
from helm_kit import CHART, VERSION, HelmError, Release
from operator_kit import job, running

CRD = "dljobs.dljob.io"


@pytest.fixture
def namespace(plane: Cluster) -> Iterator[Callable[..., str]]:
    made: list[str] = []

    def make(**labels: str) -> str:
        name = f"chart-{uuid.uuid4().hex[:6]}"
        made.append(name)
        plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        return name

    yield make
    for name in made:
        plane.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def release(plane: Cluster, namespace: Callable[..., str]) -> Iterator[Release]:
    cache.program("helm")
    made = Release(plane, namespace(**{"pod-security.kubernetes.io/enforce": "restricted"}))
    yield made
    made.helm("uninstall", made.name, "--ignore-not-found")


def test_the_chart_installs_and_uninstalls_without_a_trace(release: Release, plane: Cluster) -> None:
    said = release.install(workers=4)
    assert f"dljob {VERSION} serves every namespace with kubernetes.io/metadata.name notin (kube-system," in said
    assert "KubeRay is not installed" not in said
    assert plane.get("crd", CRD)["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
    for what in ("serviceaccount", "deployment", "networkpolicy"):
        assert release.there(what, "dljob")
    key = release.key()

    release.helm("upgrade", "dljob", str(CHART), workers=7, podDisruptionBudget={"enabled": False})
    assert "--workers=7" in release.arguments()
    assert not release.there("pdb", "dljob")
    release.helm("rollback", "dljob", "1")
    assert "--workers=4" in release.arguments()
    assert release.there("pdb", "dljob")
    assert release.key() == key

    release.helm("uninstall", "dljob")
    assert not release.there("deployment", "dljob")
    assert not release.may("create", "rayclusters.ray.io", "default")
    assert plane.get("crd", CRD)["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    release.install()
    assert release.key() == key, "RayClusters that run hold tokens made of the key of before"


def test_the_operators_pods_pass_the_restricted_pod_security_admission(release: Release, plane: Cluster) -> None:
    release.install()
    # Its controller makes the pod, or says what the admission said.
    plane.kubectl(
        *("wait", "pod", "-n", release.namespace, "-l", "app.kubernetes.io/component=operator"),
        *("--for=create", "--timeout=30s"),
    )


def test_the_operator_has_exactly_the_rights_it_needs(release: Release) -> None:
    release.install()
    for verb, what in (
        ("watch", "dljobs.dljob.io"),
        ("patch", "dljobs.dljob.io/status"),
        ("update", "dljobs.dljob.io/finalizers"),
        ("create", "rayclusters.ray.io"),
        ("delete", "rayclusters.ray.io"),
        ("create", "secrets"),
        ("patch", "pods"),
        ("delete", "pods"),
        ("get", "nodes"),
        ("create", "networkpolicies.networking.k8s.io"),
        ("create", "events.events.k8s.io"),
    ):
        assert release.may(verb, what, "default"), f"{verb} {what}"
    for verb, what in (
        ("get", "secrets"),
        ("list", "secrets"),
        ("delete", "secrets"),
        ("create", "pods"),
        ("create", "pods/exec"),
        ("list", "configmaps"),
        ("create", "dljobs.dljob.io"),
        ("list", "nodes"),
        ("patch", "nodes"),
        ("get", "customresourcedefinitions"),
    ):
        assert not release.may(verb, what, "default"), f"{verb} {what}"


def test_in_the_namespaced_scope_the_operator_has_no_rights_elsewhere(
    release: Release, namespace: Callable[..., str]
) -> None:
    ours = [namespace(), namespace()]
    release.install(rbac={"scope": "Namespaced"}, watchNamespaces=ours)
    for name in ours:
        assert release.may("create", "rayclusters.ray.io", name)
        assert release.may("patch", "dljobs.dljob.io/status", name)
    for name in ("default", release.namespace):
        assert not release.may("list", "dljobs.dljob.io", name)
        assert not release.may("create", "secrets", name)
    assert {f"--namespace={name}" for name in ours} <= set(release.arguments())


def test_only_selected_namespaces_are_served_and_written_to(
    release: Release, namespace: Callable[..., str], tmp_path: Path
) -> None:
    plane, ours, later = release.cluster, namespace(), namespace()
    secret = ("create", "secret", "generic", "mark", f"--as=system:serviceaccount:{release.namespace}:dljob", "-n")

    def refusal(*command: str, stdin: str = "") -> str:
        try:
            plane.kubectl(*command, "--dry-run=server", stdin=stdin)
        except KubectlError as error:
            return str(error)
        return ""

    def apply(space: str) -> str:
        return refusal("create", "-n", space, "-f", "-", stdin=json.dumps(job("j")))

    plane.apply({**job("j"), "metadata": {"name": "j", "namespace": later}})
    release.install()
    words = "the dljob operator does not serve the namespace kube-system; it serves kubernetes.io/metadata.name notin"
    processes.until(lambda: words in apply("kube-system"), 30, "a policy is new: it refuses a DLJob of kube-system")
    assert "ValidatingAdmissionPolicy 'dljob-namespaces'" in refusal(*secret, "kube-system")
    assert (apply(ours), refusal(*secret, ours), apply(release.namespace)) == ("", "", "")

    release.helm("upgrade", "dljob", str(CHART), namespaceSelector={"matchLabels": {"served": "yes"}})
    plane.kubectl("label", "namespace", ours, "served=yes")
    processes.until(lambda: "it serves served=yes,kubernetes.io/" in apply(later), 30, "the policy is the new one")
    assert "does not serve" in refusal(*secret, later)
    assert (apply(ours), refusal(*secret, ours)) == ("", "")
    flags = [flag for flag in release.arguments() if flag.startswith("--namespace")]
    with running(plane, tmp_path, *flags):
        plane.apply({**job("j"), "metadata": {"name": "j", "namespace": ours}})
        phase = ("get", "dljob", "j", "-o", "jsonpath={.status.phase}", "-n")
        processes.until(lambda: bool(plane.kubectl(*phase, ours)), 30, "a selected namespace is served")
        assert plane.kubectl(*phase, later) == ""
        plane.kubectl("label", "namespace", later, "served=yes")
        processes.until(lambda: bool(plane.kubectl(*phase, later)), 30, "one that is labelled later, too")


def test_the_role_edit_may_make_jobs_but_not_write_their_status(release: Release, plane: Cluster) -> None:
    release.install()
    for role in ("view", "edit"):
        user = f"{role}er"
        plane.kubectl("create", "rolebinding", user, f"--clusterrole={role}", f"--user={user}", "-n", release.namespace)
    for verb, user in (("list", "viewer"), ("create", "editer")):  # a controller adds our roles to those
        can = partial(release.may, verb, "dljobs.dljob.io", release.namespace, user)
        processes.until(can, 30, f"the {user} to {verb} DLJobs")
    assert not release.may("create", "dljobs.dljob.io", release.namespace, "viewer")
    assert not release.may("patch", "dljobs.dljob.io/status", release.namespace, "editer")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"replicas": 0}, "replicas"),
        ({"rbac": {"scope": "Everywhere"}}, "scope"),
        ({"watchNamespaces": ["default"]}, "watchNamespaces"),
        ({"jobs": {"rayVersion": "newest"}}, "rayVersion"),
    ],
)
def test_wrong_values_install_nothing(release: Release, values: dict[str, Any], words: str) -> None:
    with pytest.raises(HelmError) as caught:
        release.install(**values)
    assert words in str(caught.value)
    assert not release.there("deployment", "dljob")


def test_two_releases_do_not_overwrite_each_other(release: Release, namespace: Callable[..., str]) -> None:
    release.install()
    other = Release(release.cluster, namespace())
    with pytest.raises(HelmError) as caught:
        other.helm("install", "dljob", str(CHART))
    assert "cannot be imported into the current release" in str(caught.value)
    assert not other.there("deployment", "dljob")
    second = Release(release.cluster, other.namespace, "second")
    try:
        notes = second.install(crds={"install": False})
        assert f"the release dljob in namespace {release.namespace} serves every namespace, too" in notes
        assert "Their token keys differ, so neither takes over the other's jobs while both are installed" in notes
        key = {"apiVersion": "v1", "kind": "Secret", "data": {"key": release.key()}}
        release.cluster.apply({**key, "metadata": {"name": "one-key", "namespace": other.namespace}})
        notes = second.helm(
            "upgrade", "second", str(CHART), crds={"install": False}, tokenKey={"existingSecret": "one-key"}
        )
        assert "serves every namespace, too" in notes
        assert "token keys differ" not in notes
    finally:
        second.helm("uninstall", "second", "--ignore-not-found")


def test_the_lines_of_the_readme_run_as_they_stand(plane: Cluster, tmp_path: Path) -> None:
    """On what `make kube-up` leaves; no node is there, so the job waits for its pods."""
    text = (cache.ROOT / "README.md").read_text(encoding="utf-8").partition("On Kubernetes, with")[2]
    lines = [line[2:].partition("  # ")[0].strip() for line in text.splitlines() if line.startswith("$ ")]
    install, apply, get = lines[:3]
    assert [line.split()[0] for line in lines[:3]] == ["helm", "kubectl", "kubectl"]
    for name in ("helm", "kubectl"):
        (tmp_path / name).symlink_to(cache.program("helm") if name == "helm" else kubectl())
    env = {**os.environ, "KUBECONFIG": str(plane.kubeconfig), "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def run(line: str) -> str:
        return subprocess.check_output(shlex.split(line), env=env, cwd=cache.ROOT, text=True)

    up.adoptable(plane)
    try:
        assert f"dljob {VERSION} serves every namespace" in run(install)
        assert "dljob.dljob.io/hello created" in run(apply)
        assert run(get.removesuffix(" -w")).splitlines()[0].split()[:3] == ["NAME", "PHASE", "REASON"]
    finally:
        run("kubectl delete -f examples/hello-cpu/dljob.yaml --ignore-not-found")
        run(f"helm uninstall {up.RELEASE} --namespace {up.SPACE} --ignore-not-found")
        run(f"kubectl delete namespace {up.SPACE} --wait=false --ignore-not-found")
