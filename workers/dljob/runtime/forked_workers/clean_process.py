"""Processes without Ray that have torch from a template: the fork server of a role's scripts, and the role's store.

The template beside the raylet imports torch once for all jobs whose environment is the same; each import takes a second
of a core and 0.2 GiB. A process that it forks has the environment, folder and files that it would have had as a child,
and is none: it must notice by itself that nobody needs it. Where there is no template, it is started and imports.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from typing import Any

from dljob.linux import descendants
from dljob.plan.devices import DEVICES
from dljob.runtime.forked_workers import starter
from dljob.runtime.forked_workers.server import CLEAN_IMPORTS, FOLDER, THREADS

OF_A_PROCESS = ("DLJOB_", "RAY_", *THREADS, *(device.visible_env for device in DEVICES.values() if device.visible_env))
"""How the names of variables begin that no import reads: those of dljob and Ray, the devices that are visible, and
numbers of threads, which each process sets behind the fork. Templates are without, but for the mark by which all
processes of an embedded Ray are found."""
MARK, RAYLET = "DLJOB_EMBEDDED", "RAY_RAYLET_PID"
"""Variables: the mark (`backend.sweeper`, a room above this one), and the pid of a worker's raylet."""
_DETACH = "import os, sys; os.fork() and os._exit(0); os.execv(sys.argv[1], sys.argv[1:])"
"""A program that starts another one, which is no descendant of a worker: Ray ends those with it."""


class CleanProcess:
    """A process that a template was asked for."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._code: int | None = None
        self._waiting = threading.Lock()

    def granted(self, path: str) -> bool:
        """Return whether it is there; wait until the template at `path` has imported."""
        self._line.settimeout(starter.IMPORT_S)
        with contextlib.suppress(OSError):  # once this end is closed, the template forks it no more
            if starter.first_byte(self._line, path) == starter.YES:
                return True
        self._line.close()
        return False

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit code, 1 where its template was killed meanwhile.

        A template that is stopped holds its end back.

        Raises:
            subprocess.TimeoutExpired: It has not ended in `timeout` seconds.
        """
        if not self._waiting.acquire(timeout=-1 if timeout is None else timeout):
            raise subprocess.TimeoutExpired("a clean process", timeout or 0.0)
        try:
            if self._code is None:
                self._line.settimeout(timeout)
                code = self._received()
                self._code = code[0] if code else 1
                self._line.close()
            return self._code
        except TimeoutError as error:
            raise subprocess.TimeoutExpired("a clean process", timeout or 0.0) from error
        finally:
            self._waiting.release()

    def _received(self) -> bytes:
        try:
            return self._line.recv(1)
        except TimeoutError:
            raise
        except OSError:
            return b""


def sockets() -> tuple[str, int]:
    """Return the folder of sockets beside the raylet of this worker, and its pid; an empty one where none is known."""
    raylet, _, folder = os.environ.get(FOLDER, "").partition(":")
    # A Ray that user code starts inherits the variable, and not its servers.
    return (folder, int(raylet)) if raylet and raylet == os.environ.get(RAYLET) else ("", 0)


def _finds_the_same(modules: Sequence[str], import_path: Sequence[str]) -> bool:
    """Return whether a template would import the modules from where a path finds them: Ray adds folders of its own."""
    named_folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    usual = [
        folder for folder in import_path if folder in named_folders or folder.startswith((sys.prefix, sys.base_prefix))
    ]
    top = {name.partition(".")[0] for name in modules}
    return all(_origin(name, import_path) == _origin(name, usual) for name in top)


def _origin(name: str, path: Sequence[str]) -> str | None:
    spec = PathFinder.find_spec(name, path)
    return None if spec is None else spec.origin


def forked(
    program: tuple[str, Mapping[str, Any]],
    modules: Sequence[str],
    env: Mapping[str, str],
    files: tuple[int, int, int, int],
) -> CleanProcess | None:
    """Return a clean process in which modules are imported; None where there is no template, or it does not fork.

    It takes as long as their import where this is the first one.

    Args:
        program: A module, and the options of its `main`, which JSON can hold; `path` among them is its `sys.path`, by
            default this process's.
        modules: What is imported, such as torch.
        env: Its environment.
        files: Its standard files, and the one that `main` gets first.
    """
    folder, raylet = sockets()
    module, options = program
    import_path = [entry for entry in options.get("path") or sys.path if entry]
    if not (folder and modules and _finds_the_same(modules, import_path)):
        return None
    common = {name: value for name, value in env.items() if name == MARK or not name.startswith(OF_A_PROCESS)}
    common[CLEAN_IMPORTS] = ",".join(modules)
    path = starter.socket_of(folder, common, raylet)

    def start(line: socket.socket) -> None:
        if starter.served(folder, raylet) >= starter.MOST:
            raise OSError("there are too many environments beside this raylet")
        words = starter.words_of(line, path, starter.IDLE_S, raylet)
        command = [sys.executable, "-I", "-S", "-c", _DETACH, *words]
        # Other jobs need it when this process ends, which ends its descendants.
        with descendants.letting_go():
            subprocess.run(
                command,
                env=common,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[line.fileno()],
                start_new_session=True,
                check=True,
            )

    request = [module, json.dumps({**options, "path": import_path})], dict(env)
    try:
        clean_process = CleanProcess(starter.from_template(path, request, start, starter.CLEAN, files))
    except (OSError, subprocess.SubprocessError):
        return None
    return clean_process if clean_process.granted(path) else None
