"""The torch store of one role: a TCPStore, in ElasticMaster's process or in one of the role's own interpreter.

The role's environment has torch; that of Ray's workers need not. This module runs in both, and so imports no Ray.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from dljob.errors import UsageError
from dljob.linux import interpreter
from dljob.runtime.worker.torch_group import GENERATION_KEY, NEXT_KEY

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

FOR_EVER = timedelta(days=3650)
"""A new generation may be days away; without a timeout of its own, a TCPStore client gives up after 300 s."""
_UP = "the store is up"
END_S = 10.0
"""Most seconds to wait for the exit code of a store that is gone."""


def listen(ip: str) -> socket.socket:
    """Return the socket of a store, on which ranks may knock before it answers."""
    return socket.create_server((ip, 0), backlog=1024)


def _address(listener: socket.socket) -> str:
    return "{}:{}".format(*listener.getsockname()[:2])


class RoleStore:
    """A TCPStore on one address, emptied for each generation but the first.

    Ranks of thread hosts use a key prefix per generation. Scripts choose their own keys, so the first rank of a new
    generation asks for an empty store, see `torch_group.renew`. The first generation gets the store that is there:
    nobody has written to it, and torch prints a warning for each connection that breaks.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._ip, self._port = listener.getsockname()[:2]
        self.address = _address(listener)
        self._generation = -1
        self._store: Any = None
        self._open()
        threading.Thread(target=self._serve_renewals, name="dljob-store", daemon=True).start()

    def _open(self) -> None:
        """Replace the store by an empty one on the same listening socket; connections to the old store break."""
        from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

        self._store = None
        self._store = TCPStore(
            self._ip,
            self._port,
            None,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=self._listener.dup().detach(),
        )
        self._store.set(GENERATION_KEY, str(self._generation))

    def _serve_renewals(self) -> None:
        """Serve requests of ranks for a new generation, for ever."""
        from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

        while True:
            client: TCPStore | None = TCPStore(self._ip, self._port, None, is_master=False, timeout=FOR_EVER)
            client.wait([NEXT_KEY], FOR_EVER)
            generation = int(client.get(NEXT_KEY))
            client.delete_key(NEXT_KEY)  # a request that comes between these two lines is made again, see `renew`
            client = None
            if generation > self._generation:
                self._replace(generation)

    def _replace(self, generation: int) -> None:
        unused = self._generation < 0
        self._generation = generation
        if unused:
            self._store.set(GENERATION_KEY, str(generation))
        else:
            self._open()


class OtherProcess(Protocol):
    """A process that can be waited for."""

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code, once it has ended. Raises subprocess.TimeoutExpired."""
        ...


Files = tuple[int, int, int, int]
"""Descriptors of a store's process: its standard files, and its listening socket."""


class OtherProcessStore:
    """A RoleStore in another process, which ends with this one. `on_end(code)` is told of its end.

    `start(files)` makes the process, or returns None where it cannot.
    """

    def __init__(self, ip: str, start: Callable[[Files], OtherProcess | None], on_end: Callable[[int], object]) -> None:
        ends, stays = os.pipe()  # the process reads the end of this one
        out, answer_fd = os.pipe()
        self._said, self._stays = os.fdopen(out), os.fdopen(stays, "w")
        with listen(ip) as listener, os.fdopen(answer_fd, "w") as tells, os.fdopen(ends) as reads:
            self.address = _address(listener)
            process = start((reads.fileno(), tells.fileno(), 2, listener.fileno()))
        if process is None:
            self._said.close()
            self._stays.close()
            raise NoProcessError
        self.process = process
        words = ""
        for line in self._said:  # imports may print, too
            if (line := line.strip()) == _UP:
                break
            words = line or words
        else:
            code = self._wait(lambda _: None)
            raise UsageError(words or f"its process ended with code {code}")
        threading.Thread(target=self._wait, args=(on_end,), name="dljob-store", daemon=True).start()

    def _wait(self, on_end: Callable[[int], object]) -> int:
        """Wait for the end of its output, which is its own: a template that is stopped holds back its exit code."""
        with self._said, self._stays:
            self._said.read()
        code = 1
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.process.wait(END_S)
        on_end(code)
        return code


class NoProcessError(Exception):
    """No process could be made for a store."""


def of_python(python: interpreter.Interpreter, library: str) -> Callable[[Files], subprocess.Popen[bytes]]:
    """Return what starts the process of a store in another interpreter."""
    env = {**os.environ, **interpreter.environment(python, library, os.environ)}

    def start(files: Files) -> subprocess.Popen[bytes]:
        stdin, stdout, _, listener = files
        return subprocess.Popen(
            [python.path, "-P", "-m", __name__, str(listener)],
            env={name: value for name, value in env.items() if name not in interpreter.MISLEADING},
            stdin=stdin,
            stdout=stdout,
            pass_fds=(listener,),
        )

    return start


def serve(
    role: str,
    python: str,
    job_dir: str,
    ip: str,
    on_end: Callable[[int], object],
    *,
    fork: Callable[[Files], OtherProcess | None] | None = None,
) -> RoleStore | OtherProcessStore:
    """Open the store of a role, in its interpreter if it names one; `on_end(code)` is told that such a process ended.

    `fork(files)` makes a process that has torch already, where there is such a one; else this process imports it.

    Raises:
        UsageError: There is no torch, or no such interpreter.
    """
    try:
        if python:
            return OtherProcessStore(ip, of_python(interpreter.find(python), interpreter.library(job_dir)), on_end)
        if fork is not None:
            # Where torch is missing, or its process was killed, the import here says more.
            with contextlib.suppress(NoProcessError, UsageError):
                return OtherProcessStore(ip, fork, on_end)
        importlib.import_module("torch.distributed")
        return RoleStore(listen(ip))
    except (ImportError, UsageError, interpreter.InterpreterError) as error:
        program = python or sys.executable
        message = f"role {role}: its ranks meet in a store of torch, which does not start in {program}: {error}"
        raise UsageError(message, hint="install torch there; roles[].python names another interpreter") from error


def main(fd: str | int, **_: object) -> None:
    """Serve a store on this listening socket, until the process that started this one is gone."""
    try:
        store = RoleStore(socket.socket(fileno=int(fd)))
    except ImportError as error:
        print(error, flush=True)  # noqa: T201 - the other process reads it
        return
    print(_UP, flush=True)  # noqa: T201 - and this, which is the last that is said
    with os.fdopen(os.dup(1), "wb"):  # until its end, by which the other process knows of this one's
        os.dup2(2, 1)
        sys.stdin.read()
    del store


if __name__ == "__main__":
    main(sys.argv[1])
