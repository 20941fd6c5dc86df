"""What a node sees of its ranks' processes: whether they can run, what CPU time they used, and where they are.

Nothing here asks the process anything: one that is stopped, or whose C code holds the GIL, is seen all the same. Stacks
are py-spy's, read without pausing anybody; where it may not read another process's memory, that is said.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dljob.master.state.hang import ProcessSample, Where
from dljob.runtime.linux.descendants import below

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
EACH_S, ALL_S = 5.0, 10.0
"""How long py-spy may take for one process, and for all of one question."""
TRIES = 3
"""A process that runs on while it is read may give nonsense, which py-spy notices."""
USER_THREAD = "user"
"""The thread host runs user code in a thread of this name."""
_FREEZERS = ("freezer", "refrigerator")
_PLACES = (
    ("dljob/runtime/rpc/rpc.py", Where.CALL),
    ("dljob/runtime/rpc/futures.py", Where.CALL),
    ("dljob/runtime/rpc/invocation.py", Where.CALL),
    ("dljob/runtime/rpc/streams.py", Where.CALL),
    ("dljob/runtime/checkpoint/", Where.CHECKPOINT),
    ("dljob/runtime/process/worker_context.py", Where.ORDER),
    ("torch/distributed/checkpoint/", Where.CHECKPOINT),
    ("torch/distributed/", Where.COLLECTIVE),
    ("torch/nn/parallel/", Where.COLLECTIVE),
)
_OURS = ("/torch/", "/ray/_private/", "dljob/runtime/", "<frozen")


@dataclass(frozen=True, slots=True)
class DumpTarget:
    """A rank's process, and the host's around it (the same for a thread host)."""

    name: str
    """As in `trainer/2`."""
    pid: int
    host_pid: int


@dataclass(frozen=True, slots=True)
class ProcessStack:
    """A rank's process at one moment; `stack` is text of all its threads, or why there is none."""

    look: ProcessSample
    stack: str = ""


def look(targets: Sequence[DumpTarget], *, stacks: bool) -> tuple[ProcessStack, ...]:
    """See each; `stacks`: where its threads are as well, which costs some 30 ms of a CPU each."""
    end = time.monotonic() + ALL_S
    return tuple(_see(target, end if stacks else None) for target in targets)


def _see(target: DumpTarget, end: float | None) -> ProcessStack:
    stopped = why_stopped(target.pid) or (target.pid != target.host_pid and why_stopped(target.host_pid)) or ""
    pids = (target.pid, *below(target.pid))
    used = sum(cpu_seconds(pid) for pid in pids)
    if end is None:
        return ProcessStack(ProcessSample(stopped, used))
    seen = ProcessSample(stopped, used, runs=any(map(runs, pids)))
    threads, why_not = dump(target.pid, end)
    if not threads:
        return ProcessStack(seen, why_not)
    frames = user_frames(threads, target.pid)
    return ProcessStack(replace(seen, where=where(frames), at_line=line(frames)), text(threads))


# -- what the kernel says


def why_stopped(pid: int, proc: Path = PROC, cgroups: Path = CGROUPS) -> str:
    """Why a process cannot run at all; empty: it can, or is gone."""
    folder = proc / str(pid)
    with suppress(OSError, IndexError):
        state = _stat(folder)[0]
        if state == "T":
            return f"process {pid} is stopped by a signal (state T)"
        if state == "t":
            return f"process {pid} is held by a debugger (state t)"
        if _frozen(folder, cgroups):
            return f"process {pid} is in a frozen control group"
    return ""


def _frozen(folder: Path, cgroups: Path) -> bool:
    with suppress(OSError):
        waits = (folder / "wchan").read_text()
        if any(name in waits for name in _FREEZERS):
            return True
    with suppress(OSError):
        own = [row for row in (folder / "cgroup").read_text().splitlines() if row.startswith("0::/")]
        return bool(own) and "frozen 1" in (cgroups / own[0][4:] / "cgroup.events").read_text()
    return False


def runs(pid: int, proc: Path = PROC) -> bool:
    """Whether a thread of a process runs or waits for a CPU (state R); a full machine gives it none for seconds."""
    for thread in (proc / str(pid) / "task").glob("*"):
        with suppress(OSError, IndexError):
            if _stat(thread)[0] == "R":
                return True
    return False


def _stat(folder: Path) -> list[str]:
    """What the kernel tells of a process or thread from its state on, proc_pid_stat(5); its name may hold anything."""
    return (folder / "stat").read_text().rpartition(")")[2].split()


def cpu_seconds(pid: int, proc: Path = PROC) -> float:
    """CPU time that a process has used, all threads; 0 for one that is gone."""
    with suppress(OSError, IndexError, ValueError):
        fields = _stat(proc / str(pid))
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


# -- what py-spy says

Threads = list[dict[str, Any]]


def program() -> str:
    """The path of py-spy: beside this Python, or on the PATH; empty: there is none."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy") or ""


def dump(pid: int, end: float) -> tuple[Threads, str]:
    """The threads of a process as py-spy tells them, or why it cannot; `end` by the monotonic clock."""
    spy = program()
    if not spy:
        return [], "no stack: py-spy is not installed here (it comes with ray[default])"
    why = "there was no time left"
    for _ in range(TRIES):
        left = min(EACH_S, end - time.monotonic())
        if left <= 0:
            break
        try:
            done = subprocess.run(
                [spy, "dump", "--pid", str(pid), "--nonblocking", "--json"],
                stdin=subprocess.DEVNULL, capture_output=True, timeout=left, check=False,
            )  # fmt: skip
            if done.returncode == 0:
                return json.loads(done.stdout), ""
            why = _reason(done.stderr.decode(errors="replace"))
        except subprocess.TimeoutExpired:
            why = f"py-spy did not answer within {left:.0f} s"
        except (OSError, ValueError) as error:
            why = f"py-spy: {type(error).__name__}: {error}"
    return [], f"no stack: {why}"


def _reason(said: str) -> str:
    """What py-spy complains of, in a line."""
    lines = [row.strip() for row in said.splitlines() if row.strip()]
    if "permission" in said.lower() or "not permitted" in said.lower():
        return "py-spy may not read other processes here (it needs the capability SYS_PTRACE)"
    return f"py-spy: {lines[-1] if lines else 'failed without a word'}"[:300]


def user_frames(threads: Threads, pid: int) -> list[dict[str, Any]]:
    """The frames of the thread that runs user code, the innermost first."""
    named = [thread for thread in threads if thread.get("thread_name") == USER_THREAD]
    main = [thread for thread in threads if thread.get("os_thread_id") == pid]
    return next((thread["frames"] for thread in (*named, *main)), [])


def where(frames: Sequence[dict[str, Any]]) -> Where:
    """What a thread is doing: what the innermost frame of user code has called. No frames: nobody knows."""
    for frame in frames:
        for part, place in _PLACES:
            if part in frame["filename"]:
                return place
        if _is_users(frame):
            break
    if frames and "torch/autograd/" in frames[0]["filename"]:
        return Where.COLLECTIVE  # DistributedDataParallel's hooks wait for their peers below the engine
    return Where.USER if frames else Where.UNKNOWN


def line(frames: Sequence[dict[str, Any]]) -> str:
    """The innermost line of user code."""
    frame = next((frame for frame in frames if _is_users(frame)), None)
    return f"{Path(frame['filename']).name}:{frame['line']} in {frame['name']}" if frame else ""


def _is_users(frame: dict[str, Any]) -> bool:
    """Whether a frame is neither Python's own, nor torch's, nor ours."""
    file = frame["filename"]
    python = "/lib/python3" in file and "-packages" not in file
    return not python and not any(part in file for part in _OURS)


def text(threads: Threads) -> str:
    """All threads as text, each from its innermost frame."""
    rows: list[str] = []
    for thread in threads:
        holds = " with the GIL" if thread.get("owns_gil") else ""
        state = "running" if thread.get("active") else "idle"
        rows.append(f'thread {thread.get("os_thread_id") or "?"} "{thread.get("thread_name") or ""}" {state}{holds}')
        rows += [f"    {frame['name']} ({frame['filename']}:{frame['line']})" for frame in thread["frames"]]
    return "\n".join(rows) + "\n"
