"""A Ray as KubeRay starts it: a head without CPUs, with dashboard and job server, and two raylets; all by HTTP."""

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
    """What can be asked of a Ray's head by HTTP, and seen of its processes."""

    folder: Path
    """Ray's own, in the environment of all its processes."""
    home: Path
    """DLJOB_HOME."""
    port: int
    """Where the gateway listens."""

    @property
    def jobs_api(self) -> str:
        """Ray's Job API."""
        raise NotImplementedError

    def submit(
        self, job: Job, *, attempt: int = 0, runtime_env: Mapping[str, Any] | None = None, sent: str = "", **flags: str
    ) -> str:
        """Have Ray's Job API run the launcher; the submission's id."""
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
            """A head that is new has no agent yet that could run it, and says so."""
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
        """The submission, once it is over."""

        def over() -> dict[str, Any] | None:
            seen = self.submission(sent)
            return seen if seen["status"] in ("SUCCEEDED", "FAILED", "STOPPED") else None

        return eventually(over, within, lambda: f"{self.submission(sent)}\n{self.log(sent)}")

    @property
    def gateway(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def upload(self, **files: str) -> str:
        """Put a folder into the GCS, as `dljob submit` does; what `runtime_env.working_dir` names."""
        package = io.BytesIO()
        with zipfile.ZipFile(package, "w") as packed:
            for name, text in files.items():
                packed.writestr(f"{name}.py", text)
        name = f"_ray_pkg_{uuid.uuid4().hex}.zip"
        code, said = ask(f"{self.jobs_api}/api/packages/gcs/{name}", package.getvalue(), token(), method="PUT")
        assert code == 200, said
        return f"gcs://{name}"

    def told(self) -> str:
        """What its processes said when they were started."""
        return ""

    def driver(self, sent: str) -> int:
        """The pid of a launcher."""
        found = [pid for pid, argv in processes() if "dljob.runtime.launcher" in argv and argv[0].endswith("python")]
        mine = [pid for pid in found if sent.encode() in Path(f"/proc/{pid}/environ").read_bytes()]
        (pid,) = mine
        return pid

    def actors(self, name: str) -> Iterator[int]:
        """The pids of this Ray's actors of a class."""
        mark = f"RAY_TMPDIR={self.folder}".encode()
        # The title is ray::Class, or ray::Class.method while it answers a call.
        found = (pid for pid, argv in processes() if argv[0].removeprefix("ray::").partition(".")[0] == name)
        return (pid for pid in found if mark in Path(f"/proc/{pid}/environ").read_bytes())

    def actor(self, name: str) -> int:
        """The pid of an actor of this Ray, by its class; 0 when there is none."""
        return next(self.actors(name), 0)


class Ray(Submissions):
    """The cluster. This process is not connected to it: what is known of it comes over HTTP, or from /proc."""

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
                "PYTHONPATH": f"{USERS}:{KITS}:{KITS / 'as_in_images'}",
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
        import ray
        from ray._private.worker import global_worker
        from ray.experimental import internal_kv

        with suppress(Exception):
            self._cluster.shutdown()
        if ray.is_initialized():  # `Cluster.shutdown` has taken the key-value store of the other Ray away too
            internal_kv._initialize_internal_kv(global_worker.gcs_client)
        for name, value in self._before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        shutil.rmtree(self.folder, ignore_errors=True)


class Job:
    """A spec in a file."""

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
        """Ask the gateway about this job."""
        return ask(f"{ray.gateway}/v1/jobs/{self.uid}/{path}", body, token(), **more)

    def until(self, ray: Submissions, check: Callable[[dict[str, Any]], Any], within: float = 60) -> dict[str, Any]:
        """The status, once it satisfies the check."""
        seen: list[Any] = [None]

        def look() -> Any:
            seen[0] = self.ask(ray, "status?ranks=1")
            return seen[0][1] if seen[0][0] == 200 and check(seen[0][1]) else None

        return eventually(look, within, lambda: f"{json.dumps(seen[0], indent=1)}\n{self.launched(ray)}")

    def launched(self, ray: Submissions) -> str:
        """What became of its last submission, for a test that fails."""
        if not self.sent:
            return "nothing was submitted"
        with suppress(OSError, KeyError):
            return f"{json.dumps(ray.submission(self.sent), indent=1)}\n{ray.log(self.sent)}\n{ray.told()}"
        return f"Ray's head does not answer\n{ray.told()}"

    def running(self, ray: Submissions, within: float = 60) -> dict[str, Any]:
        return self.until(ray, lambda seen: seen["phase"] == "Running", within)

    def master(self, ray: Submissions) -> int:
        """The pid of its PrimeMaster, of all of this Ray: the one that has its journal open."""
        (pid,) = [pid for pid in ray.actors("PrimeMaster") if holds(pid, self.folder(ray) / "journal")]
        return pid

    def close(self, ray: Submissions) -> None:
        """Stop it if it lives: the next test of this Ray has its CPUs."""

        def over() -> bool:
            self.ask(ray, "commands", {"id": "close", "kind": "stop"})
            code, seen = self.ask(ray, "status")
            return code == 404 or (code == 200 and seen["phase"] in FINAL)

        if self.sent:
            eventually(over, 60, lambda: self.launched(ray))

    def folder(self, ray: Submissions) -> Path:
        return ray.home / "jobs" / f"{self.name}-{self.uid[:8]}"

    def go(self, ray: Submissions) -> None:
        """Let user code end."""
        (self.folder(ray) / "go").touch()


def token() -> str:
    return os.environ["RAY_AUTH_TOKEN"]


def ask(url: str, body: Any = None, bearer: str = "", *, method: str = "", timeout: float = 60) -> tuple[int, Any]:
    """(HTTP status, JSON or text)."""
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
    """The first true answer of check(); fails with what() when there is none in time."""
    end = time.monotonic() + patience(within)
    while time.monotonic() < end:
        with suppress(OSError, LookupError):
            if got := check():
                return got
        time.sleep(0.05)
    raise AssertionError(what())


def processes() -> Iterator[tuple[int, list[str]]]:
    """(pid, argv) of every process."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                argv = (entry / "cmdline").read_text(errors="replace").split("\0")
                if argv[0]:
                    yield int(entry.name), argv


def holds(pid: int, folder: Path) -> bool:
    """Whether a process has a file of a folder open."""
    with suppress(OSError):
        return any(folder == one.readlink().parent for one in Path(f"/proc/{pid}/fd").iterdir())
    return False


def free_port() -> int:
    """A port that nothing listens on.

    It lies between those of Ray's workers and those that the kernel gives away: a port that the kernel chose is free
    again when this returns, and one of Ray's many servers gets it before it is used.
    """
    for port in random.sample(PORTS, len(PORTS)):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError(f"no port is free from {PORTS.start} to {PORTS.stop - 1}")


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
