"""The raylets and the GCS of an embedded Ray: who they are and how they ended, as their parent writes it down.

Nobody else learns the exit status of a raylet on every Linux. PrimeMaster, which lives in that Ray, reads the file; the
parent keeps the ends of their logs in the job's folder, as Ray's own folder is removed with it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from dljob.errors import UnreachableError
from dljob.linux.descendants import below
from dljob.runtime.backend.sweeper import MARK
from dljob.telemetry.process_ends import STATES, ProcessEnd, describe_states, last_error

FILE = "processes.jsonl"
PROGRAMS = ("raylet", "gcs_server")
"""Processes of a Ray without which a node, or all of it, is lost."""
STOPPED = ("T", "t")
"""States of a process that runs only once somebody resumes it."""
LOOPBACK = b"lo"
LOOPBACK_ADDRESS = "127.0.0.1"
LOOPBACK_S = 3.0
"""Seconds in which a connection over loopback is made, and a byte arrives."""
_SIOCGIFFLAGS, _IFF_UP = 0x8913, 1
"""Reads the flags of an interface; man7.org/linux/man-pages/man7/netdevice.7.html."""
LOG_BYTES = 256 << 10
"""Bytes of the end of each log that is kept."""
KEPT = "ray-logs"
"""Folder in a job's folder for the logs of a Ray that ended before the job."""


class ProcessFile:
    """The file, as the parent writes it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()

    def add_start(self, program: str, node: str, pid: int) -> None:
        """Write down a process that was started."""
        self._append({"program": program, "node": node, "pid": pid})

    def add_end(self, end: ProcessEnd) -> None:
        """Write down how a process ended."""
        self._append({**end._asdict(), "ended": True})

    def _append(self, row: dict[str, Any]) -> None:
        # One write per line, by one thread at a time: a reader sees whole lines.
        with self._lock, suppress(OSError), (self._folder / FILE).open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(row)}\n")


class ProcessReader:
    """The file, as PrimeMaster reads it: each end once; and the states of the processes that live."""

    def __init__(self, folder: Path | None) -> None:
        """`folder`: that of the embedded Ray; None: this Ray is no embedded one, and nothing is known."""
        self.is_embedded = folder is not None
        self._file = None if folder is None else folder / FILE
        self._offset = 0
        self.raylets: dict[str, int] = {}
        """Node's name -> pid of its raylet."""
        self._pids: dict[int, tuple[str, str]] = {}
        """Pid -> program and node of a process that has not ended."""

    def new_ends(self) -> list[ProcessEnd]:
        """Return the ends that were written down since the last call, and learn of new raylets."""
        ends: list[ProcessEnd] = []
        for row in self._new_rows():
            if row.pop("ended", False):
                ends.append(ProcessEnd(**row))
                self._pids.pop(row["pid"], None)
                continue
            self._pids[row["pid"]] = row["program"], row["node"]
            if row["program"] == "raylet":
                self.raylets[row["node"]] = row["pid"]
        return ends

    def _new_rows(self) -> Iterator[dict[str, Any]]:
        if self._file is None:
            return
        with suppress(OSError), self._file.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # it is being written, and is read whole the next time
                self._offset += len(line)
                yield json.loads(line)

    def stopped(self) -> dict[str, str]:
        """Return node's name -> which process of Ray is stopped there: its raylet, or for the head also the GCS."""
        stuck = ((program, node, pid) for pid, (program, node) in self._pids.items() if _state(pid) in STOPPED)
        return {node: f"the {program} (pid {pid}) of {node} is {STATES['T']} (state T)" for program, node, pid in stuck}

    def why_silent(self, node: str) -> str:
        """Return why a node does not answer: the states of its processes, or the loopback; empty if both are well."""
        raylet = self.raylets.get(node, 0)
        if not raylet:
            return ""
        states = describe_states(raylet, [_state(pid) for pid in (raylet, *below(raylet))])
        return states or ("the interface lo of this machine is down" if _is_loopback_down() else "")


def embedded_folder() -> Path | None:
    """Return the folder of the embedded Ray that this process belongs to; None in another Ray."""
    return Path(os.environ[MARK]) if os.environ.get(MARK) else None


def read_end(program: str, node: str, pidfd: int, pid: int, logs: Path) -> ProcessEnd:
    """Return how a child of this process ended. Its exit status stays there for who waits for it.

    Args:
        program: raylet or gcs_server.
        node: Name of its node.
        pidfd: A descriptor of it, readable since its end.
        pid: Its pid.
        logs: Folder of its logs.
    """
    status = None
    with suppress(OSError):
        known = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
        if known is not None:
            status = known.si_status << 8 if known.si_code == os.CLD_EXITED else known.si_status
    # Its last words only matter where its own code ended it.
    error = "" if status == signal.SIGKILL else last_error(_tail(logs / f"{program}.err"))
    return ProcessEnd(program, node, pid, status, error)


def keep_logs(ray: Path, job: Path) -> Path | None:
    """Copy the ends of the logs of raylets and GCS to a job's folder; return the folder, or None without any."""
    target = job / KEPT
    for log in sorted(ray.glob("**/session_*/logs/*")):
        node = log.relative_to(ray).parts[0]
        if log.stem not in PROGRAMS or "session_latest" in log.parts:
            continue
        with suppress(OSError):
            text = "".join(_tail(log))
            target.mkdir(mode=0o700, exist_ok=True)
            name = "head" if node == "n0" else node
            (target / f"{name}-{log.name}").write_text(text, encoding="utf-8")
    return target if target.is_dir() else None


def error_log_sizes() -> dict[Path, int]:
    """Return the error logs of an embedded Ray's raylets with their sizes; none in another Ray.

    A worker that ends before it has a log of its own writes its error there, as one that cannot import Ray.
    """
    folder, sizes = embedded_folder(), dict[Path, int]()
    for log in folder.glob("*/session_*/logs/raylet.err") if folder is not None else ():
        if "session_latest" not in log.parts:
            with suppress(OSError):
                sizes[log] = log.stat().st_size
    return sizes


def written_since(sizes: dict[Path, int]) -> str:
    """Return what was written to those error logs, and to later ones, since they had these sizes."""
    texts: list[str] = []
    for log, size in error_log_sizes().items():
        begin = sizes.get(log, 0)
        with suppress(OSError), log.open("rb") as file:
            file.seek(max(begin, size - LOG_BYTES))
            texts.append(file.read().decode("utf-8", "replace"))
    return "".join(texts)


def _tail(log: Path) -> list[str]:
    """Return the last lines of a log, with their ends; none without a log."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
        return file.read().decode("utf-8", "replace").splitlines(keepends=True)
    return []


def replace_master_pid(uid: str, pid: int) -> int:
    """Note the pid of a job's new PrimeMaster on an embedded Ray; return that of the one before it, 0 if none is known.

    Both are on the head, as no other machine is there.
    """
    folder, before = embedded_folder(), 0
    if folder is None:
        return 0
    file = folder / f"master-{uid[:8]}"
    with suppress(OSError, ValueError):
        before = int(file.read_text())
    with suppress(OSError):
        file.write_text(str(pid))
    return before


def check_loopback() -> None:
    """Refuse to start a Ray of this machine where its processes could not meet.

    Raises:
        UnreachableError: 127.0.0.1 cannot be used.
    """
    if trouble := loopback_trouble():
        cause, fix = trouble
        raise UnreachableError(f"Ray cannot start: its processes meet at {LOOPBACK_ADDRESS}, and {cause}", hint=fix)


def loopback_trouble() -> tuple[str, str] | None:
    """Return why nothing can be sent over 127.0.0.1, and a command against it; None: a byte arrives."""
    if _is_loopback_down():
        return (
            "the loopback interface lo is down",
            "sudo ip link set lo up; a new network namespace begins with it down",
        )
    try:
        with socket.create_server((LOOPBACK_ADDRESS, 0)) as server:
            server.settimeout(LOOPBACK_S)
            with socket.create_connection(server.getsockname(), timeout=LOOPBACK_S) as client:
                accepted, _ = server.accept()
                with accepted:
                    accepted.sendall(b".")
                    if client.recv(1) == b".":
                        return None
        reason = "a connection brings nothing"
    except TimeoutError:
        reason = f"a connection gets no answer within {LOOPBACK_S:g} s"
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            return "no interface has this address (IPv6 alone?)", f"sudo ip address add {LOOPBACK_ADDRESS}/8 dev lo"
        reason = error.strerror or str(error)
    return reason, "a firewall may drop packets over lo: sudo nft list ruleset, or sudo iptables -L"


def _is_loopback_down() -> bool:
    # Not /sys/class/net, which shows the network namespace in which it was mounted.
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        row = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, struct.pack("16sH14x", LOOPBACK, 0))
        return not struct.unpack("16sH14x", row)[1] & _IFF_UP
    return False


def _state(pid: int) -> str:
    """Return the state of a process; empty when it is gone."""
    with suppress(OSError, IndexError):
        # The name, in parentheses, may itself contain spaces and parentheses: fields are counted from the last.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""
