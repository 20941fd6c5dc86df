"""Facts about this machine for `dljob doctor`, gathered without any change to it, and within bounded time."""

from __future__ import annotations

import json
import os
import queue
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from dljob.api import registry
from dljob.cli.machine import gpu_modes
from dljob.cli.machine.gpu_modes import GpuMode
from dljob.errors import UnreachableError
from dljob.linux import memory_limit
from dljob.linux.process_limit import ProcessLimit, process_limits
from dljob.runtime.backend import machine, ray_processes, sweeper
from dljob.runtime.backend.machine import scratch_places
from dljob.runtime.control_socket.location import private_folders

T = TypeVar("T")

RESOLVE_S = 3.0
"""Time limit of a name look-up in seconds: a resolver without a network tries for minutes."""
IMPORT_S = 30.0
"""Time limit, in seconds, for a child process that imports torch or Ray and counts devices."""
YOUNG_S = 60.0
"""Age in seconds from which a folder of Ray must have a process or a socket; a younger one may be starting."""
_ELSEWHERE = ("192.0.2.1", 9)
"""A documentation address (RFC 5737). Connecting a UDP socket to it sends nothing, but gives the socket a source."""
_CPU_MAX = "cpu.max"
_CPU_V1 = ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")
_TORCH = """
import json, torch
print(json.dumps({"count": torch.cuda.device_count(), "build": torch.version.cuda or torch.version.hip or ""}))
"""
_RAY = """
import json
from dljob.ray_private import gpu_count
print(json.dumps({"count": gpu_count(), "build": ""}))
"""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Names and addresses; None: the resolver did not answer in time."""

    host: str
    resolved: tuple[str, ...] | None
    """Addresses of the host name."""
    localhost: tuple[str, ...] | None
    """Addresses of `localhost`, in the order in which clients try them."""
    outward: str
    """Address that other machines see; empty: there is only loopback."""


@dataclass(frozen=True, slots=True)
class WrittenFolder:
    """A folder that jobs write to."""

    use: str
    path: str
    free: int
    writable: bool


@dataclass(frozen=True, slots=True)
class VisibleGpus:
    """GPUs that a library sees."""

    count: int
    build: str = ""
    """Version of CUDA or ROCm that torch was built for."""
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Remains of earlier jobs."""

    jobs: tuple[tuple[str, str], ...] = ()
    """(name, uid) of jobs whose runner is gone without a final status."""
    processes: tuple[tuple[int, str], ...] = ()
    """(pid, name) of processes of an embedded Ray without a sweeper, which nothing else will end."""
    folders: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts about this machine."""

    addresses: Addresses
    loopback: tuple[str, str] | None
    """Why nothing can be sent over loopback, and a command against it; None: it works."""
    limits: tuple[str, str] | None
    """Which limit of a process is too low for Ray to start, and a command against it; None: none is."""
    ports: tuple[int, int] | None
    """First and last ephemeral port, for outgoing connections and for servers on port 0."""
    cpus: int
    quota: float | None
    """CPUs granted by the control group; None: no limit."""
    memory: int | None
    """Bytes that can still be allocated."""
    memory_bound: str
    """Source of that limit."""
    shm: int | None
    """Free bytes of shared memory; None: there is none."""
    disks: tuple[WrittenFolder, ...]
    files: tuple[int, int]
    """Soft and hard limit of open files; RLIM_INFINITY: no limit."""
    processes: tuple[ProcessLimit, ...]
    """Limits of processes and threads; empty: no limit."""
    devices: Mapping[str, int]
    """Number of devices by Ray resource, from the drivers' files."""
    hiding: Mapping[str, str]
    """Variables that hide devices, with their values."""
    torch: VisibleGpus | None
    ray: VisibleGpus | None
    modes: tuple[GpuMode, ...]
    """GPUs with MIG or MPS."""
    leftovers: Leftovers


def gather() -> Facts:
    """Gather the facts; this takes as long as the import of torch."""
    # The children start first: their imports take seconds, and everything else is gathered meanwhile.
    children = {package: _Child(code) for package, code in (("torch", _TORCH), ("ray", _RAY)) if find_spec(package)}
    memory, bound = memory_limit.free()
    facts = partial(
        Facts,
        addresses=_addresses(),
        loopback=ray_processes.loopback_trouble(),
        limits=machine.limit_trouble(1),
        ports=_ports(),
        cpus=len(os.sched_getaffinity(0)),
        quota=quota(),
        memory=memory,
        memory_bound=bound,
        shm=_free(machine.SHM),
        disks=tuple(_disks()),
        files=resource.getrlimit(resource.RLIMIT_NOFILE),
        processes=tuple(process_limits()),
        devices={kind: len(ids) for kind, ids in machine.devices_here().items() if ids},
        hiding={name: os.environ[name] for name in machine.VISIBLE.values() if name in os.environ},
        modes=gpu_modes.gather(),
        leftovers=leftovers(),
    )
    counted = {name: child.answer() for name, child in children.items()}
    return facts(torch=counted.get("torch"), ray=counted.get("ray"))


# -- addresses and ports


def _within(seconds: float, question: Callable[[], T]) -> T | None:
    """Return the result of a call that cannot be interrupted; None when it takes too long, and its thread is left."""
    answers: queue.SimpleQueue[T] = queue.SimpleQueue()
    # A daemon thread: getaddrinfo cannot be interrupted, and a resolver that hangs must not keep the command alive.
    threading.Thread(target=lambda: answers.put(question()), daemon=True).start()
    with suppress(queue.Empty):
        return answers.get(timeout=seconds)
    return None


def _resolved(name: str) -> tuple[str, ...]:
    try:
        addresses = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return ()
    # Without duplicates, in the resolver's order: clients try the addresses in this order.
    return tuple(dict.fromkeys(str(address[0]) for *_, address in addresses))


def _addresses() -> Addresses:
    host = socket.gethostname()
    resolved, localhost = (_within(RESOLVE_S, lambda name=name: _resolved(name)) for name in (host, "localhost"))
    return Addresses(host, resolved, localhost, _outward())


def _outward() -> str:
    # An error means that there is no route: the machine has only loopback.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(_ELSEWHERE)
        address = str(probe.getsockname()[0])
        return "" if address.startswith("127.") else address
    return ""


def _ports(proc: Path = memory_limit.PROC) -> tuple[int, int] | None:
    with suppress(OSError, ValueError):
        first, last = (proc / "sys/net/ipv4/ip_local_port_range").read_text().split()
        return int(first), int(last)
    return None


# -- limits


def quota(cgroups: Path = memory_limit.CGROUPS, proc: Path = memory_limit.PROC) -> float | None:
    """Return the CPUs granted by the tightest of our control groups; None: no limit."""
    cpu_limits: list[float] = []
    for folder in memory_limit.groups(cgroups, proc):
        with suppress(OSError, ValueError):  # "max": no limit
            most, period = (folder / _CPU_MAX).read_text().split()
            cpu_limits.append(int(most) / int(period))
    # cgroup v1 has two files in place of one; a limit of -1 means none.
    with suppress(OSError, ValueError):
        most, period = (int((cgroups / file).read_text()) for file in _CPU_V1)
        if most > 0:
            cpu_limits.append(most / period)
    return min(cpu_limits) if cpu_limits else None


def _free(path: Path) -> int | None:
    with suppress(OSError):
        return shutil.disk_usage(path).free
    return None


def _disks() -> Iterator[WrittenFolder]:
    """Yield the folders that jobs write to, with the free space of their nearest existing parent."""
    for use, path in (("jobs", registry.home() / "jobs"), ("Ray's files", scratch_places()[0])):
        # Before the first job the folder itself does not exist.
        existing_folder = next(candidate for candidate in (path, *path.parents) if candidate.is_dir())
        with suppress(OSError):
            yield WrittenFolder(
                use, str(path), shutil.disk_usage(existing_folder).free, os.access(existing_folder, os.W_OK | os.X_OK)
            )


# -- devices


class _Child:
    """Process that imports a library and counts devices."""

    def __init__(self, code: str) -> None:
        # A file, not a pipe: nothing reads while the process runs, and a full pipe would block it. In memory, since a
        # full disk is one of the faults that are looked for. `answer` closes it.
        self._out = os.fdopen(os.memfd_create("dljob-doctor", os.MFD_CLOEXEC), "w+b")
        # -P: no file of the current folder may stand in for a module.
        words = [sys.executable, "-P", "-c", code]
        self._process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=self._out, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def answer(self) -> VisibleGpus:
        """Wait for the process and return its result; kill it after IMPORT_S."""
        with self._out:
            try:
                self._process.wait(IMPORT_S)
            except BaseException as error:
                # Also after Ctrl-C: the child must not stay behind.
                self._process.kill()
                self._process.wait()
                if isinstance(error, subprocess.TimeoutExpired):
                    return VisibleGpus(0, trouble=f"no answer within {IMPORT_S:g} s")
                raise
            self._out.seek(0)
            return visible(self._process.returncode, self._out.read())


def visible(code: int, printed: bytes) -> VisibleGpus:
    """Parse a child's output."""
    # Its last line: imports may print lines before it.
    try:
        return VisibleGpus(**json.loads(printed.splitlines()[-1]))
    except (IndexError, ValueError, TypeError):
        return VisibleGpus(0, trouble=f"its import ended with {code}")


# -- leftovers


def leftovers(proc: Path = memory_limit.PROC) -> Leftovers:
    """Return the remains of this user's earlier jobs: job folders, processes and folders of embedded Rays, sockets."""
    jobs = tuple((record.name, record.uid) for record in _records() if record.stale)
    running, swept, words = _rays(proc)
    # A sweeper ends the processes of its Ray and removes the folder; only Rays without one are lost.
    lost = tuple((pid, name) for pid, name, mark in running if mark not in swept)
    used_marks = swept | {mark for _, _, mark in running}
    # A process without the mark may still use a folder that its command line names.
    unused = tuple(
        path for path in map(str, _ray_folders()) if path not in used_marks and os.fsencode(path) not in words
    )
    sockets = sorted(path for folder in private_folders() for path in folder.glob("*.sock") if _deaf(path))
    return Leftovers(jobs, lost, unused, tuple(str(path) for path in sockets))


def _records() -> list[registry.RegistryEntry]:
    with suppress(UnreachableError):  # the check of disks says why
        return registry.records()
    return []


def _ray_folders() -> list[Path]:
    """Return this user's folders of embedded Rays without a listener, except those that may be starting."""
    unused_folders: list[Path] = []
    for parent in scratch_places():
        for folder in parent.glob("dlj-????????"):
            with suppress(OSError):
                info, sockets = folder.stat(), [*folder.glob("n*/raylet"), *folder.glob("n*/plasma")]
                # With the token of its Ray: other folders with such a name are not dljob's.
                is_own = info.st_uid == os.geteuid() and (folder / "token").is_file()
                # A Ray that starts makes its folder first, and listens in it seconds later.
                if is_own and time.time() - info.st_mtime > YOUNG_S and all(map(_deaf, sockets)):
                    unused_folders.append(folder)
    return sorted(unused_folders)


def _rays(proc: Path) -> tuple[list[tuple[int, str, str]], set[str], bytes]:
    """Return (pid, name, mark) of this user's embedded Rays, the marks with a sweeper, and all command lines."""
    lines: list[bytes] = []
    running: list[tuple[int, str, str]] = []
    swept: set[str] = set()
    prefix = f"{sweeper.MARK}=".encode()
    for folder in proc.iterdir():
        # This command may run inside a rank, and then has the mark itself.
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        with suppress(OSError):  # the process is gone, or another user's
            lines.append((folder / "cmdline").read_bytes())
            words = lines[-1].split(b"\0")
            if any(word.endswith(b"/sweeper.py") for word in words[:5]) and len(words) > 2:
                # A command line ends with a NUL, so the last word is empty, and the folder is the one before.
                swept.add(os.fsdecode(words[-2]))
                continue
            # Children inherit the environment: the mark also finds processes whose parents have ended.
            rows = (folder / "environ").read_bytes().split(b"\0")
            mark = next((row.removeprefix(prefix) for row in rows if row.startswith(prefix)), b"")
            if mark:
                running.append((int(folder.name), (folder / "comm").read_text().strip(), os.fsdecode(mark)))
    return running, swept, b"\n".join(lines)


def _deaf(path: Path) -> bool:
    """Whether a socket has no listener. One that is busy, or may not be asked, counts as having one."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(RESOLVE_S)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False


def names(pids: Sequence[tuple[int, str]]) -> str:
    """Format processes for people: raylet 812, gcs_server 790."""
    return ", ".join(f"{name} {pid}" for pid, name in pids)
