"""A Ray as KubeRay starts it: a head without CPUs, with dashboard and job server, and two raylets; all by HTTP."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class Ray:
    """The cluster. This process is not connected to it: what is known of it comes over HTTP, or from /proc."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.folder = Path(tempfile.mkdtemp(prefix="dlg-", dir="/tmp"))
        self.home = self.folder / "home"
        self._before = {
            name: os.environ.get(name) for name in ("RAY_TMPDIR", "PYTHONPATH", "DLJOB_HOME", "RAY_ADDRESS")
        }
        os.environ.update({"RAY_TMPDIR": str(self.folder), "DLJOB_HOME": str(self.home), "PYTHONPATH": str(HERE)})
        os.environ.pop("RAY_ADDRESS", None)
        self._cluster = Cluster(shutdown_at_exit=True)
        store = 80 << 20
        self.head = self._cluster.add_node(
            num_cpus=0, include_dashboard=True, dashboard_port=0, object_store_memory=store
        )
        self.nodes = [self.add_node("pod-a"), self.add_node("pod-b")]

    def add_node(self, pod: str) -> Any:
        """A raylet of 4 CPUs that believes to be in this pod."""
        os.environ["RAY_CLOUD_INSTANCE_ID"] = pod
        try:
            return self._cluster.add_node(num_cpus=4, object_store_memory=80 << 20)
        finally:
            del os.environ["RAY_CLOUD_INSTANCE_ID"]

    @property
    def jobs_api(self) -> str:
        return f"http://{self.head.webui_url}"

    def close(self) -> None:
        with suppress(Exception):
            self._cluster.shutdown()
        for name, value in self._before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        shutil.rmtree(self.folder, ignore_errors=True)

    def submit(self, job: Job, *, attempt: int = 0, runtime_env: Mapping[str, Any] | None = None, **flags: str) -> str:
        """Have Ray's Job API run the launcher; the submission's id."""
        from importlib.metadata import version

        words = {
            "spec": str(job.spec),
            "uid": job.uid,
            "attempt": str(attempt),
            "ray": version("ray"),
            "version": version("dljob"),
            "host": "127.0.0.1",
            "port": "0",
            **flags,
        }
        argv = " ".join(f"--{name} {value}" for name, value in words.items())
        body = {
            "entrypoint": f"{sys.executable} -m dljob.runtime.launcher {argv}",
            "submission_id": f"{job.name}-{job.uid[:8]}-{uuid.uuid4().hex[:6]}",
            "runtime_env": dict(runtime_env or {}),
        }
        return ask(f"{self.jobs_api}/api/jobs/", body, token())[1]["submission_id"]

    def submission(self, sent: str) -> dict[str, Any]:
        return ask(f"{self.jobs_api}/api/jobs/{sent}", None, token())[1]

    def log(self, sent: str) -> str:
        return ask(f"{self.jobs_api}/api/jobs/{sent}/logs", None, token())[1]["logs"]

    def stop(self, sent: str) -> None:
        ask(f"{self.jobs_api}/api/jobs/{sent}/stop", {}, token())

    def ended(self, sent: str, within: float = 60) -> dict[str, Any]:
        """The submission, once it is over."""

        def over() -> dict[str, Any] | None:
            seen = self.submission(sent)
            return seen if seen["status"] in ("SUCCEEDED", "FAILED", "STOPPED") else None

        return eventually(over, within, lambda: self.log(sent))

    def gateway(self, sent: str, within: float = 60) -> str:
        """Where the launcher says that the gateway serves."""

        def said() -> str:
            mark = "the gateway serves at "
            lines = [line for line in self.log(sent).splitlines() if mark in line]
            return lines[-1].rpartition(mark)[2].strip() if lines else ""

        return "http://" + eventually(said, within, lambda: self.log(sent))


class Job:
    """A spec in a file."""

    def __init__(self, folder: Path, *roles: Mapping[str, Any], name: str = "g", **spec: Any) -> None:
        self.uid = uuid.uuid4().hex
        self.name = name
        self.spec = folder / f"{name}-{self.uid[:8]}.json"
        self.spec.write_text(
            json.dumps(
                {
                    "apiVersion": "dljob.io/v1alpha1",
                    "kind": "DLJob",
                    "metadata": {"name": name},
                    "spec": {"roles": list(roles), **spec},
                }
            )
        )

    def at(self, gateway: str, path: str) -> str:
        return f"{gateway}/v1/jobs/{self.uid}/{path}"


def token() -> str:
    return os.environ["RAY_AUTH_TOKEN"]


def ask(url: str, body: Any = None, bearer: str = "", *, method: str = "", timeout: float = 60) -> tuple[int, Any]:
    """(HTTP status, JSON or text)."""
    request = urllib.request.Request(  # noqa: S310 - our own server
        url, method=method or ("GET" if body is None else "POST")
    )
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
    if bearer:
        request.add_header("Authorization", f"Bearer {bearer}")
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310
            return answer.status, _read(answer)
    except urllib.error.HTTPError as error:
        return error.code, _read(error)


def _read(answer: Any) -> Any:
    text = answer.read().decode()
    return json.loads(text) if "json" in answer.headers.get("Content-Type", "") else text


def eventually(check: Callable[[], Any], within: float, what: Callable[[], str]) -> Any:
    """The first true answer of check(); fails with what() when there is none in time."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        with suppress(OSError, KeyError):
            if got := check():
                return got
        time.sleep(0.05)
    raise AssertionError(what())


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
