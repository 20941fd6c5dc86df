"""Helpers for operator tests on a real API server: the operator's process, stub heads, and jobs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "unit" / "kube"))

from cluster import cache, processes
from cluster.handle import Cluster
from stub_head import StubHead

from dljob.kube.token_key import TokenKey

KEY = "an operator's key for tests alone"
IMAGES = {"operator": "dljob.local/operator:dev", "runtime": "dljob.local/runtime:dev"}


def until(check: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """Poll the API server and return the first true answer.

    Polls get rarer and take at most half of the time: a call of kubectl costs 0.17 s of CPU, one of `dljob` a second,
    which the cluster under test needs too.
    """
    begin = asked = time.monotonic()
    pause = 0.05
    while not (got := check()):
        now = time.monotonic()
        if now > begin + seconds:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(max(pause, now - asked))
        asked, pause = time.monotonic(), min(0.5, pause * 1.3)
    return got


@dataclass
class Operator:
    """The operator as a process of this machine."""

    cluster: Cluster
    folder: Path
    flags: Sequence[str] = ()
    kubeconfig: Path | None = None
    """Alternative kubeconfig to the same API server, such as a proxy's."""
    ports: list[int] = field(default_factory=list)
    program: Sequence[str] = ("-m", "dljob_operator")
    """Python's arguments that run the operator."""
    process: subprocess.Popen[bytes] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def start(self, *, wait: bool = True) -> Operator:
        """Start the operator and wait until its caches are filled."""
        self.folder.mkdir(parents=True, exist_ok=True)
        key = self.folder / "key"
        key.write_text(KEY)
        self.ports = list(processes.free_ports(2))
        where = [f"--kubeconfig={self.kubeconfig or self.cluster.kubeconfig}", f"--token-key-file={key}"]
        ports = [f"--metrics-port={self.ports[0]}", f"--health-port={self.ports[1]}"]
        with self.log.open("ab") as log:
            command = [sys.executable, *self.program, *where, *ports, *self.flags]
            env = {**os.environ, "PYTHONWARNINGS": "default", **self.environment}
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=env)
        if wait:
            until(self.ready, f"the operator is ready (see {self.log})", 60)
        return self

    @property
    def log(self) -> Path:
        return self.folder / "operator.log"

    def health(self) -> dict[str, Any]:
        """Return the liveness probe's answer; empty while it fails or nothing answers."""
        return self._probe("healthz")

    def ready(self) -> dict[str, Any]:
        """Return the readiness probe's answer; empty while it fails or nothing answers."""
        return self._probe("readyz")

    def _probe(self, path: str) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[1]}/{path}", timeout=5) as reply:
                return json.loads(reply.read())["operator"]
        except OSError:
            return {}

    def metrics(self) -> dict[str, float]:
        """Return every metric series and its value."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[0]}/metrics", timeout=10) as reply:
            lines = [line for line in reply.read().decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def writes(self) -> float:
        """Return the number of its API calls that change something."""
        found = self.metrics().items()
        return sum(
            value for name, value in found if name.startswith("rest_client_requests_total") and "GET" not in name
        )

    def kill(self) -> None:
        """Send SIGKILL and wait."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Send SIGTERM; returns the exit code."""
        if self.process is None or self.process.poll() is not None:
            return -1
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


@contextlib.contextmanager
def running(cluster: Cluster, folder: Path, *flags: str) -> Iterator[Operator]:
    """Run an operator for the block."""
    operator = Operator(cluster, folder, flags)
    try:
        yield operator.start()
    finally:
        operator.stop()


@contextlib.contextmanager
def with_images(node: Cluster, folder: Path, *flags: str) -> Iterator[Operator]:
    """Run an operator whose jobs use the project's own images; skips where these are not built."""
    lacking = [name for name in IMAGES if not (cache.home() / "images" / f"{name}.tar").exists()]
    if lacking:
        pytest.skip(f"no image of {' and '.join(lacking)}: python tests/kube/images/build.py builds them")
    with running(node, folder, "--image", IMAGES["runtime"], "--init-image", IMAGES["operator"], *flags) as operator:
        yield operator


RUN = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
"""Index of this run among parallel ones, from 0."""


class Head:
    """A stub head without a pod: Ray's port and the gateway's on its own loopback address.

    Test files choose addresses independently, so each parallel run shifts them to a network of its own.
    """

    def __init__(self, ip: str) -> None:
        self.ip = ip.replace("127.0.", f"127.{RUN}.", 1)
        self.stub = StubHead()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._failed: list[OSError] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait(10)
        if self._failed:
            raise self._failed[0]

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except OSError as error:
            self._failed.append(error)
            self._ready.set()
            return
        self._ready.set()
        self._loop.run_forever()
        # Connections that were closed last let go of their sockets in the next turns.
        for _ in range(3):
            self._loop.run_until_complete(asyncio.sleep(0))

    async def _serve(self) -> None:
        self._runner = web.AppRunner(self.stub.app(), shutdown_timeout=0.1)
        await self._runner.setup()
        for port in (8265, 8266):
            await web.TCPSite(self._runner, self.ip, port).start()

    def do(self, act: Callable[[], Any]) -> Any:
        """Run a function in the stub's thread."""

        async def go() -> Any:
            return act()

        return asyncio.run_coroutine_threadsafe(go(), self._loop).result(10)

    async def _stop(self) -> None:
        server = self._runner.server
        await self._runner.cleanup()
        # A connection that was accepted while the ports closed is known a turn later.
        await asyncio.sleep(0)
        if server is not None:
            await server.shutdown(0)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


def token(uid: str, ray_cluster: str) -> str:
    """Return the token that the operator derives for a RayCluster."""
    return TokenKey(KEY.encode()).token(uid, ray_cluster)


def job(name: str, **spec: Any) -> dict[str, Any]:
    """Return the manifest of a small DLJob."""
    role = {"name": "worker", "replicas": 2, "entrypoint": {"class": "hello.main"}, "resources": {"cpu": "500m"}}
    body = {"roles": [role], "image": "example.test/ray:1", **spec}
    return {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": name}, "spec": body}


def found(cluster: Cluster, kind: str, name: str, namespace: str = "default") -> dict[str, Any]:
    """Return an object; empty when it does not exist."""
    text = cluster.kubectl("get", kind, name, "-n", namespace, "-o", "json", "--ignore-not-found")
    return json.loads(text) if text.strip() else {}


def condition(body: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return a condition of a DLJob; empty when it has none of the type."""
    return next((one for one in body.get("status", {}).get("conditions", []) if one["type"] == kind), {})


def said(
    cluster: Cluster, namespace: str, name: str, reason: str, kind: str = "ClusterReady", *, seconds: float = 40
) -> str:
    """Wait until a condition is not True with this reason; returns its message."""

    seen: dict[str, str] = {}

    def look() -> str:
        one = condition(found(cluster, "dljob", name, namespace), kind)
        seen[f"{one.get('status')} {one.get('reason')}"] = str(one.get("message"))
        return one["message"] if (one.get("status"), one.get("reason")) == ("False", reason) else ""

    try:
        return until(look, f"{kind} of {name} is False for {reason}", seconds)
    except TimeoutError as error:
        raise TimeoutError(f"{error}; it was {seen}") from None


def warned(cluster: Cluster, namespace: str, name: str, reason: str) -> str:
    """Return the message of a job's Warning event with this reason, as `kubectl describe` shows it."""

    def look() -> str:
        events = cluster.get("events.events.k8s.io", "-n", namespace)["items"]
        notes = [
            event["note"]
            for event in events
            if (event["type"], event["reason"], event["regarding"]["name"]) == ("Warning", reason, name)
        ]
        return notes[0] if notes else ""

    return until(look, f"a Warning {reason} about {name}", 20)


def namespaced(cluster: Cluster, test: str) -> Iterator[str]:
    """Create a namespace for one test; it is deleted afterwards."""
    name = test.replace("_", "-").removeprefix("test-")[:40].strip("-")
    cluster.kubectl("create", "namespace", name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


def children(cluster: Cluster, uid: str, namespace: str = "default") -> list[str]:
    """Return kind/name of all objects labelled with a job's uid."""
    kinds = "secrets,configmaps,rayclusters,pods"
    listed = cluster.get(kinds, "-n", namespace, "-l", f"dljob.io/uid={uid}")["items"]
    return sorted(f"{item['kind']}/{item['metadata']['name']}" for item in listed)


def run_head(cluster: Cluster, ray_cluster: str, ip: str, namespace: str = "default") -> dict[str, Any]:
    """Write the status of a RayCluster's head pod as a kubelet does when it runs; returns the pod."""

    def pod() -> dict[str, Any]:
        selector = f"ray.io/cluster={ray_cluster},ray.io/node-type=head"
        items = cluster.get("pods", "-n", namespace, "-l", selector)["items"]
        return items[0] if items else {}

    head = until(pod, f"KubeRay makes the head of {ray_cluster}")
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    containers = [
        {
            "name": container["name"],
            "image": container["image"],
            "imageID": "x",
            "containerID": f"fake://{head['metadata']['uid']}",
            "ready": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": now}},
        }
        for container in head["spec"]["containers"]
    ]
    status = {
        "phase": "Running",
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "startTime": now,
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": now} for kind in ("Ready", "ContainersReady")
        ],
        "containerStatuses": containers,
    }
    name = head["metadata"]["name"]
    patch = json.dumps({"status": status})
    cluster.kubectl("patch", "pod", name, "-n", namespace, "--subresource=status", "--type=merge", "-p", patch)
    return head


def begun(plane: Cluster, namespace: str, head: Head, attempt: int) -> tuple[str, str]:
    """Play the head of an attempt until its submission is posted; returns the RayCluster's name and the job's uid."""

    def cluster() -> str:
        status = found(plane, "dljob", "j", namespace).get("status", {})
        there = status.get("attempt") == attempt and not status.get("submissionId")
        name = status.get("rayCluster", {}).get("name", "") if there else ""
        return name if name and found(plane, "raycluster", name, namespace) else ""

    name = until(cluster, f"attempt {attempt} has a RayCluster")
    uid = found(plane, "dljob", "j", namespace)["metadata"]["uid"]
    head.do(lambda: renewed(head, token(uid, name), attempt))
    run_head(plane, name, head.ip, namespace)
    until(lambda: len(head.stub.posted) == attempt, f"attempt {attempt} is submitted")
    return name, uid


def renewed(head: Head, word: str, attempt: int) -> None:
    """Reset the stub to a new head without memory."""
    head.stub.token, head.stub.session = word, f"session_{attempt}"
    head.stub.jobs.clear()
    head.stub.snapshots.clear()
