"""describe: one page about a job of this machine, and about one on a cluster."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from fake_kube import CLUSTER, HEAD, FakeKube, add_event, add_head, add_job

from dljob.api import registry
from dljob.cli import description, main
from dljob.kube.api import PODS

pytestmark = pytest.mark.usefixtures("home")

UID = "a7efe1" * 5 + "00"
SPEC: dict[str, Any] = {
    "roles": [
        {"name": "actor", "type": "Elastic", "replicas": 4, "minReplicas": 2, "entrypoint": {"module": "train.py"},
         "accelerator": {"type": "GPU", "count": "0.5"}, "resources": {"cpu": "2", "memory": "8Gi"},
         "dependsOn": [{"role": "critic"}]},
        {"name": "critic", "entrypoint": {"command": ["serve", "--fast"]}, "resources": {"custom": {"slot": "1"}}},
    ]
}  # fmt: skip
RANKS = [{"role": "actor", "rank": n, "phase": "Running", "incarnation": 1, "nodeName": "n1"} for n in (0, 1, 3)]
STATUS: dict[str, Any] = {
    "name": "ppo",
    "uid": UID,
    "phase": "Failed",
    "reason": "UserErrorRepeats",
    "message": "actor/0: ValueError: bad",
    "startTime": "2026-01-01T00:00:01Z",
    "completionTime": "2026-01-01T00:10:00Z",
    "roles": [],
    "ranks": [*RANKS, {"role": "critic", "rank": 0, "phase": "Running", "incarnation": 1}],
    "recentFaults": [{"target": "actor/0", "level": "Process", "firstCause": "ValueError: bad", "seconds": 0.4,
                      "evidence": ["train.py:12 in main"], "followed": ["actor/1: connection reset"]}],
}  # fmt: skip


def local_job(status: dict[str, Any], *, spec: dict[str, Any] | None = None, **more: Any) -> registry.RegistryEntry:
    folder = registry.folder_of("ppo", UID)
    record = registry.register(registry.RegistryEntry("ppo", UID, str(folder), started=1767225600.0, **more))
    (folder / "status.json").write_text(json.dumps(status))
    if spec is not None:
        (folder / "spec.json").write_text(json.dumps({"spec": spec}))
    notes = [{"seq": n, "time": 1767225600.0 + n, "reason": "StepTold", "target": "job", "message": f"no. {n}"}
             for n in range(1, 13)]  # fmt: skip
    (folder / "events.jsonl").write_text("".join(json.dumps(note) + "\n" for note in notes))
    return record


def page(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main.run(["describe", *words]) == 0
    return capsys.readouterr().out.splitlines()


def below(lines: list[str], title: str) -> list[str]:
    """The lines of a section."""
    begin = lines.index(f"{title}:") + 1
    end = next((i for i, line in enumerate(lines[begin:], begin) if not line), len(lines))
    return [line.strip() for line in lines[begin:end]]


def test_describe_shows_an_ended_local_job(capsys):
    record = local_job(STATUS, spec=SPEC, runner=1, address="127.0.0.1:1")
    lines = page(capsys, "a7ef")
    assert lines[:2] == ["ppo (a7efe1a7): Failed", "  UserErrorRepeats: actor/0: ValueError: bad"]
    assert "  fault: actor/0 [Process] ValueError: bad; recovered in 0.40 s" in lines
    assert "    evidence: train.py:12 in main" in lines
    assert "    after it: actor/1: connection reset" in lines
    assert below(lines, "Job") == [
        f"uid: {UID}",
        "started: 2026-01-01T00:00:00Z",
        "ended: 2026-01-01T00:10:00Z",
        "Ray: one of its own, which ended with it",
    ]
    assert below(lines, "Roles")[0].startswith("ROLE")
    assert [" ".join(line.split()) for line in below(lines, "Roles")[1:]] == [
        "actor Elastic 4 (2 to 4) train.py 0.5 GPU, 2 CPU, 8Gi memory critic",
        "critic Actor 1 serve ... 1 CPU, 1 slot -",
    ]
    assert below(lines, "Nodes") == ["n1: actor 0-1,3"]
    events = below(lines, "Events")
    assert events[0] == "... 2 before: dljob events a7efe1a7"
    assert (len(events), events[-1].split()[0], events[-1][-6:]) == (11, "12.0s", "no. 12")
    assert below(lines, "Logs") == [f"{record.dir}/logs/<role>-<rank>.log", "dljob logs a7efe1a7 --follow"]


def test_describe_shows_a_job_without_spec_or_runner_as_lost(capsys):
    local_job({"phase": "Running", "roles": []}, runner=os.getpid(), runner_started=1)
    lines = page(capsys, "ppo")
    assert lines[0] == "ppo (a7efe1a7): Lost"
    assert "Roles:" not in lines
    assert "Nodes:" not in lines
    assert "Ray: one of its own, which ended with it" in below(lines, "Job")


def test_describe_refuses_an_unknown_job(capsys):
    assert main.run(["describe", "nope"]) == 3
    assert "no job 'nope'" in capsys.readouterr().err


def pod(kube: FakeKube, name: str, kind: str, node: str = "") -> None:
    labels = {"ray.io/cluster": CLUSTER, "ray.io/node-type": kind}
    spec = {"nodeName": node} if node else {}
    kube.put(PODS, {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {"phase": "Running"}})


def test_describe_shows_a_job_on_kubernetes_with_its_pods_and_events(kube, capsys):
    job = add_job(kube, phase="Running", conditions=[{"type": "Running", "status": "True", "reason": "AllReady"}])
    add_head(kube)
    add_event(kube, job, "ClusterCreated", "RayCluster made", "2026-01-01T00:00:05Z")
    pod(kube, HEAD, "head", "node-a")
    pod(kube, "hello-worker", "worker")
    lines = page(capsys, "hello", "-n", "team", "--context", "test")
    assert lines[0].endswith("in namespace team: Running")
    assert any(line.split()[:3] == ["Running", "True", "AllReady"] for line in lines)
    assert [line.split() for line in below(lines, "Roles")[1:]] == [
        ["worker", "Actor", "2", "hello.main", "1", "CPU", "-"]
    ]
    assert [line.split() for line in below(lines, "Nodes")[1:]] == [
        ["-", "hello-worker", "worker", "Running"],
        ["node-a", HEAD, "head", "Running"],
    ]
    assert "ClusterCreated" in below(lines, "Events")[0]
    assert below(lines, "Logs") == ["dljob logs hello --follow -n team --context test"]
    kubectl = "kubectl --context test -n team"
    assert [line.partition("    #")[0] for line in below(lines, "Dashboard of Ray")] == [
        f"{kubectl} port-forward pod/{HEAD} 8265",
        f"{kubectl} get secret {CLUSTER}-token -o 'jsonpath={{.data.auth_token}}' | base64 -d",
    ]


def test_a_job_without_a_head_has_no_dashboard_and_who_may_not_list_pods_hears_so(kube, capsys):
    add_job(kube)
    lines = page(capsys, "hello", "-k")
    assert not {"Nodes:", "Dashboard of Ray:"} & set(lines)
    assert below(lines, "Events") == ["none; Kubernetes keeps them for an hour"]
    kube.update("hello", phase="Succeeded", rayCluster={"name": CLUSTER, "headPod": HEAD})
    kube.forbidden.add("list pods")
    lines = page(capsys, "hello", "-k")
    assert below(lines, "Nodes")[0].startswith("this user may not list pods")
    assert "Dashboard of Ray:" not in lines


def test_shares_of_time_are_of_the_time_that_all_ranks_had():
    """Also where a role had more ranks before than it has now."""
    accounts = {"productive": 70.0, "recompute": 30.0, "spare": 100.0}
    ledger = {"seconds": 12.0, "processes": 4, "goodput": 0.7, "recentGoodput": 0.5, "accounts": accounts}
    (line,) = description.spent(ledger)
    assert "; spare 100.0%, recompute 30.0%" in line
