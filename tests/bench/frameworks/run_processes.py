"""The processes of a measured run, found by a variable that they inherit, or as orphans that came to this process."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
from pathlib import Path

import psutil
from scenes import Scene

MARK = "HF_HOME"
PR_SET_CHILD_SUBREAPER = 36


def adopt() -> None:
    """Become the parent of what a killed process leaves: vLLM's workers write their title over their variables."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def processes(scene: Scene) -> list[psutil.Process]:
    """Return all processes of a run."""
    found, below = [], set(psutil.Process().children(recursive=True))
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            mark = process.environ().get(MARK)
            if mark == scene.env[MARK] or (mark is None and process in below):
                found.append(process)
    return found


def named(scene: Scene, name: str) -> psutil.Process:
    """Return the one process of a run whose program has this name."""
    (found,) = [one for one in processes(scene) if program(one).startswith(name)]
    return found


def program(process: psutil.Process) -> str:
    """Return the name of a process's program, or the title that it gave itself; empty for one that ended."""
    with contextlib.suppress(psutil.Error):
        return Path((process.cmdline() or [""])[0]).name
    return ""


def end_machine(scene: Scene, process: psutil.Process) -> None:
    """Kill the raylet below which a process runs, and all that it started."""
    raylet = next(one for one in process.parents() if one.name() == "raylet")
    end(scene, [raylet, *raylet.children(recursive=True)])


def end_master(scene: Scene) -> None:
    """Kill PrimeMaster."""
    named(scene, "ray::PrimeMaster").kill()


def end_tables(scene: Scene, run: subprocess.Popen[bytes] | None = None, limit: float = 0.0) -> None:
    """Kill the GCS, which has the tables of a Ray; its loss ends the command, for which this waits."""
    named(scene, "gcs_server").kill()
    if run is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(limit)


def end(scene: Scene, some: list[psutil.Process] | None = None) -> None:
    """Kill what is left of a run, or some of it."""
    for process in processes(scene) if some is None else some:
        with contextlib.suppress(psutil.Error):
            process.kill()
