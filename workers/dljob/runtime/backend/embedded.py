"""An embedded Ray on this machine: a head, one raylet per planned node, and nothing left at its end.

Planned nodes declare what their ranks reserve. The head, which carries no ranks, declares this machine's CPUs and
memory in addition, so that Ray tasks and actors of users' code find room; all of them share the real ones.

All nodes start at once, each from a thread that lives as long as the node. The kernel ends a node's processes with the
thread that created them (PDEATHSIG), so killing the runner ends them too; the sweeper (`sweeper.py`) ends the rest.
Each of Ray's processes leads a session of its own. A signal to the runner's process group (a closing terminal,
`timeout`, systemd, Slurm) therefore reaches the runner alone, which stops the job in order.

Source: ray/_private/{node,services}.py, 2.60. Four things differ from `ray start`, so that Ray is up in 2 s instead of
12: there is no API server, raylets have no dashboard agents (`without_agent`) and share one agent for runtime
environments, and nodes wait only for the head's GCS, not for its raylet. And its workers are forked (`forked_workers`).
"""

from __future__ import annotations

import logging
import math
import os
import queue
import secrets
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, NamedTuple, Self

from dljob import ray_private
from dljob.errors import UnreachableError
from dljob.linux import memory_limit
from dljob.linux.process_limit import RAISE, reached_limit
from dljob.plan.labels import NO_RANKS, NODE_NAME
from dljob.runtime.backend import ray_processes, sweeper
from dljob.runtime.backend.connect import IN_RAY
from dljob.runtime.backend.machine import (
    SHM,
    STORE_BYTES,
    EmbeddedNode,
    check_limits,
    cpus_here,
    lack_of_shared_memory,
    scratch_folder,
    store_bytes,
)
from dljob.runtime.forked_workers.first_template import start_raylet
from dljob.telemetry.process_ends import ProcessEnd
from dljob.telemetry.wording import counted

log = logging.getLogger(__package__)

START_S = 60.0
"""Seconds for all nodes together to start."""
_AGENT = "--dashboard_agent_command="
_ENV_AGENT, _ENV_AGENT_PORT = "--runtime_env_agent_command=", "--runtime-env-agent-port="
LEAVE_S = 0.5
"""Seconds for the threads of all nodes to end, once Ray's processes are gone."""
START_BYTES = 1 << 30
"""Memory below which a Ray with one raylet may not start."""
_PORT_FILES = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
_ENV = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # A dead raylet refuses each check at once, so it is noticed within 1.5 s instead of 14 s. One that is stopped,
    # swapped out or cut off answers nothing, which is waited for 51 s: on one machine it mostly goes on, and a node
    # that Ray has given up can never come back. PrimeMaster judges silent nodes by itself, and sooner.
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "250",
    "RAY_health_check_timeout_ms": "10000",
    "RAY_health_check_failure_threshold": "5",
}
_HEAD = "the head"
"""Name of the head in messages: it has no ranks, and so no name of a node."""
_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}
"""The default for gloo: it would take the interface of the host name, and be open to the network there."""
_FOREIGN = ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_REDIS_ADDRESS", "RAY_GCS_SERVER_PORT", "RAY_NAMESPACE")
"""Variables by which this Ray would join another one, or be mistaken for it."""


class _StartTimeoutError(UnreachableError):
    """A process of Ray did not start in time, and none has said why it cannot."""


class _Watched(NamedTuple):
    """A process of Ray whose end is to be noticed."""

    program: str
    node: str
    pid: int
    pidfd: int
    logs: Path
    planned: EmbeddedNode | None
    """What its node was started for; None: the head."""


class EmbeddedRay:
    """A context manager: on entry Ray is up at `address`, after exit nothing of it is left.

    `on_death` is called when Ray's GCS or its head's raylet has ended, with which all of it is lost.

    Attributes:
        address: host:port of the GCS.
        token_file: The token that every client needs, readable by this user only.
        log_dir: The logs of the head; those of other nodes lie beside it under `folder`.
    """

    def __init__(self, nodes: Sequence[EmbeddedNode], *, on_death: Callable[[ProcessEnd], None] | None = None) -> None:
        self._nodes = nodes
        self._on_death = on_death
        self._prepare()

    def _prepare(self) -> None:
        """Begin as an object whose Ray was never started."""
        self._made: list[Any] = []
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []
        self._up = threading.Semaphore(0)
        self._gcs_up = threading.Event()
        self._leaving = threading.Event()
        self._swept = threading.Event()
        self._head: Any = None
        self._saved: dict[str, str | None] = {}
        self._sweeper: subprocess.Popen[bytes] | None = None
        self._wake: tuple[int, int] | None = None
        self.lost_nodes: list[EmbeddedNode] = []
        """Nodes whose raylet has ended, and which were not replaced."""
        self._watched: queue.SimpleQueue[_Watched] = queue.SimpleQueue()
        """Processes whose end the watching thread does not wait for yet."""
        self._processes = ray_processes.ProcessFile(Path())
        self._env_agent: subprocess.Popen[bytes] | None = None
        """Ray's agent that prepares runtime environments, for all raylets."""
        self._env_agent_command: list[str] = []
        self._env_agent_port = Path()
        """The file in which it writes its port."""
        self._env_agent_lock = threading.Lock()
        self._own_ip: Callable[..., str] | None = None
        self._store, self._store_folder = STORE_BYTES, SHM
        self.folder = Path()
        self.address = ""
        self.token_file = Path()
        self.log_dir = Path()
        self.forks = Path()
        """The folder of the servers that fork its workers."""

    def __enter__(self) -> Self:
        """Start Ray.

        Raises:
            UnreachableError: Loopback cannot be used, a limit is too low, there is no folder, or a process failed (with
                its log).
        """
        try:
            self._enter()
        except _StartTimeoutError as error:
            # Beside much other work Ray misses its time now and then, and mostly no second time. Where nothing else
            # runs, something else is wrong, which a second try would only tell a minute later.
            load, cpus = os.getloadavg()[0], cpus_here()
            if load <= cpus:
                raise
            log.warning("%s; it is started once more, as the machine's load is %.0f", error.message, load)
            self._prepare()
            self._enter()
        return self

    def _enter(self) -> None:
        ray_processes.check_loopback()
        check_limits(len(self._nodes))
        self.folder = scratch_folder()
        self._place_stores(len(self._nodes))
        self.forks = self.folder / "forks"
        self.forks.mkdir()
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End Ray, however the block ended."""
        self.close()

    def close(self) -> None:
        """End every process of this Ray and remove its folder. Idempotent."""
        if self._leaving.is_set():
            return
        with self._env_agent_lock:  # from here on no agent is started, which the sweeper would not find
            self._leaving.set()
        if "ray" in sys.modules:
            import ray

            with suppress(Exception):  # the sweeper ends the remaining processes
                ray.shutdown()
        if self._wake:
            os.write(self._wake[1], b".")
        # The order matters: the sweeper ends Ray's processes before the threads may end and their children be reaped.
        if self._sweeper is not None and self._sweeper.stdin is not None:
            self._sweeper.stdin.close()
            self._sweeper.wait()
        self._swept.set()  # not before: a node's processes end with the thread that created them
        self._reap()
        # A start that was broken off may be in a call of Ray, which waits up to a minute for a GCS that is dead.
        end = time.monotonic() + LEAVE_S
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        self._restore()

    def add(self, nodes: Sequence[EmbeddedNode]) -> None:
        """Start more nodes beside those that run.

        Raises:
            UnreachableError: A node failed to start; the others go on.
        """
        self._place_stores(len(nodes))
        # Numbers of nodes are never reused: they name folders and sockets.
        first = len(self._nodes) + 1
        self._nodes = (*self._nodes, *nodes)
        # Errors of an earlier `add` would fail this one.
        self._errors.clear()
        for name in {name for node in nodes for name in node.pretended} & os.environ.keys():
            self._saved.setdefault(name, os.environ.pop(name))
        with _quicker(self.folder, self):
            self._start_nodes(nodes, first=first, awaited=len(nodes))

    def replace_lost_nodes(self) -> None:
        """Start a node in place of each whose raylet has ended.

        Raises:
            UnreachableError: One did not start; it and those behind it stay in `lost_nodes`.
        """
        # One by one: those that have started are not lost any more.
        while self.lost_nodes:
            self.add(self.lost_nodes[:1])
            del self.lost_nodes[0]

    def _place_stores(self, nodes: int) -> None:
        """Choose where the object stores of so many further nodes lie, and how large they may become."""
        lack = lack_of_shared_memory(nodes)
        self._store_folder = self.folder if lack else SHM
        if lack:
            # As Ray does by itself, and torchrun needs none: large objects are slower, and nothing is wrong otherwise.
            log.warning("%s; they lie in %s (a container: docker run --shm-size=1g)", lack, self.folder.parent)
        self._store = store_bytes(nodes, memory_limit.free()[0], self._store_folder)

    def environment(self) -> tuple[tuple[str, str], ...]:
        """Return the variables by which another process of this user reaches this Ray."""
        return (("RAY_AUTH_MODE", "token"), ("RAY_AUTH_TOKEN_PATH", str(self.token_file)))

    # --- start

    def _start(self) -> None:
        # The environment is set before Ray's configuration is read again, and the sweeper runs before any process of
        # Ray's.
        self._write_token()
        self._set_env()
        self._start_sweeper()
        ray_private.read_config_again()
        logging.getLogger("ray").setLevel(logging.CRITICAL)  # Ray warns of absent devices: "Failed to detect NPU type"
        self._stay_local()
        self._watch()
        with _quicker(self.folder, self):
            self._spawn("head", self._run_head)
            # Nodes need the GCS's address, and nothing else of the head.
            # The event is set by an error, too, so that nobody waits the whole time for a head that failed.
            if not self._gcs_up.wait(START_S) or self._errors:
                self._fail("Ray's head did not start")
            self._start_nodes(self._nodes, first=1, awaited=len(self._nodes) + 1)

    def _start_nodes(self, nodes: Sequence[EmbeddedNode], *, first: int, awaited: int) -> None:
        """Start nodes at once, numbered from `first`; return once `awaited` threads, the head's among them, report."""
        for index, node in enumerate(nodes, start=first):
            self._spawn(node.name, lambda i=index, n=node: self._run_node(i, n))
        for _ in range(awaited):
            if not self._up.acquire(timeout=START_S):
                self._fail(f"Ray's nodes did not come up within {START_S:.0f} s")
            if self._errors:
                self._fail("a node of Ray did not start")

    def _stay_local(self) -> None:
        """Make Ray use the loopback address: it looks for one in the network, and warns on stderr if there is none."""
        self._own_ip = ray_private.look_up_own_ip(lambda address=None: ray_processes.LOOPBACK_ADDRESS)  # noqa: ARG005 - Ray's signature

    def _write_token(self) -> None:
        self.token_file = self.folder / "token"
        # Never readable by others, not even between its creation and a chmod.
        descriptor = os.open(self.token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as out:
            out.write(secrets.token_hex(32))

    def _set_env(self) -> None:
        loopback = {name: os.environ.get(name) or value for name, value in _LOOPBACK.items()}
        new_variables = {
            **_ENV,
            **loopback,
            "RAY_AUTH_TOKEN_PATH": str(self.token_file),
            sweeper.MARK: str(self.folder),
        }
        # Ray counts devices by these variables in the process that starts a node, and declares no more than they list.
        unwanted = (*_FOREIGN, *(name for node in self._nodes for name in node.pretended))
        self._saved = {name: os.environ.get(name) for name in (*new_variables, *unwanted)}
        for name in unwanted:
            os.environ.pop(name, None)
        os.environ.update(new_variables)

    def _restore(self) -> None:
        # This process may go on without this Ray, e.g. a Python program after `with dljob.local()`.
        if self._own_ip is not None:
            ray_private.look_up_own_ip(self._own_ip)
        for name, value in self._saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def _start_sweeper(self) -> None:
        # Without the mark in its environment: it would kill itself.
        env = {k: v for k, v in os.environ.items() if k != sweeper.MARK}
        self._sweeper = subprocess.Popen(
            [sys.executable, "-I", "-S", sweeper.__file__, str(self.folder), str(self.folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
            env=env,
        )

    def _spawn(self, name: str, body: Callable[[], None]) -> None:
        # Of this start: a thread that Ray still holds must not report to the next one.
        errors, gcs_up, up, swept = self._errors, self._gcs_up, self._up, self._swept

        def run() -> None:
            try:
                body()
            except BaseException as error:  # noqa: BLE001 - `_fail` raises it in the main thread
                errors.append(error)
                gcs_up.set()
            up.release()
            # The thread stays until the end: its node's processes die with it.
            swept.wait()

        thread = threading.Thread(target=run, name=f"{IN_RAY}-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _params(self, index: int, **more: Any) -> Any:
        # Ports of 0 let the kernel choose: fixed ones would collide with other Rays of this machine.
        # Below the folder that only its owner may enter: Ray lets everybody write to its own, and to those of sockets.
        folder = self.folder / f"n{index}"
        fixed_params: dict[str, Any] = {
            "node_ip_address": ray_processes.LOOPBACK_ADDRESS,
            "temp_dir": str(folder),
            "plasma_store_socket_name": str(folder / "plasma"),
            "raylet_socket_name": str(folder / "raylet"),
            "object_store_memory": self._store,
            "plasma_directory": str(self._store_folder),
            "min_worker_port": 0,
            "max_worker_port": 0,
            "dashboard_agent_listen_port": 0,
            "include_dashboard": False,
            "include_log_monitor": False,
            "no_monitor": True,
        }
        return ray_private.node_params(**fixed_params, **more)

    def _run_head(self) -> None:
        def serves(head: Any) -> None:
            # Set while the head still starts: nodes need nothing but the GCS's address.
            self._head = head
            self._gcs_up.set()

        # On a machine that is low on memory Ray's monitor kills what it can restart first: that is PrimeMaster, and it
        # frees little. The raylets of the other nodes go on to kill ranks.
        # Nor does it start a worker for each CPU in advance: most jobs have no tasks.
        _LOCAL.env = {"RAY_memory_monitor_refresh_ms": "0", "RAY_prestart_worker_first_driver": "0"}
        memory = max(2**30, memory_limit.free()[0] or 0)
        labels = {NO_RANKS: "true"}
        # No devices: those are dealt out among the planned nodes.
        params = self._params(0, num_cpus=cpus_here(), num_gpus=0, resources={}, memory=memory, labels=labels)
        self._add_node(_HEAD, ray_private.start_head(params, serves), None)
        self.address = self._head.gcs_address
        self.log_dir = Path(self._head.get_logs_dir_path())

    def _run_node(self, index: int, node: EmbeddedNode) -> None:
        resources = dict(node.resources)
        # By thread: nodes start at once, and each raylet sees its own devices.
        _LOCAL.env = dict(node.visible)
        params = self._params(
            index,
            gcs_address=self._head.gcs_address,
            # Ray starts no node with a part of a CPU; a node group may have 100m.
            num_cpus=math.ceil(resources.pop("CPU", 0)),
            num_gpus=resources.pop("GPU", 0),
            memory=int(resources.pop("memory", 2**30)),
            resources=resources,
            labels={**node.labels, NODE_NAME: node.name},
        )
        self._add_node(node.name, ray_private.start_node(params), node)

    def share_env_agent(self, command: list[str]) -> list[str]:
        """Return a raylet's command with which it uses the common agent for runtime environments, which is started.

        A raylet ends with an agent that it has started itself, and on the head the job would. Each would also take half
        a CPU second and 82 MB. The command is unchanged if it looks unfamiliar.
        """
        options = _options_of(command)
        if not {"runtime_env_agent_command", "session_dir", "node_id"} <= options.keys():
            return command
        port = Path(options["session_dir"], f"runtime_env_agent_port_{options['node_id']}")
        with self._env_agent_lock:
            if self._env_agent is None:
                self._env_agent_command = shlex.split(options["runtime_env_agent_command"])
                self._env_agent_port = port
                self._start_env_agent()
            else:
                port.symlink_to(self._env_agent_port)
        return [f"{_ENV_AGENT} " if word.startswith(_ENV_AGENT) else word for word in command]

    def _start_env_agent(self) -> None:
        command = self._env_agent_command
        with suppress(OSError):  # the first one chooses its port
            port = f"{_ENV_AGENT_PORT}{self._env_agent_port.read_text().strip()}"
            command = [port if word.startswith(_ENV_AGENT_PORT) else word for word in command]
        # It ends with the process that it takes for its raylet.
        env = {**os.environ, "RAY_RAYLET_PID": str(os.getpid())}
        null = subprocess.DEVNULL
        agent = subprocess.Popen(command, env=env, start_new_session=True, stdin=null, stdout=null, stderr=null)
        self._env_agent = agent
        self._watched.put(_Watched(_ENV_AGENT, _HEAD, agent.pid, os.pidfd_open(agent.pid), Path(), None))
        if self._wake:
            os.write(self._wake[1], b".")

    def _replace_env_agent(self) -> None:
        """Start another agent in place of the one that has ended, unless this Ray ends."""
        with self._env_agent_lock:
            if self._env_agent is None or self._leaving.is_set():
                return
            log.info("Ray's agent for runtime environments ended (%d); another is started", self._env_agent.wait())
            try:
                self._start_env_agent()
            except OSError as error:  # raylets go on without it until a worker needs it
                log.warning("Ray's agent for runtime environments cannot be started again: %s", error)

    def _fail(self, problem: str) -> None:
        cause = f": {self._errors[0]}" if self._errors else ""
        late = not self._errors or any(words in cause for words in ("timed out", "took too long"))
        kind = _StartTimeoutError if late else UnreachableError
        raise kind(f"{problem}{cause}\n{_tail(self.folder)}".rstrip(), hint=_why_no_start())

    # --- end

    def _add_node(self, name: str, node: Any, planned: EmbeddedNode | None) -> None:
        """Keep a node that was started, and have the ends of its processes noticed."""
        self._made.append(node)
        logs = Path(node.get_logs_dir_path())
        for program in ray_processes.PROGRAMS:
            for info in node.all_processes.get(program, ()):
                pid = info.process.pid
                self._processes.add_start(program, name, pid)
                # A pidfd shows the end of a process without collecting its exit status.
                self._watched.put(_Watched(program, name, pid, os.pidfd_open(pid), logs, planned))
        if self._wake:
            os.write(self._wake[1], b".")

    def _watch(self) -> None:
        """Write down how each of Ray's processes ends until this process ends Ray, and call `on_death`."""
        self._processes = ray_processes.ProcessFile(self.folder)
        self._wake = os.pipe()
        wake, leaving, new = self._wake[0], self._leaving, self._watched

        def watch() -> None:
            watched: dict[int, _Watched] = {}
            while True:
                ready, _, _ = select.select([*watched, wake], [], [])
                if leaving.is_set():
                    break
                if wake in ready:
                    os.read(wake, 1)
                    while not new.empty():
                        process = new.get()
                        watched[process.pidfd] = process
                for pidfd in ready:
                    if pidfd in watched:
                        self._note_end(watched.pop(pidfd))
            for pidfd in watched:
                os.close(pidfd)

        thread = threading.Thread(target=watch, name="ray-watch", daemon=True)
        thread.start()

    def _note_end(self, process: _Watched) -> None:
        program, node, pid, pidfd, logs, planned = process
        if program == _ENV_AGENT:
            os.close(pidfd)
            self._replace_env_agent()
            return
        end = ray_processes.read_end(program, node, pidfd, pid, logs)
        os.close(pidfd)
        self._processes.add_end(end)
        if planned is not None:
            self.lost_nodes.append(planned)
        elif self._on_death:
            self._on_death(end)

    def _reap(self) -> None:
        """Collect dead children, so that none stays as a zombie while this process lives."""
        if self._env_agent is not None:
            self._env_agent.wait()
        for node in self._made:
            for processes in node.all_processes.values():
                for info in processes:
                    with suppress(subprocess.TimeoutExpired):
                        info.process.wait(timeout=5)


_LOCAL = threading.local()
"""`env`: additional variables of the raylet that the present thread starts."""


@contextmanager
def _quicker(folder: Path, embedded: EmbeddedRay) -> Generator[None]:
    """Change Ray's own start in three places while the block runs; the module's docstring names them."""

    def start_lighter(start: Callable[..., Any], command: list[str], process_type: str, *args: Any, **more: Any) -> Any:
        if process_type != "raylet":
            return start(command, process_type, *args, **more)
        more["env_updates"] = {**(more.get("env_updates") or {}), **getattr(_LOCAL, "env", {})}
        agentless_command = embedded.share_env_agent(without_agent(command))
        return start_raylet(
            lambda forking: start(forking, process_type, *args, **more), agentless_command, embedded.forks
        )

    def head_at_once(*_: Any, **__: Any) -> list[Any]:
        return [
            SimpleNamespace(state=1, temp_dir=str(folder / "n0"), session_dir=embedded._head.get_session_dir_path())
        ]

    with ray_private.nodes_started_by(start_lighter, head_at_once):
        yield


def without_agent(command: list[str]) -> list[str]:
    """Return a raylet's command with which it starts no dashboard agent; unchanged if the command looks unfamiliar.

    An agent costs 2 CPU seconds and 130 MB per raylet, nothing uses it here, and its death would end the raylet. A
    raylet refuses an empty command and starts none for a blank (src/ray/raylet/{main,node_manager}.cc, 2.60). It waits
    for the files in which an agent writes its ports: -1 is what Ray's agent writes if Ray is installed without
    `default` (ray/dashboard/agent.py).
    """
    options = _options_of(command)
    # Another Ray may have another command line: its own agent costs more, but it works.
    if not {"dashboard_agent_command", "session_dir", "node_id"} <= options.keys():
        return command
    for name in _PORT_FILES:
        Path(options["session_dir"], f"{name}_{options['node_id']}").write_text("-1")
    return [f"{_AGENT} " if word.startswith(_AGENT) else word for word in command]


def _options_of(command: list[str]) -> dict[str, str]:
    return dict(word.lstrip("-").split("=", 1) for word in command if word.startswith("--") and "=" in word)


def _tail(folder: Path, lines: int = 5) -> str:
    """Return the last lines of the error logs of Ray's processes."""
    last_lines: list[str] = []
    for log in sorted(folder.glob("**/logs/*.err")):
        if "session_latest" not in log.parts and log.stat().st_size:
            last_lines += [f"  {log.name}: {line}" for line in log.read_text(errors="replace").splitlines()[-lines:]]
    return "\n".join(last_lines)


def _why_no_start() -> str:
    """Return what this machine lacks, in words that help a Ray to start."""
    if limit := reached_limit():
        return f"{limit}: {RAISE}"
    free, bound = memory_limit.free()
    if free is not None and free < START_BYTES:
        return f"{free >> 20} MiB of memory are free {bound}; a Ray with one raylet takes about {START_BYTES >> 20}"
    load, cpus = os.getloadavg()[0], cpus_here()
    if load > cpus:
        return f"this machine is busy: its load is {load:.0f}, and it has {counted(cpus, 'CPU')}; try again later"
    return "dljob doctor looks for what this machine lacks"


def send_signal_on_death(deaths: list[ProcessEnd]) -> Callable[[ProcessEnd], None]:
    """Return an `on_death` that appends the end to `deaths` and wakes the main thread by SIGUSR1."""

    def on_death(end: ProcessEnd) -> None:
        deaths.append(end)
        # A signal, as the main thread may be in a wait that nothing else interrupts.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    return on_death
