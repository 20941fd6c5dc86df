"""A Ray whose head is isolated like a pod: it can be lost with all its processes and started again.

The head has its own PID and mount namespaces, with an empty folder mounted over the job's folder; the workers
are raylets beside it. This process does not connect to Ray: facts come from HTTP or /proc.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gateway_kit import KITS, USERS, Submissions, ask, eventually, free_port, processes, token
from redis_kit import PASSWORD

RAY = str(Path(sys.executable).parent / "ray")
STORE = str(80 << 20)
HEAD = ("-pf", "--mount-proc", "--kill-child")
OWN = 'mount --bind "$(mktemp -d "$RAY_TMPDIR/machine-XXXXXX")" "$RAY_TMPDIR/head" && exec "$@"'
POD = f'mount -t tmpfs none "$DLJOB_HOME" && {OWN}'
KUBELET = 'until "$@"; do sleep 1; done'
"""Restarts a container that ends by itself, as a kubelet does. On a fully loaded machine a raylet aborts when its agent
needs more than 15 s to start (ray 2.60.0, `WaitForPersistedPort`); `ray start --block` ends 30 s after its start."""


def may_be_made() -> bool:
    """Return whether this user may create mount namespaces."""
    made = subprocess.run([*_apart(*HEAD), "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False)
    return made.returncode == 0


def _apart(*more: str) -> list[str]:
    as_root = [] if os.geteuid() == 0 else ["-r"]
    return ["unshare", *as_root, "-m", *more]


class HeadApart(Submissions):
    """The cluster: a head, and workers that outlive it when the head's storage does."""

    def __init__(self, workers: int = 2, *, kept: bool = True, redis: str = "", **env: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dlh-", dir="/tmp"))
        self.home = self.folder / "home"
        self.home.mkdir()
        (self.folder / "head").mkdir()
        self.gcs, self.dashboard, self.port = free_port(), free_port(), free_port()
        self._env = {
            **os.environ,
            "RAY_TMPDIR": str(self.folder),
            "DLJOB_HOME": str(self.home),
            "PYTHONPATH": f"{USERS}:{KITS}:{KITS / 'as_in_images'}:{KITS / 'late'}",
            "RAY_gcs_rpc_server_reconnect_timeout_s": "120",
            **env,
        }
        rocks = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(self.folder / "gcs")}
        # The variables with which KubeRay 1.6.2 configures Redis; the password is also an argument.
        asked = {"RAY_REDIS_ADDRESS": redis, "RAY_external_storage_namespace": "uid", "REDIS_PASSWORD": PASSWORD}
        self._kept = asked if redis else rocks if kept else {}
        self._flags = [f"--redis-password={PASSWORD}"] if redis else []
        self._env.pop("RAY_ADDRESS", None)
        self._head: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes]] = []
        self._count = workers
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    # -- events

    def _start(self) -> None:
        self.start_head()
        for index in range(self._count):
            self.add_worker(f"w{index}")

    def start_head(self) -> None:
        """Start a head on the storage and the ports of the last one."""
        ports = [f"--port={self.gcs}", f"--dashboard-port={self.dashboard}", "--dashboard-host=127.0.0.1"]
        made = ["--head", "--num-cpus=0", *ports, f"--temp-dir={self.folder}/head", *self._flags]
        env = {**self._env, **self._kept, "RAY_NODE_TYPE_NAME": "headgroup", "RAY_CLOUD_INSTANCE_ID": "head"}
        self._head = self._ray([*_apart(*HEAD), "sh", "-c", POD, "pod"], made, env, "head.log")
        eventually(self.session, 120, lambda: (self.folder / "head.log").read_text()[-2000:])

    def add_worker(self, name: str) -> None:
        """Add a raylet of 4 CPUs."""
        made = [f"--address=127.0.0.1:{self.gcs}", "--num-cpus=4"]
        env = {**self._env, "RAY_NODE_TYPE_NAME": "workers", "RAY_CLOUD_INSTANCE_ID": name}
        # Two raylets that start at once in one folder choose the same file names, and one of them dies (Ray 2.60).
        own = [*_apart(), "sh", "-c", OWN, "pod"]
        self._workers.append(self._ray(own, made, env, f"{name}.log"))

    def kill_head(self) -> None:
        """Send SIGKILL to all processes of the head at once, as when a pod is lost with its machine."""
        assert self._head is not None
        os.killpg(self._head.pid, signal.SIGKILL)
        self._head.wait()

    def lose_all(self) -> None:
        """Lose all machines with their processes and files, and start others, which know nothing of them."""
        self._kill_all()
        shutil.rmtree(self.folder)
        for folder in (self.home, self.folder / "head"):
            folder.mkdir(parents=True)
        self._start()

    def close(self) -> None:
        """End all processes and remove all files."""
        self._kill_all()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _kill_all(self) -> None:
        for process in [*self._workers, *filter(None, [self._head])]:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._workers = []
        for pid in self.mine():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _ray(self, before: list[str], made: list[str], env: dict[str, str], log: str) -> subprocess.Popen[bytes]:
        # The agent of another Ray may hold the default port; without an agent nothing can be submitted.
        agent = f"--dashboard-agent-listen-port={free_port()}"
        rest = ["--block", f"--object-store-memory={STORE}", "--disable-usage-stats", agent]
        with (self.folder / log).open("ab") as out:
            return subprocess.Popen(
                ["sh", "-c", KUBELET, "kubelet", *before, RAY, "start", *made, *rest],
                env=env,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    # -- observations

    @property
    def jobs_api(self) -> str:
        return f"http://127.0.0.1:{self.dashboard}"

    def session(self) -> str:
        """Return Ray's session name from the endpoint that the operator uses."""
        return ask(f"{self.jobs_api}/api/version", None, token())[1]["session_name"]

    def told(self) -> str:
        """Return the last output of each `ray start` and of its servers' logs."""
        found = [*self.folder.glob("*.log"), *self.folder.glob("machine-*/session_2*/logs/[gr]*.[oe]*")]
        return "\n".join(f"== {log}: {log.read_text()[-1000:]}" for log in sorted(found))

    def mine(self) -> Iterator[int]:
        """Return every process of this Ray."""
        mark = f"RAY_TMPDIR={self.folder}".encode()
        for pid, _ in processes():
            with suppress(OSError):
                if mark in Path(f"/proc/{pid}/environ").read_bytes():
                    yield pid

    def lives(self) -> bool:
        """Return whether the head's job server answers."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.dashboard), 0.2):
            return True
        return False
