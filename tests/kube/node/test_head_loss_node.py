"""The head of a job on real pods is lost: with its memory kept nothing else restarts, else the next attempt begins."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from cluster.handle import Cluster
from node_kit import ended, logs, told
from operator_kit import Operator, found, until

CODE = """
import time
from pathlib import Path
from dljob import RoleGroup, Worker, checkpoint, progress, rpc

FOLDER = Path("/ckpt")


class Callee(Worker):
    @rpc
    def add(self, a):
        return a + 1


def caller():
    loaded = checkpoint.load()
    step, longest, last = (loaded[0] if loaded else 0), 0.0, time.monotonic()
    print(f"begins at step {step}", flush=True)
    while not (FOLDER / "go").exists():
        RoleGroup("callee").call_rank0("add", step).result(600)
        longest, last, step = max(longest, time.monotonic() - last), time.monotonic(), step + 1
        if step % 50 == 0:
            checkpoint.save(step, {"step": step})
        progress(step)
        time.sleep(0.02)
    print(f"ended at step {step}; longest pause {longest:.2f} s", flush=True)
"""


KILL = """
import os, signal
from contextlib import suppress
from pathlib import Path
for folder in Path("/proc").glob("[0-9]*"):
    with suppress(OSError):
        if (folder / "cmdline").read_bytes().split(bytes(1))[0].endswith(b"gcs_server"):
            os.kill(int(folder.name), signal.SIGKILL)
"""
"""The end of what Ray's head knows; its container ends with it."""


@pytest.fixture
def namespace(node: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    name = "head-" + re.sub(r"[^a-z]+", "-", request.node.name.removeprefix("test_"))[:30].strip("-")
    node.kubectl("create", "namespace", name)
    yield name
    node.kubectl("delete", "namespace", name, "--wait=false")


def claim(node: Cluster, namespace: str, name: str) -> Path:
    """A claim of a namespace, and its folder on this machine."""
    assert node.run is not None
    folder = node.run / "node" / f"{namespace}-{name}"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    usual = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    size, volume = {"storage": "1Gi"}, f"{namespace}-{name}"
    where = {"claimRef": {"namespace": namespace, "name": name}, "hostPath": {"path": str(folder), "type": "Directory"}}
    asked = {**usual, "resources": {"requests": size}, "volumeName": volume}
    node.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": {**usual, "capacity": size, **where},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": namespace},
            "spec": asked,
        },
    )
    return folder


def applied(node: Cluster, namespace: str, name: str, **more: Any) -> Path:
    """A job of a caller and a callee on two machines; the folder of its checkpoints."""
    folder = claim(node, namespace, "ckpt")
    rank = {"resources": {"cpu": "200m"}, "nodeGroup": "cpu"}
    spec = {
        "code": {"configMap": "code"},
        "head": {"cpu": "250m", "memory": "2Gi"},
        "master": {"cpu": "100m", "memory": "512Mi"},
        "nodeGroups": [{"name": "cpu", "replicas": 2, "cpu": "300m", "memory": "2Gi"}],
        "checkpoint": {"path": "/ckpt", "claimName": "ckpt"},
        "roles": [
            {"name": "caller", "entrypoint": {"class": "calls.caller"}, **rank},
            {"name": "callee", "entrypoint": {"class": "calls.Callee"}, "driver": False, **rank},
        ],
        **more,
    }
    where = {"namespace": namespace}
    node.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "code", **where},
            "data": {"calls.py": CODE},
        },
        {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": name, **where}, "spec": spec},
    )
    running(node, name, namespace, 0)
    return folder


def status(node: Cluster, name: str, namespace: str) -> dict[str, Any]:
    return found(node, "dljob", name, namespace).get("status", {})


def running(node: Cluster, name: str, namespace: str, beyond: int, *, attempt: int = 1) -> dict[str, Any]:
    """The status, when the job runs and has made more steps than that."""

    def look() -> dict[str, Any]:
        seen = status(node, name, namespace)
        assert seen.get("phase") != "Failed", seen
        on = seen.get("phase") == "Running" and seen.get("progress", {}).get("step", 0) > beyond
        return seen if on and seen["attempt"] == attempt else {}

    return until(look, f"{name} runs beyond step {beyond} in attempt {attempt}", 200)


def head(node: Cluster, namespace: str) -> dict[str, Any]:
    (pod,) = node.get("pods", "-n", namespace, "-l", "ray.io/node-type=head")["items"]
    return pod


def workers(node: Cluster, namespace: str) -> dict[str, tuple[str, int]]:
    """Uid and restarts of each worker pod."""
    pods = node.get("pods", "-n", namespace, "-l", "ray.io/node-type=worker")["items"]
    return {p["metadata"]["name"]: (p["metadata"]["uid"], restarts(p)) for p in pods}


def restarts(pod: dict[str, Any]) -> int:
    return sum(one["restartCount"] for one in pod["status"].get("containerStatuses", []))


def relaunched(node: Cluster, name: str, namespace: str, times: int) -> None:
    """The operator has ordered the launcher again for a head that came with the memory of the last."""

    def look() -> bool:
        seen = status(node, name, namespace)
        assert seen["attempt"] == 1, seen
        return seen["submissionId"].endswith(f"-1-r{times}")

    until(look, f"the launcher of {name} is ordered again", 200)


@pytest.mark.timeout(600)
def test_a_lost_head_with_its_memory_on_a_claim_restarts_nothing_else(
    node: Cluster, operator: Operator, namespace: str
) -> None:
    claim(node, namespace, "gcs")
    kept = {"backend": "RocksDB", "claimName": "gcs"}
    folder = applied(node, namespace, "kept", gcsFaultTolerance=kept)
    before, there = running(node, "kept", namespace, 20), workers(node, namespace)

    pod = head(node, namespace)["metadata"]["name"]
    node.kubectl("exec", "-n", namespace, pod, "-c", "ray-head", "--", "python", "-c", KILL)
    relaunched(node, "kept", namespace, 1)
    assert restarts(head(node, namespace)) == 1
    after = running(node, "kept", namespace, status(node, "kept", namespace)["progress"]["step"])

    node.kubectl("delete", "pod", "-n", namespace, pod, "--now")
    relaunched(node, "kept", namespace, 2)
    last = running(node, "kept", namespace, after["progress"]["step"])
    for seen in (after, last):
        assert (seen["restartsTotal"], seen["master"]["epoch"]) == (0, 1)
        assert seen["rayCluster"]["sessionName"] == before["rayCluster"]["sessionName"]
    assert workers(node, namespace) == there

    (folder / "go").touch()
    body = ended(node, "kept", namespace, 120)
    assert body["status"]["phase"] == "Succeeded", told(body)
    said = logs(node, "kept", namespace)["caller-0.log"]
    assert said.count("begins at step") == 1
    print(said)


@pytest.mark.timeout(600)
def test_after_a_head_lost_without_its_memory_the_next_attempt_resumes_from_the_checkpoint(
    node: Cluster, operator: Operator, namespace: str, tmp_path: Path
) -> None:
    folder = applied(node, namespace, "lost", faultTolerance={"leaseSeconds": 10})
    running(node, "lost", namespace, 120)
    with OpenPage(node, "lost", namespace, tmp_path) as page:
        first_life = page.shows("both roles at work on the page", lambda seen: productive(seen) == {"caller", "callee"})
        assert "SpecAccepted" in {event["reason"] for event in first_life["events"]}, (
            "the operator's Events are there, too"
        )
        # PrimeMaster copies it to the volume twice a minute.
        until(lambda: at_work(folder.glob("lost-*/status.json")), "a record of running roles is on the volume", 60)
        node.kubectl("delete", "pod", "-n", namespace, head(node, namespace)["metadata"]["name"], "--now")
        again = running(node, "lost", namespace, 120, attempt=2)
        fault = next(fault for fault in again["recentFaults"] if fault["level"] == "Cluster")
        assert (fault["reason"], again["restarts"]["cluster"]) == ("HeadLost", 1)
        # The page shows the first attempt until it has the record of the second, which is a page begun anew.
        begun = first_life["version"].partition(".")[0]
        page.shows(
            "the second attempt on the page, with the restart",
            lambda seen: (
                seen["version"].partition(".")[0] != begun
                and productive(seen) == {"caller", "callee"}
                and (seen["job"]["start"], seen["job"]["restarts"]["cluster"]) == (first_life["job"]["start"], 1)
            ),
        )
        (folder / "go").touch()
        page.shows("the end on the page", lambda seen: seen["job"]["phase"] == "Succeeded")
        body = ended(node, "lost", namespace, 120)
        assert body["status"]["phase"] == "Succeeded", told(body)
        first = re.search(r"begins at step (\d+)", logs(node, "lost", namespace)["caller-0.log"])
        assert first is not None
        assert int(first[1]) >= 50
        page.end()
    the_volume_tells_the_job(folder, tmp_path)


def at_work(records: Iterable[Path]) -> bool:
    seen = [json.loads(path.read_text()) for path in records]
    return any(one["phase"] == "Running" and (one["progress"]["step"] or 0) > 0 for one in seen)


class OpenPage:
    """`dljob open` of a job, and the data of its page as a browser gets them."""

    def __init__(self, node: Cluster, name: str, namespace: str, home: Path) -> None:
        env = {**os.environ, "KUBECONFIG": str(node.kubeconfig), "DLJOB_HOME": str(home), "NO_COLOR": "1"}
        self._command = subprocess.Popen(
            [sys.executable, "-m", "dljob.cli", "open", name, "-n", namespace, "--no-browser"],
            env=env,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._command.stdout
        link = self._command.stdout.readline().strip()
        self._base = link.partition("?")[0]
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with self._opener.open(link, timeout=30) as page:
            assert b'"source":"data"' in page.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._command.kill()
        self._command.wait()
        assert self._command.stdout
        self._command.stdout.close()

    def data(self) -> dict[str, Any]:
        """All data; none while the job does not answer."""
        try:
            with self._opener.open(f"{self._base}data", timeout=60) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
            return {}

    def shows(self, what: str, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        last: dict[str, Any] = {}

        def look() -> dict[str, Any]:
            last.update(self.data())
            return last if last and condition(last) else {}

        try:
            return dict(until(look, what, 60))
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{last.get('unrecorded')}\n{last.get('job')}") from None

    def end(self) -> None:
        self._command.send_signal(signal.SIGINT)
        assert self._command.wait(20) == 0


def productive(page: dict[str, Any]) -> set[str]:
    """The roles with a rank whose lane is productive."""
    account = page["accounts"].index("productive")
    return {role for role, ranks in (page["lanes"] or {}).items() if any(account in lane[1::2] for lane in ranks)}


def the_volume_tells_the_job(volume: Path, tmp_path: Path) -> None:
    """The record on the checkpoint volume, read with no cluster to ask: of the last attempt and of the lost one."""
    (record,) = volume.glob("lost-*")
    why = dljob("why", str(record))
    assert "Succeeded" in why
    assert "nothing failed" in why
    for folder, phase in ((record, "Succeeded"), (record / "earlier" / "attempt-1", "Running")):
        ledger = dljob("ledger", str(folder), "-o", "json")
        assert {role["name"] for role in json.loads(ledger)["roles"]} == {"caller", "callee"}
        assert phase in dljob("replay", str(folder))
        page = tmp_path / f"{folder.name}.html"
        dljob("report", str(folder), "-o", str(page))
        text = re.search(r'<script type="application/json" id="data">(.*)</script>', page.read_text())
        assert text
        assert productive(json.loads(text[1])) == {"caller", "callee"}


def dljob(*words: str) -> str:
    """What the command prints where there is no cluster."""
    env = {**os.environ, "KUBECONFIG": "/nowhere", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "dljob.cli", *words]
    return subprocess.run(command, check=True, env=env, stdout=subprocess.PIPE, text=True, timeout=60).stdout
