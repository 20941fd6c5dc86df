"""A Ray as KubeRay starts it: a head without CPUs, with dashboard and job server, and two raylets; tests use HTTP."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from patience import patience

from dljob.runtime.journal.job_record import FINAL

KITS = Path(__file__).parent
USERS = KITS.parent / "users"
PORTS = range(20_000, 32_000)


class Submissions:
    """A Ray's head as seen by HTTP and by its processes."""

    folder: Path
    """Ray's folder, which stands in the environment of all its processes."""
    home: Path
    """DLJOB_HOME of the launchers."""
    port: int
    """Port of the gateway."""

    @property
    def jobs_api(self) -> str:
        """Return the URL of Ray's Job API."""
        raise NotImplementedError

    def submit(
        self, job: Job, *, attempt: int = 0, runtime_env: Mapping[str, Any] | None = None, sent: str = "", **flags: str
    ) -> str:
        """Submit the launcher to Ray's Job API; returns the submission's id."""
        from importlib.metadata import version

        words = {
            "spec": str(job.spec),
            "uid": job.uid,
            "attempt": str(attempt),
            "ray": version("ray"),
            "version": version("dljob"),
            "host": "127.0.0.1",
            "port": str(self.port),
            **flags,
        }
        argv = " ".join(f"--{name} {value}" for name, value in words.items())
        body = {
            "entrypoint": f"{sys.executable} -m dljob.runtime.launcher {argv}",
            "submission_id": sent or f"{job.name}-{job.uid[:8]}-{uuid.uuid4().hex[:6]}",
            "runtime_env": dict(runtime_env or {}),
        }
        said: list[Any] = [None]

        def taken() -> str:
            """Try to submit; a new head answers with an error until an agent can run the submission."""
            said[0] = ask(f"{self.jobs_api}/api/jobs/", body, token())
            return said[0][1]["submission_id"] if said[0][0] == 200 else ""

        job.sent = eventually(taken, 150, lambda: str(said[0]))
        return job.sent

    def submission(self, sent: str) -> dict[str, Any]:
        return ask(f"{self.jobs_api}/api/jobs/{sent}", None, token())[1]

    def log(self, sent: str) -> str:
        return ask(f"{self.jobs_api}/api/jobs/{sent}/logs", None, token())[1]["logs"]

    def stop(self, sent: str) -> None:
        ask(f"{self.jobs_api}/api/jobs/{sent}/stop", {}, token())

    def ended(self, sent: str, within: float = 60) -> dict[str, Any]:
        """Wait for the end of a submission; returns its record."""

        def over() -> dict[str, Any] | None:
            seen = self.submission(sent)
            return seen if seen["status"] in ("SUCCEEDED", "FAILED", "STOPPED") else None

        return eventually(over, within, lambda: f"{self.submission(sent)}\n{self.log(sent)}")

    @property
    def gateway(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def upload(self, **files: str) -> str:
        """Upload a folder to the GCS as `dljob submit` does; returns its URI for `runtime_env.working_dir`."""
        package = io.BytesIO()
        with zipfile.ZipFile(package, "w") as packed:
            for name, text in files.items():
                packed.writestr(f"{name}.py", text)
        name = f"_ray_pkg_{uuid.uuid4().hex}.zip"
        code, said = ask(f"{self.jobs_api}/api/packages/gcs/{name}", package.getvalue(), token(), method="PUT")
        assert code == 200, said
        return f"gcs://{name}"

    def told(self) -> str:
        """Return the output of the commands that started its processes."""
        return ""

    def driver(self, sent: str) -> int:
        """Return the pid of a launcher."""
        found = [pid for pid, argv in processes() if "dljob.runtime.launcher" in argv and argv[0].endswith("python")]
        mine = [pid for pid in found if sent.encode() in Path(f"/proc/{pid}/environ").read_bytes()]
        (pid,) = mine
        return pid

    def actors(self, name: str) -> Iterator[int]:
        """Return the pids of this Ray's actors of a class."""
        mark = f"RAY_TMPDIR={self.folder}".encode()
        # The process title is `ray::Class`, or `ray::Class.method` during a call.
        found = (pid for pid, argv in processes() if argv[0].removeprefix("ray::").partition(".")[0] == name)
        return (pid for pid in found if mark in Path(f"/proc/{pid}/environ").read_bytes())

    def actor(self, name: str) -> int:
        """Return the pid of an actor of this Ray by its class; 0 when there is none."""
        return next(self.actors(name), 0)


class Ray(Submissions):
    """The cluster. This process does not connect to it: facts about it come from HTTP or /proc."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.folder = Path(tempfile.mkdtemp(prefix="dlg-", dir="/tmp"))
        self.home = self.folder / "home"
        self._before = {
            name: os.environ.get(name) for name in ("RAY_TMPDIR", "PYTHONPATH", "DLJOB_HOME", "RAY_ADDRESS")
        }
        os.environ.update(
            {
                "RAY_TMPDIR": str(self.folder),
                "DLJOB_HOME": str(self.home),
                "PYTHONPATH": f"{USERS}:{KITS}:{KITS / 'as_in_images'}:{KITS / 'late'}",
            }
        )
        os.environ.pop("RAY_ADDRESS", None)
        self._cluster = Cluster(shutdown_at_exit=True)
        store = 80 << 20
        self.head = self._cluster.add_node(
            num_cpus=0,
            include_dashboard=True,
            dashboard_port=0,
            dashboard_agent_listen_port=None,
            object_store_memory=store,
        )
        self.nodes = [self.add_node("pod-a"), self.add_node("pod-b")]
        self.port = free_port()

    def add_node(self, pod: str) -> Any:
        """Add a raylet of 4 CPUs with the environment of this pod."""
        os.environ["RAY_CLOUD_INSTANCE_ID"] = pod
        try:
            return self._cluster.add_node(num_cpus=4, object_store_memory=80 << 20)
        finally:
            del os.environ["RAY_CLOUD_INSTANCE_ID"]

    @property
    def jobs_api(self) -> str:
        return f"http://{self.head.webui_url}"

    def close(self) -> None:
        import ray
        from ray._private.worker import global_worker
        from ray.experimental import internal_kv

        with suppress(Exception):
            self._cluster.shutdown()
        if ray.is_initialized():  # `Cluster.shutdown` has disconnected the key-value store of the other Ray too.
            internal_kv._initialize_internal_kv(global_worker.gcs_client)
        for name, value in self._before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        shutil.rmtree(self.folder, ignore_errors=True)


class Job:
    """A job whose spec is in a file."""

    def __init__(self, folder: Path, *roles: Mapping[str, Any], name: str = "g", **spec: Any) -> None:
        self.uid = uuid.uuid4().hex
        self.name = name
        self.sent = ""
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

    def ask(self, ray: Submissions, path: str, body: Any = None, **more: Any) -> tuple[int, Any]:
        """Send a request about this job to the gateway."""
        return ask(f"{ray.gateway}/v1/jobs/{self.uid}/{path}", body, token(), **more)

    def until(self, ray: Submissions, check: Callable[[dict[str, Any]], Any], within: float = 60) -> dict[str, Any]:
        """Return the status once it satisfies the check."""
        seen: list[Any] = [None]

        def look() -> Any:
            seen[0] = self.ask(ray, "status?ranks=1")
            return seen[0][1] if seen[0][0] == 200 and check(seen[0][1]) else None

        return eventually(look, within, lambda: f"{json.dumps(seen[0], indent=1)}\n{self.launched(ray)}")

    def launched(self, ray: Submissions) -> str:
        """Return the state of its last submission, for the message of a failing test."""
        if not self.sent:
            return "nothing was submitted"
        with suppress(OSError, KeyError):
            return f"{json.dumps(ray.submission(self.sent), indent=1)}\n{ray.log(self.sent)}\n{ray.told()}"
        return f"Ray's head does not answer\n{ray.told()}"

    def running(self, ray: Submissions, within: float = 60) -> dict[str, Any]:
        return self.until(ray, lambda seen: seen["phase"] == "Running", within)

    def master(self, ray: Submissions) -> int:
        """Return the pid of its PrimeMaster: among those of this Ray, the one that has the job's journal open."""
        (pid,) = [pid for pid in ray.actors("PrimeMaster") if holds(pid, self.folder(ray) / "journal")]
        return pid

    def close(self, ray: Submissions) -> None:
        """Stop the job if it lives, because the next test on this Ray needs its CPUs."""

        def over() -> bool:
            self.ask(ray, "commands", {"id": "close", "kind": "stop"})
            code, seen = self.ask(ray, "status")
            return code == 404 or (code == 200 and seen["phase"] in FINAL)

        if self.sent:
            eventually(over, 60, lambda: self.launched(ray))

    def folder(self, ray: Submissions) -> Path:
        return ray.home / "jobs" / f"{self.name}-{self.uid[:8]}"

    def go(self, ray: Submissions) -> None:
        """Let the user code end."""
        (self.folder(ray) / "go").touch()


def token() -> str:
    return os.environ["RAY_AUTH_TOKEN"]


def ask(url: str, body: Any = None, bearer: str = "", *, method: str = "", timeout: float = 60) -> tuple[int, Any]:
    """Send a request; returns the HTTP status and the body as JSON or text."""
    request = urllib.request.Request(  # noqa: S310 - our own server
        url, method=method or ("GET" if body is None else "POST")
    )
    if isinstance(body, bytes):
        request.data = body
    elif body is not None:
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
    """Return the first true answer of check(); fails with what() when there is none in time."""
    end = time.monotonic() + patience(within)
    while time.monotonic() < end:
        with suppress(OSError, LookupError):
            if got := check():
                return got
        time.sleep(0.05)
    raise AssertionError(what())


def processes() -> Iterator[tuple[int, list[str]]]:
    """Yield pid and argv of every process."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                argv = (entry / "cmdline").read_text(errors="replace").split("\0")
                if argv[0]:
                    yield int(entry.name), argv


def holds(pid: int, folder: Path) -> bool:
    """Return whether a process has a file of a folder open."""
    with suppress(OSError):
        return any(folder == one.readlink().parent for one in Path(f"/proc/{pid}/fd").iterdir())
    return False


def free_port() -> int:
    """Return a port that nothing listens on.

    The port lies between the ranges of Ray's workers and of the kernel's ephemeral ports. An ephemeral port would be
    free again when this returns, and one of Ray's many servers could take it before it is used.
    """
    for port in random.sample(PORTS, len(PORTS)):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError(f"no port is free from {PORTS.start} to {PORTS.stop - 1}")


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
