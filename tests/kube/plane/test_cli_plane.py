"""The command against a real API server with the operator: no node, so pods stay Pending and no head can be asked."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import operator_kit as kit
import pytest
from cluster import handle
from cluster.handle import Cluster
from hello_job import JOB

from dljob.api.kubernetes.package import LIMIT

POLICY = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicy",
    "metadata": {"name": "no-more-than-one"},
    "spec": {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "namespaceSelector": {"matchLabels": {"strict": "yes"}},
            "resourceRules": [
                {"apiGroups": ["dljob.io"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["dljobs"]}
            ],
        },
        "validations": [{"expression": "object.spec.roles[0].replicas < 2", "message": "one rank a team, this month"}],
    },
}
BINDING = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicyBinding",
    "metadata": {"name": "no-more-than-one"},
    "spec": {"policyName": "no-more-than-one", "validationActions": ["Deny"]},
}

Dljob = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def operator(plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[kit.Operator]:
    with kit.running(plane, tmp_path_factory.mktemp("operator")) as running:
        yield running


@pytest.fixture
def team(plane: Cluster) -> Iterator[str]:
    """A namespace for one test."""
    name = f"team-{os.urandom(3).hex()}"
    plane.kubectl("create", "namespace", name)
    yield name
    plane.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def start(plane: Cluster, tmp_path: Path) -> Start:
    """The command beside the test, on the files of a job."""
    (tmp_path / "hello.py").write_text("def main(): ...\n")
    (tmp_path / "dljob.yaml").write_text(JOB)

    def begin(*words: str, kubeconfig: Path = plane.kubeconfig) -> subprocess.Popen[str]:
        env = {**os.environ, "KUBECONFIG": str(kubeconfig), "DLJOB_HOME": str(tmp_path / "home"), "NO_COLOR": "1"}
        command, pipe = [sys.executable, "-m", "dljob.cli", *words], subprocess.PIPE
        nothing = subprocess.DEVNULL
        return subprocess.Popen(command, env=env, cwd=tmp_path, stdout=pipe, stderr=pipe, stdin=nothing, text=True)

    return begin


@pytest.fixture
def dljob(start: Start) -> Dljob:
    def run(*words: str, **where: Path) -> subprocess.CompletedProcess[str]:
        with start(*words, **where) as running:
            try:
                out, err = running.communicate(timeout=90)
            except subprocess.TimeoutExpired:
                running.kill()
                raise
        return subprocess.CompletedProcess(running.args, running.returncode, out, err)

    return run


def code_maps(plane: Cluster, namespace: str) -> list[str]:
    listed = plane.kubectl("get", "configmaps", "-n", namespace, "-o", "name").split()
    return [name for name in listed if "-code-" in name]


def test_the_command_shows_each_phase_of_a_jobs_life(
    plane: Cluster, operator: kit.Operator, team: str, dljob: Dljob
) -> None:
    done = dljob("submit", "dljob.yaml", "-n", team)
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    (code,) = code_maps(plane, team)
    kit.until(lambda: "ClusterCreated" in dljob("events", "hello", "-n", team).stdout, "the operator's Events")
    shown = dljob("status", "hello", "-n", team).stdout
    assert f"in namespace {team}: Provisioning" in shown
    assert "RayCluster hello-" in shown
    assert "worker  0/2" in shown
    assert json.loads(dljob("status", "hello", "-n", team, "-o", "json").stdout)["rolesReady"] == "0/2"
    again = dljob("submit", "dljob.yaml", "-n", team)
    assert (again.returncode, f"there is a job hello in namespace {team}, Provisioning" in again.stderr) == (2, True)
    quiet = dljob("logs", "hello", "-n", team)
    assert (quiet.returncode, "runs yet: Provisioning" in quiet.stderr) == (3, True)
    early = dljob("restart", "hello", "worker/1", "-n", team)
    assert (early.returncode, "restart of worker/1 ignored: nothing of the job runs yet" in early.stderr) == (2, True)
    wrong = dljob("restart", "hello", "worker/2", "-n", team)
    assert (wrong.returncode, "worker/0 to worker/1" in wrong.stderr) == (3, True)
    stopped = dljob("stop", "hello", "-n", team, "--wait")
    assert stopped.returncode == 0, stopped.stderr
    told = json.loads(dljob("status", "hello", "-n", team, "-o", "json").stdout)
    assert (told["phase"], told["reason"]) == ("Stopped", "StoppedByUser")
    over = dljob("stop", "hello", "-n", team)
    assert (over.returncode, "has ended: Stopped" in over.stderr) == (3, True)
    plane.kubectl("delete", "dljob", "hello", "-n", team)
    kit.until(lambda: not code_maps(plane, team), f"{code} goes with the job that owns it")


def test_run_follows_and_exits_with_the_fate(
    plane: Cluster, operator: kit.Operator, team: str, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "short.yaml").write_text(JOB + "  preRunningDeadlineSeconds: 3600\n")
    with start("run", "short.yaml", "-n", team) as running:
        assert running.stderr is not None
        heard: list[str] = []
        while not heard or "] Provisioning" not in heard[-1]:
            heard.append(running.stderr.readline())
            # Empty once the command has ended.
            assert heard[-1], heard
        # Only now, so that the command has seen the job before its end, however busy the machine is.
        sooner = json.dumps({"spec": {"preRunningDeadlineSeconds": 1}})
        plane.kubectl("patch", "dljob", "hello", "-n", team, "--type=merge", "-p", sooner)
        out, err = running.communicate(timeout=90)
    assert running.returncode == 5, err
    last = json.loads(out.splitlines()[-1])
    assert (last["phase"], last["reason"]) == ("Failed", "PreRunningDeadlineExceeded")


def test_code_up_to_the_size_limit_is_uploaded(team: str, dljob: Dljob, tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(os.urandom(LIMIT - 2_000))
    done = dljob("submit", "dljob.yaml", "-n", team)
    assert done.returncode == 0, done.stderr
    assert "code: 3 files, 102" in done.stderr  # KiB


def test_a_policy_of_the_cluster_speaks_in_its_own_words_and_leaves_nothing(
    plane: Cluster, team: str, dljob: Dljob
) -> None:
    plane.kubectl("label", "namespace", team, "strict=yes")
    plane.apply(POLICY, BINDING)
    try:

        def refused() -> str:
            done = dljob("submit", "dljob.yaml", "-n", team)
            if done.returncode == 0:  # a policy takes a moment to be known
                plane.kubectl("delete", "dljob", "hello", "-n", team)
                return ""
            assert done.returncode == 2, done.stderr
            return done.stderr

        assert "one rank a team, this month" in kit.until(refused, "the policy's word")
        kit.until(lambda: not code_maps(plane, team), "the code of a refused job goes", 30)
    finally:
        plane.kubectl("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", "no-more-than-one")


def user(plane: Cluster, namespace: str, role: str, file: Path) -> Path:
    """A kubeconfig of a service account with a role in the namespace, and what dljob's chart adds to the roles."""
    ours, rays = {"apiGroups": ["dljob.io"]}, {"apiGroups": ["ray.io"]}
    rules = {
        "view": [{**ours, "resources": ["dljobs", "dljobs/status"], "verbs": ["get", "list", "watch"]}],
        "edit": [
            {**ours, "resources": ["dljobs"], "verbs": ["create", "update", "patch", "delete"]},
            {**rays, "resources": ["rayclusters"], "verbs": ["get"]},
        ],
    }
    for name, rule in rules.items():
        plane.apply(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRole",
                "metadata": {
                    "name": f"dljob-test-{name}",
                    "labels": {f"rbac.authorization.k8s.io/aggregate-to-{name}": "true"},
                },
                "rules": rule,
            }
        )
    plane.kubectl("create", "serviceaccount", role, "-n", namespace)
    plane.kubectl(
        "create", "rolebinding", role, "-n", namespace, f"--clusterrole={role}", f"--serviceaccount={namespace}:{role}"
    )
    token = plane.kubectl("create", "token", role, "-n", namespace).strip()
    config = json.loads(plane.kubectl("config", "view", "--raw", "-o", "json"))
    config["users"] = [{"name": role, "user": {"token": token}}]
    context = {"cluster": config["clusters"][0]["name"], "user": role, "namespace": namespace}
    config["contexts"], config["current-context"] = [{"name": role, "context": context}], role
    file.write_text(json.dumps(config))
    return file


def test_the_role_edit_is_enough_and_view_sees(
    plane: Cluster, operator: kit.Operator, team: str, dljob: Dljob, tmp_path: Path
) -> None:
    edit, view = (user(plane, team, role, tmp_path / role) for role in ("edit", "view"))

    def findings(who: Path) -> dict[str, dict[str, str]]:
        return {one["check"]: one for one in json.loads(dljob("doctor", "-k", "-o", "json", kubeconfig=who).stdout)}

    kit.until(lambda: findings(edit)["rights"]["state"] == "ok", "the roles are aggregated")
    assert findings(edit)["nodes"]["state"] == "skip"
    assert dljob("submit", "dljob.yaml", "-k", kubeconfig=edit).returncode == 0
    kit.until(lambda: "ClusterCreated" in dljob("events", "hello", "-k", kubeconfig=edit).stdout, "Events, as edit")
    assert "ClusterCreated" in dljob("events", "hello", "-k", kubeconfig=view).stdout
    assert dljob("status", "hello", "-k", kubeconfig=view).returncode == 0
    refused = dljob("stop", "hello", "-k", kubeconfig=view)
    assert (refused.returncode, "cannot patch resource" in refused.stderr) == (4, True)
    assert "create dljobs (submit)" in findings(view)["rights"]["message"]
    assert dljob("stop", "hello", "-k", kubeconfig=edit).returncode == 0


def test_doctor_and_kubectl_dljob_find_a_sound_cluster(
    plane: Cluster, operator: kit.Operator, team: str, dljob: Dljob, tmp_path: Path
) -> None:
    done = dljob("doctor", "-n", team)
    # A chart that was installed before, and left the CRD, has put its version on it.
    assert re.search(r"ok +DLJob CRD +v1alpha1, (of dljob [0-9.]+, )?the same fields as here", done.stdout), done.stdout
    assert "RayClusters are served" in done.stdout
    plugin = tmp_path / "bin" / "kubectl-dljob"
    plugin.parent.mkdir()
    plugin.write_text(f"#!{sys.executable}\nfrom dljob.cli.main import kubectl_main\nkubectl_main()\n")
    plugin.chmod(0o755)
    env = {**os.environ, "PATH": f"{plugin.parent}:{os.environ['PATH']}", "KUBECONFIG": str(plane.kubeconfig)}
    words = [str(handle.kubectl()), "dljob", "status", "-n", team]
    told = subprocess.run(words, env=env, capture_output=True, text=True, check=True, timeout=60)
    assert told.stderr == f"no jobs in namespace {team}\n"
