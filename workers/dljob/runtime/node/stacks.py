"""A look at ranks' processes from outside: whether they can run, the CPU time they used, and where their threads are.

The processes take no part: one that is stopped, or whose C code holds the GIL, is seen all the same. Stacks come from
py-spy, which reads memory without pausing the process; where it has no permission, the answer says so.
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

from dljob.linux.debuggers import is_debuggers
from dljob.linux.descendants import below
from dljob.master.state.early_end import WRAPPERS
from dljob.master.state.hang import ProcessSample, Where

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
EACH_S, ALL_S = 5.0, 10.0
"""Seconds that py-spy has for one process, and for all processes of one question."""
TRIES = 3
"""Attempts per process: it runs on while its memory is read, so a dump may be inconsistent, which py-spy notices."""
HELD = "is held by a debugger (state t)"
"""Words about a process that another one traces and has stopped."""
USER_THREAD = "user"
"""Name of the thread that runs user code in a thread host."""
_FREEZERS = ("freezer", "refrigerator")
"""Kernel functions in which a frozen process sleeps: of cgroup v2, and of cgroup v1 or a suspended machine."""
_PLACES = (
    # Folders, not files: a module that is moved within its room must not turn a wait into user code.
    ("dljob/runtime/rpc/", Where.CALL),
    ("dljob/runtime/queues/", Where.CALL),
    ("dljob/runtime/weights/", Where.CALL),
    ("dljob/runtime/collectives/", Where.CALL),
    ("dljob/runtime/checkpoint/", Where.CHECKPOINT),
    ("dljob/runtime/process/worker_context.py", Where.ORDER),
    ("torch/distributed/checkpoint/", Where.CHECKPOINT),
    ("torch/distributed/", Where.COLLECTIVE),
    ("torch/nn/parallel/", Where.COLLECTIVE),
)
"""Part of a file's path -> what a thread that has called into it is waiting for."""
_DATA = "dljob/runtime/data/"
"""A thread below it waits for data, wherever it is: in a package that reads a source, or until that is asked again."""
_OURS = (
    *("/torch/", "/ray/_private/", "<frozen"),
    *("dljob/runtime/", "dljob/logs/", "dljob/linux/", "dljob/ray_private.py"),
)
"""Parts of paths of files that are not user code."""


@dataclass(frozen=True, slots=True)
class DumpTarget:
    """A rank's process, and the process of its host (the same one in a thread host)."""

    name: str
    """Role and rank, such as `trainer/2`."""
    pid: int
    host_pid: int


@dataclass(frozen=True, slots=True)
class ProcessStack:
    """A rank's process at one moment; `stack` is text of all its threads, or the reason why there is none."""

    sample: ProcessSample
    stack: str = ""


def sample_processes(targets: Sequence[DumpTarget], *, stacks: bool) -> tuple[ProcessStack, ...]:
    """Look at each process; `stacks` adds where its threads are, at a cost of some 30 ms of CPU each."""
    end = time.monotonic() + ALL_S
    return tuple(_see(target, end if stacks else None) for target in targets)


def _see(target: DumpTarget, end: float | None) -> ProcessStack:
    # A host that cannot run is proof of a hang for its ranks, too (docs/adr/0024).
    stopped = why_stopped(target.pid) or (target.pid != target.host_pid and why_stopped(target.host_pid)) or ""
    # A debugger's hold is no proof of a hang: a person may let it go on. A rank that is held so waits for the outside.
    is_held = stopped.endswith(HELD)
    stopped = "" if is_held else stopped
    # With all below it: a rank may do its work in processes of its own, such as data loaders.
    pids = (target.pid, *below(target.pid))
    used = sum(cpu_seconds(pid) for pid in pids)
    if end is None:
        return ProcessStack(ProcessSample(stopped, used, Where.DEBUGGER if is_held else Where.UNKNOWN))
    sample = ProcessSample(stopped, used, runs=any(map(runs, pids)))
    threads, why_not = dump(target.pid, end)
    if not threads:
        return ProcessStack(replace(sample, activity=Where.DEBUGGER if is_held else Where.UNKNOWN), why_not)
    frames = user_frames(threads, target.pid)
    activity = Where.DEBUGGER if is_held else activity_of(frames)
    gil_line = next((line(thread["frames"]) for thread in threads if thread.get("owns_gil")), "")
    at_line = _at_end(threads) if _has_ended(frames) else line(frames)
    place = replace(sample, activity=activity, at_line=at_line, call=torch_call(frames), gil_line=gil_line)
    return ProcessStack(place, text(threads))


# -- from the kernel


def why_stopped(pid: int, proc: Path = PROC, cgroups: Path = CGROUPS) -> str:
    """Return why a process cannot run at all; empty when it can, or is gone."""
    folder = proc / str(pid)
    with suppress(OSError, IndexError):
        state = _stat(folder)[0]
        if state == "T":
            return f"process {pid} is stopped by a signal (state T)"
        if state == "t":
            return f"process {pid} {HELD}"
        if _frozen(folder, cgroups):
            return f"process {pid} is in a frozen control group"
    return ""


def _frozen(folder: Path, cgroups: Path) -> bool:
    with suppress(OSError):
        waits = (folder / "wchan").read_text()
        if any(name in waits for name in _FREEZERS):
            return True
    # cgroup v2 alone: its one line begins with "0::/".
    with suppress(OSError):
        group_lines = [row for row in (folder / "cgroup").read_text().splitlines() if row.startswith("0::/")]
        return bool(group_lines) and "frozen 1" in (cgroups / group_lines[0][4:] / "cgroup.events").read_text()
    return False


def runs(pid: int, proc: Path = PROC) -> bool:
    """Return whether a thread of a process runs or waits for a CPU (state R).

    A thread that waits on a busy machine uses no CPU time for seconds, and is no hang.
    """
    for thread in (proc / str(pid) / "task").glob("*"):
        with suppress(OSError, IndexError):
            if _stat(thread)[0] == "R":
                return True
    return False


def _stat(folder: Path) -> list[str]:
    """Return the fields of proc_pid_stat(5) from the state on. The name before it may hold spaces and parentheses."""
    return (folder / "stat").read_text().rpartition(")")[2].split()


def cpu_seconds(pid: int, proc: Path = PROC) -> float:
    """Return the CPU time of all threads of a process in seconds; 0 for one that is gone."""
    with suppress(OSError, IndexError, ValueError):
        fields = _stat(proc / str(pid))
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


# -- from py-spy

Threads = list[dict[str, Any]]


def program() -> str:
    """Return the path of py-spy, beside this Python or on the PATH; empty without one."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy") or ""


def dump(pid: int, end: float) -> tuple[Threads, str]:
    """Return the threads of a process as py-spy sees them, or why it cannot; `end` is on the monotonic clock."""
    spy = program()
    if not spy:
        return [], "no stack: py-spy is not installed here (it comes with ray[default])"
    problem = "the time for all processes was over"
    for _ in range(TRIES):
        seconds_left = min(EACH_S, end - time.monotonic())
        if seconds_left <= 0:
            break
        try:
            done = subprocess.run(
                # --nonblocking: a pause by ptrace would itself show as a stopped process (state t), and fails on a
                # stopped one.
                [spy, "dump", "--pid", str(pid), "--nonblocking", "--json"],
                stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds_left, check=False,
            )  # fmt: skip
            if done.returncode == 0:
                return [_without_stub(thread) for thread in json.loads(done.stdout)], ""
            problem = _reason(done.stderr.decode(errors="replace"))
        except subprocess.TimeoutExpired:
            problem = f"py-spy did not answer within {seconds_left:.0f} s"
        except (OSError, ValueError) as error:
            problem = f"py-spy: {type(error).__name__}: {error}"
    return [], f"no stack: {problem}"


def _without_stub(thread: dict[str, Any]) -> dict[str, Any]:
    """Return a thread without the `python -c` line in which dljob begins a process: it is no code of the user's."""
    frames = thread["frames"]
    is_stub = len(frames) > 1 and frames[-1]["filename"] == "<string>" and "dljob/runtime/" in frames[-2]["filename"]
    return {**thread, "frames": frames[:-1]} if is_stub else thread


def _has_ended(frames: Sequence[dict[str, Any]]) -> bool:
    """Return whether the script has ended, and Python waits for its threads."""
    return any(frame["name"] == "_shutdown" and frame["filename"].endswith("/threading.py") for frame in frames)


def _at_end(threads: Threads) -> str:
    """Return what a script that has ended waits for. Which threads are daemons cannot be seen from outside."""
    keepers = [f"{thread.get('thread_name')} at {at}" for thread in threads if (at := line(thread["frames"]))]
    waits = f"thread {' or '.join(keepers)}" if keepers else "a thread"
    return f"the end of its script, which waits for {waits}: it is no daemon"


def _reason(output: str) -> str:
    """Return py-spy's complaint in one line."""
    lines = [row.strip() for row in output.splitlines() if row.strip()]
    if "permission" in output.lower() or "not permitted" in output.lower():
        return "py-spy may not read other processes here (it needs the capability SYS_PTRACE)"
    return f"py-spy: {lines[-1] if lines else 'failed without a message'}"[:300]


def user_frames(threads: Threads, pid: int) -> list[dict[str, Any]]:
    """Return the frames of the thread that runs user code, innermost first."""
    named = [thread for thread in threads if thread.get("thread_name") == USER_THREAD]
    main = [thread for thread in threads if thread.get("os_thread_id") == pid]
    # A thread host names its user thread; in a script the main thread runs user code.
    return next((thread["frames"] for thread in (*named, *main)), [])


def activity_of(frames: Sequence[dict[str, Any]]) -> Where:
    """Return what a thread is doing, by the file that the innermost frame of user code has called into.

    Frames further out mean nothing: a launcher may be one of dljob's own files. Without frames the place is unknown.
    """
    if any(_DATA in frame["filename"] for frame in frames):
        return Where.CALL  # one place for both, or a rank that waits and asks in turn would seem to move in user code
    for frame in frames:
        if is_debuggers(frame["filename"]):
            return Where.DEBUGGER
        for part, place in _PLACES:
            if part in frame["filename"]:
                return place
        if _is_users(frame):
            break
    if frames and "torch/autograd/" in frames[0]["filename"]:
        return Where.COLLECTIVE  # DistributedDataParallel waits for peers below autograd's engine, without a frame
    return Where.USER if frames else Where.UNKNOWN


def line(frames: Sequence[dict[str, Any]]) -> str:
    """Return the innermost line of user code; empty without one."""
    frame = next((frame for frame in frames if _is_users(frame)), None)
    return f"{Path(frame['filename']).name}:{frame['line']} in {frame['name']}" if frame else ""


def torch_call(frames: Sequence[dict[str, Any]]) -> str:
    """Return the function of torch.distributed that the innermost line of user code has called; empty: none."""
    called = ""
    for frame in frames:
        if _is_users(frame):
            return called
        if "torch/distributed/" in frame["filename"] and frame["name"] not in WRAPPERS:
            called = frame["name"]
    return called


def _is_users(frame: dict[str, Any]) -> bool:
    """Return whether a frame is user code: not Python's own, torch's, Ray's or dljob's."""
    file = frame["filename"]
    python = "/lib/python3" in file and "-packages" not in file
    return not python and not any(part in file for part in _OURS)


def _closeness(thread: dict[str, Any]) -> int:
    """Return how far a thread is from the user's code: 0 for one that runs it, 2 for one of dljob's or Ray's."""
    if thread.get("thread_name") in (USER_THREAD, "MainThread") and line(thread["frames"]):
        return 0
    return 1 if line(thread["frames"]) else 2


def text(threads: Threads) -> str:
    """Return all threads as text, those with the user's code first, each with its line and from its innermost frame."""
    rows: list[str] = []
    for thread in sorted(threads, key=_closeness):
        holds = " with the GIL" if thread.get("owns_gil") else ""
        state = "running" if thread.get("active") else "idle"
        place = f" at {line(thread['frames'])}" if line(thread["frames"]) else ""
        name = thread.get("thread_name") or ""
        rows.append(f'thread {thread.get("os_thread_id") or "?"} "{name}" {state}{holds}{place}')
        rows += [f"    {frame['name']} ({frame['filename']}:{frame['line']})" for frame in thread["frames"]]
    return "\n".join(rows) + "\n"
