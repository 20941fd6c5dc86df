"""The control plane: it serves, our CRD is sound there, several run at once, and the end leaves nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster import cache, processes, up
from cluster.handle import Cluster, KubectlError


def test_the_control_plane_serves_the_crds(plane: Cluster) -> None:
    for name in (up.CRD, "rayclusters.ray.io"):
        conditions = {c["type"]: c["status"] for c in plane.get("crd", name)["status"]["conditions"]}
        assert conditions["Established"] == "True"
        assert "NonStructuralSchema" not in conditions, plane.get("crd", name)["status"]["conditions"]


def test_a_job_is_taken_and_a_wrong_one_is_refused(plane: Cluster) -> None:
    job = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "cluster-check"}, "spec": {}}
    with pytest.raises(KubectlError, match=r"spec\.roles"):
        plane.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(job))
    example = cache.ROOT / "examples" / "hello-cpu" / "dljob.yaml"
    assert "created" in plane.kubectl("create", "--dry-run=server", "-f", str(example))


def test_kuberay_acts_on_a_raycluster(plane: Cluster) -> None:
    head = {"containers": [{"name": "ray", "image": "ray"}]}
    spec = {"headGroupSpec": {"rayStartParams": {}, "template": {"spec": head}}, "rayVersion": "2.60.0"}
    metadata = {"name": "cluster-check", "namespace": "default"}
    plane.apply({"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata, "spec": spec})
    try:
        made = "--for=create", "--timeout=60s", "service/cluster-check-head-svc"
        plane.kubectl("wait", *made)
    finally:
        plane.kubectl("delete", "raycluster", "cluster-check")


def test_pods_run_on_fake_nodes(plane: Cluster, kwok: Callable[..., None]) -> None:
    kwok(3, prefix="few", resources={"cpu": "4", "memory": "8Gi", "pods": "10", "huawei.com/Ascend910": "8"})
    wants = {"limits": {"huawei.com/Ascend910": "8"}}
    for i in range(3):
        spec = {"containers": [{"name": "c", "image": "none", "resources": wants}]}
        plane.apply(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"fake-{i}", "namespace": "default"}, "spec": spec}
        )
    try:
        plane.kubectl("wait", "--for=condition=Ready", "--timeout=60s", *(f"pod/fake-{i}" for i in range(3)))
        nodes = {plane.get("pod", f"fake-{i}")["spec"]["nodeName"] for i in range(3)}
        assert nodes == {"few-0", "few-1", "few-2"}
    finally:
        plane.kubectl("delete", "pod", *(f"fake-{i}" for i in range(3)))


def test_two_planes_run_side_by_side_and_leave_nothing_when_they_end(plane: Cluster, tmp_path: Path) -> None:
    if plane.run is None:
        pytest.skip("an existing cluster is not started here: unset DLJOB_E2E")
    first = up.plane(tmp_path / "first", operator=False)
    second = up.plane(tmp_path / "second", operator=False)
    first.kubectl("create", "namespace", "only-here")
    with pytest.raises(KubectlError, match="not found"):
        second.kubectl("get", "namespace", "only-here")
    pids = [json.loads(note.read_text())["pid"] for note in (tmp_path / "first" / "pid").iterdir()]
    assert len(pids) == 4
    assert up.plane(tmp_path / "first", operator=False) == first  # the one that runs is kept
    assert sorted(up.down(tmp_path / "first")) == ["apiserver", "controller-manager", "etcd", "scheduler"]
    assert not (tmp_path / "first").exists()
    assert not [pid for pid in pids if processes.birth(pid)]
    second.kubectl("get", "namespaces")  # the other one lives
    up.down(tmp_path / "second")


def test_a_pid_that_another_process_has_now_is_left_alone(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        (tmp_path / "pid").mkdir()
        (tmp_path / "pid" / "etcd").write_text(json.dumps({"pid": other.pid, "birth": "1"}))
        assert processes.stop_all(tmp_path) == []
        assert other.poll() is None
        processes.note(tmp_path, "etcd", other.pid)
        assert processes.stop_all(tmp_path) == ["etcd"]
        assert not processes.birth(other.pid)
    finally:
        other.kill()
        other.wait()


def test_a_process_that_runs_on_holds_no_file_of_its_caller(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock:
        os.set_inheritable(lock.fileno(), True)
        script = "import time; print('ready', flush=True); time.sleep(60)"
        pid = processes.start(tmp_path, "etcd", [sys.executable, "-c", script])
        words = tmp_path / "log" / "etcd"  # while a program is loaded it opens its libraries
        processes.until(lambda: "ready" in words.read_text(), 60, "etcd", tmp_path, ["etcd"])
        held = [str(p.readlink()) for p in Path(f"/proc/{pid}/fd").iterdir()]
    processes.stop(tmp_path, "etcd")
    assert sorted(held) == ["/dev/null", *[str(tmp_path / "log" / "etcd")] * 2]


def test_a_process_that_ends_at_once_is_named_with_its_last_words(tmp_path: Path) -> None:
    processes.start(tmp_path, "etcd", [sys.executable, "-c", "print('no room'); raise SystemExit(3)"])
    with pytest.raises(RuntimeError, match=r"(?s)waited for etcd: etcd ended.*no room"):
        processes.until(lambda: False, 60, "etcd", tmp_path, ["etcd"])
    os.wait()


def test_a_program_that_is_not_built_is_named_with_how_to_build_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(cache.MissingError, match="kube is not built: run `make kube-build`"):
        up.plane(tmp_path / "run")
    assert not (tmp_path / "run").exists()
