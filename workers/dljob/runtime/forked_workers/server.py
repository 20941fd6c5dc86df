"""A server that forks Ray workers, with what each of them would import already there.

Run as `python server.py LISTENING_FD SOCKET FIRST_S RAYLET_PID` by `starter` or `first_template`, with the environment
of the workers but the id of their job: a template, which has loaded all but Ray. It forks a server for each job, as
Ray's library reads that id when it is loaded. Both have one thread and no Ray of their own: libraries are loaded, and
nothing of them runs. They end with their raylet, or without a first child for FIRST_S, or any for IDLE_S; workers live
on if their server is killed, and servers if their template is. A template of clean processes (`clean_process`) is told
by CLEAN_IMPORTS what to load, and loads nothing else.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from dljob import ray_private
from dljob.linux import device_drivers
from dljob.runtime.forked_workers import socket_folders

LIBRARIES = (
    *(*ray_private.WORKER_LIBRARIES, "numpy", "pydantic", "pydantic.v1"),
    # PrimeMaster's own, which it imports late (`prime_actor`): a quarter of a second before each epoch.
    *("dljob.runtime.controller.prime_actor", "dljob.runtime.controller.prime"),
)
"""What a template of workers imports: nothing that loads Ray."""
IMPORTS = (
    *ray_private.WORKER_MODULES,
    *("dljob.runtime.worker.thread_host", "dljob.runtime.worker.fork_host", "dljob.runtime.node.node_agent"),
)
"""What the server of a job imports beside them. A module that fails is left to the workers, in either."""
SWITCH, WANTED, FOLDER = "DLJOB_FORKED_WORKERS", "DLJOB_FORK_IMPORTS", "DLJOB_FORK_SOCKETS"
"""Variables: 1 in a worker that was forked; more modules to import, such as torch; the raylet, and the folder
of the sockets beside it."""
CLEAN_IMPORTS = "DLJOB_CLEAN_IMPORTS"
"""Variable of a template of clean processes: the modules that it imports."""
CLEAN_NAME = "dljob-clean"
"""What the kernel calls clean processes and all that they fork; their command is the template's."""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables that libraries read once, when they are loaded."""
BLAS = ("openblas_set_num_threads", "openblas_set_num_threads64_", "scipy_openblas_set_num_threads64_")
"""Names that a build of OpenBLAS may give the same function."""
IDLE_S = 30.0
"""Seconds without a child after which a server or template ends."""
REGISTER_S = 60.0
"""Seconds after which a raylet ends the starter of a worker that has not registered: `worker_register_timeout_seconds`.
It looks for the worker no sooner, and the actor waits so long."""
ENDS, ENDS_BYTES = ".ends", 1 << 16
"""What is appended to a server's path for the file of its workers' ends (`worker_ends`); and a size at which that
begins anew."""
TITLE, IDLE = b"ray::", b"ray::IDLE"
"""How the command of a worker begins once it is Ray's; and until it has its first task, registered or not."""
YES, REGISTERED, UNFIT, SERVER, CLEAN = (
    b"y",
    b"r",
    ".unfit",
    "server",
    "clean",
)  # as in `starter`, which this program does not import
_SCORE = "oom_score_adj"


Change = tuple[str | None, str | None]
"""What a variable was and is; None: it was or is not there."""


class Start(NamedTuple):
    """A worker, the server of a job, or a clean process to become."""

    argv: list[str]
    """The program of a worker and its arguments; the path of the socket of a server; a module and its options."""
    env: dict[str, str]
    folder: str
    files: list[int]
    starter: int
    """The pid of the process that the raylet has started for a worker."""
    line: socket.socket | None = None
    """Where a server listens."""
    clean: bool = False
    held_fd: int = -1
    """The connection to who has asked, in a child that keeps it: -1 in a server."""


@contextmanager
def one_thread() -> Generator[None]:
    """Have libraries begin with one thread while the block runs: pools of threads do not survive a fork."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def set_threads() -> None:
    """Give libraries that are loaded already the numbers of threads that they would have read in this environment."""
    if blas := _number("OPENBLAS_NUM_THREADS") or _number("OMP_NUM_THREADS"):
        for path in _loaded("openblas"):
            library = ctypes.CDLL(path)
            for name in BLAS:
                if (call := getattr(library, name, None)) is not None:
                    call(blas)
    if (torch := sys.modules.get("torch")) is not None and (many := _number("OMP_NUM_THREADS")):
        torch.set_num_threads(many)


def _number(name: str) -> int:
    text = os.environ.get(name, "").partition(",")[0].strip()  # of a list of levels, as of OpenMP, the outermost counts
    return int(text) if text.isascii() and text.isdigit() else 0


def _loaded(word: str) -> set[str]:
    """Return the libraries of this process that have a word in their names."""
    with open("/proc/self/maps") as lines:  # noqa: PTH123 - each worker does this: hundreds of lines
        paths = {line[at:-1] for line in lines if word in line and (at := line.find("/")) >= 0}
    return {path for path in paths if word in Path(path).name}


class WorkerServer:
    """Forks a worker, or the server of a job, for each connection; `line` listens."""

    def __init__(self, line: socket.socket, path: str, raylet: int, first_s: float) -> None:
        self._line = line
        self._path = path
        self._idle_s = first_s
        self._raylet = os.pidfd_open(raylet)
        self._poll = select.poll()
        self._lines: dict[int, tuple[socket.socket, int, float]] = {}
        """Descriptor of a connection -> itself, the pid of its worker, and when that was forked."""
        self._children: dict[int, tuple[int, int]] = {}
        """Pidfd of a child -> its pid, and the descriptor of its connection; -1: it has none, as it is a server."""
        self._alone: dict[int, float] = {}
        """Worker that has lost its starter before its first task -> when it ends if it has none by then."""
        for fd in (line.fileno(), self._raylet):
            self._poll.register(fd, select.POLLIN)

    def serve(self) -> Start | None:
        """Serve until the raylet is gone, or nobody needs it: then return None. In a child, return its start."""
        idle_since = time.monotonic()
        while True:
            ready = self._poll.poll(1000 * self._idle_s)
            if self._children:
                idle_since, self._idle_s = time.monotonic(), IDLE_S
            for fd, _ in ready:
                if fd == self._raylet:
                    return None
                if fd == self._line.fileno():
                    start = self._take()
                    if start is not None:
                        return start
                elif fd in self._children:
                    self._ended(fd)
                elif fd in self._lines:
                    self._poll.unregister(fd)
                    self._starter_gone(*self._lines[fd][1:])
            self._end_late()
            if not self._children and time.monotonic() - idle_since >= self._idle_s:
                return None

    def _take(self) -> Start | None:
        """Take a connection and fork; in the child return its start."""
        try:
            line, _ = self._line.accept()
        except OSError as error:
            self._give_up(error)
            return None
        try:
            line.settimeout(1.0)
            start = _received(line)
        except (OSError, ValueError):
            line.close()
            return None
        if start.clean and _is_gone(line):
            # Who asked has started it by itself; a second one would take the orders of the first.
            for fd in start.files:
                os.close(fd)
            line.close()
            return None
        try:
            pid = os.fork()
        except OSError as error:
            _say(f"no worker can be forked: {error.strerror}")
            pid = -1
        if pid == 0:
            return start._replace(held_fd=self._let_go(line, keep=start.line is None))
        for fd in start.files:
            os.close(fd)
        if pid < 0 or not self._follow(pid, line, start):
            # Its starter hears no YES, and starts the worker as Ray does.
            line.close()
            if start.line is not None:
                start.line.close()
        return None

    def _give_up(self, error: OSError) -> None:
        """Take no further start, as no file is left for its connection: the next starter makes another server."""
        _say(f"takes no further worker beside {len(self._children)}: {error.strerror} (ulimit -n)")
        self._poll.unregister(self._line.fileno())
        self.leave()

    def _follow(self, pid: int, line: socket.socket, start: Start) -> bool:
        """Answer YES, and wait for the end of a child, and of the starter of a worker; False if the child had to go."""
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            _say(f"ends a worker that it cannot follow: {error.strerror} (ulimit -n)")
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return False
        line.settimeout(None)
        with contextlib.suppress(OSError):
            line.sendall(YES)
        self._poll.register(pidfd, select.POLLIN)
        if start.line is not None:
            start.line.close()
            line.close()
            self._children[pidfd] = pid, -1
            return True
        self._children[pidfd] = pid, line.fileno()
        self._lines[line.fileno()] = line, pid, time.monotonic()
        if not start.clean:  # that hears by itself that nobody needs it
            self._poll.register(line.fileno(), select.POLLRDHUP)
        return True

    def _starter_gone(self, pid: int, forked: float) -> None:
        """End a worker with its starter, but have one that was just forked register: its raylet awaits that very one.

        A raylet ends a starter that it gives up, and no other. One that somebody else kills is no news to it.
        """
        if _has_task(pid):
            _kill(pid)
        else:
            self._alone[pid] = forked + REGISTER_S

    def _end_late(self) -> None:
        """End the workers without a starter that have no task in time: who registers now is unknown to the raylet."""
        late = [pid for pid, end in self._alone.items() if time.monotonic() >= end]
        for pid in late:
            del self._alone[pid]
            if not _has_task(pid):
                _kill(pid)

    def _ended(self, pidfd: int) -> None:
        """Collect a child, and tell the starter of a worker how it ended."""
        pid, fd = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        status = os.waitpid(pid, 0)[1]
        if fd < 0:
            return
        self._note(pid, status)
        code = os.waitstatus_to_exitcode(status)
        line, _, _ = self._lines.pop(fd)
        self._alone.pop(pid, None)
        with contextlib.suppress(KeyError):
            self._poll.unregister(fd)
        with contextlib.suppress(OSError):
            # As a shell tells a signal.
            line.sendall(bytes([code if code >= 0 else 128 - code]))
        line.close()

    def _note(self, pid: int, status: int) -> None:
        """Write down how a worker ended, for whoever asks: Ray reads no exit status."""
        with contextlib.suppress(OSError), Path(self._path + ENDS).open("a") as file:
            if file.tell() >= ENDS_BYTES:
                file.truncate(0)
            file.write(f"{pid} {status} {time.monotonic():.3f}\n")

    def _let_go(self, line: socket.socket, *, keep: bool) -> int:
        """Close, in a child, what is the server's. A worker keeps its connection: the starter waits for its end.

        Returns the descriptor that it keeps, or -1.
        """
        os.close(self._line.detach())
        os.close(self._raylet)
        for pidfd in self._children:
            os.close(pidfd)
        for other_line, _, _ in self._lines.values():
            other_line.close()
        if keep:
            return line.detach()
        line.close()
        return -1

    def leave(self) -> None:
        """Stop to listen; who has asked and got no answer starts as Ray does."""
        # Once: another server may have the path by now.
        if self._line.fileno() < 0:
            return
        Path(self._path).unlink(missing_ok=True)
        self._line.close()

    def clear_behind_raylet(self) -> None:
        """Remove the folder of the sockets if the raylet has ended, whose alone it is."""
        if select.select([self._raylet], [], [], 0)[0]:
            with contextlib.suppress(OSError):  # another server does it, too
                socket_folders.clear(Path(self._path).parent)


def _has_task(pid: int) -> bool:
    """Return whether a worker has had a task or an actor, and so is registered."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return command.startswith(TITLE) and not command.startswith(IDLE)


def _is_gone(line: socket.socket) -> bool:
    """Return whether nobody is at the other end of a connection any more."""
    line.setblocking(False)
    try:
        return not line.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _received(line: socket.socket) -> Start:
    head, files, _, _ = socket.recv_fds(line, 4, 4)
    try:
        if len(files) < 3:  # the kernel drops those for which this process has no number left
            raise OSError("too many open files")
        text = bytearray()
        while len(text) < int.from_bytes(head, "big"):
            text += line.recv(1 << 16) or _raise_reset()
        argv, env, folder, kind = json.loads(text)
        if kind == CLEAN and len(files) < 4:
            raise OSError("too many open files")
        credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        # Before the fork: who asked may connect as soon as it has its answer.
        served = listening(argv[0]) if kind == SERVER else None
    except BaseException:
        for fd in files:
            os.close(fd)
        raise
    return Start(argv, env, folder, files, struct.unpack("3i", credentials)[0], served, kind == CLEAN)


def listening(path: str) -> socket.socket:
    """Return the socket of a server. Raises OSError."""
    line = socket.socket(socket.AF_UNIX)
    try:
        line.bind(path)
        line.listen(1024)
    except OSError:
        line.close()
        raise
    return line


def _say(words: str) -> None:
    """Write a line to the raylet's log."""
    with contextlib.suppress(OSError):
        os.write(2, f"[dljob] server of workers, pid {os.getpid()}: {words}\n".encode())


def _raise_reset() -> bytes:
    raise ConnectionResetError("the starter is gone")


def become(start: Start, path: str, raylet: int, changed: Mapping[str, Change]) -> None:
    """Go on as what was asked for, in a session of its own: a raylet ends a worker's whole process group.

    Args:
        start: What that is.
        path: The socket of the server that it was forked from.
        raylet: The pid of its raylet.
        changed: What the imports have changed in the environment.
    """
    os.setsid()
    for at, fd in enumerate(start.files[:3]):
        os.dup2(fd, at)
        os.close(fd)
    with contextlib.suppress(OSError):
        os.chdir(start.folder)
    # The raylet has set it for the process that it started; whom the kernel kills first must be the worker.
    with contextlib.suppress(OSError):
        Path("/proc/self", _SCORE).write_text(Path("/proc", str(start.starter), _SCORE).read_text())
    os.environ.clear()
    if start.clean:
        become_clean(start, changed)
        return
    os.environ.update({**start.env, SWITCH: "1", FOLDER: f"{raylet}:{Path(path).parent}"})
    if start.line is not None:
        run(start.line, start.argv[0], raylet, IDLE_S, IMPORTS + modules_to_import())
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # `random` does this for itself. With the server's state all workers would draw the same numbers.
    if (drawn := sys.modules.get("numpy.random")) is not None:
        drawn.seed()
    ray_private.when_threads_are_known(set_threads)
    ray_private.when_registered(lambda: tell_registered(start.held_fd))
    sys.argv = start.argv
    sys.path.insert(0, os.fspath(Path(start.argv[0]).parent))
    runpy.run_path(start.argv[0], run_name="__main__")


def tell_registered(connection: int) -> None:
    """Tell the starter of this worker that its raylet knows it; the starter may have been killed."""
    with contextlib.suppress(OSError):
        os.write(connection, REGISTERED)


def become_clean(start: Start, changed: Mapping[str, Change]) -> None:
    """Go on as a clean process: what an import has set stays, as if this process had imported."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(CLEAN_NAME)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(start.env)
    import_changes = {name: new for name, (old, new) in changed.items() if start.env.get(name) == old}
    for name, value in import_changes.items():
        os.environ.pop(name, "") if value is None else os.environ.update({name: value})
    set_threads()
    module, text = start.argv
    options = json.loads(text)
    sys.path[:] = options.pop("path") or sys.path
    sys.argv = [module]
    sys.modules["__main__"] = ModuleType("__main__")
    importlib.import_module(module).main(start.files[3], held_fd=start.held_fd, began=start.env, **options)


def modules_to_import(name: str = WANTED) -> tuple[str, ...]:
    """Return the modules that a variable of the environment asks for."""
    return tuple(filter(None, os.environ.get(name, "").split(",")))


def run(line: socket.socket, path: str, raylet: int, first_s: float, imports: Iterable[str]) -> None:
    """Import, then serve. What it forks ends in this function, too."""
    before, environ = device_drivers.loaded(), dict(os.environ)
    with one_thread():
        for name in imports:
            with contextlib.suppress(Exception):  # the worker's own import of it raises the error again
                importlib.import_module(name)
    changed = changes(environ, os.environ)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed by an import; what one printed is not each child's to print
            stream.flush()
    # A collection in a worker would write to the headers of all shared objects, and so copy their pages.
    gc.collect()
    gc.freeze()
    server = WorkerServer(line, path, raylet, first_s)
    # Threads do not survive a fork, and drivers may not find their devices: such a library is safe in no worker.
    drivers = device_drivers.loaded() - before
    if drivers or len(list(Path("/proc/self/task").iterdir())) > 1:
        _say(f"forks none, as an import has {f'loaded {min(drivers)}' if drivers else 'started a thread'}")
        with contextlib.suppress(FileNotFoundError):  # its raylet has ended, and the folder is gone
            Path(path + UNFIT).touch()
        server.leave()
    elif (start := server.serve()) is not None:
        become(start, path, raylet, changed)
    else:
        server.leave()
        server.clear_behind_raylet()


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, Change]:
    """Return the variables that differ: their old and new value, None where there is none."""
    pairs = {name: (before.get(name), now.get(name)) for name in {*before, *now}}
    return {name: (old, new) for name, (old, new) in pairs.items() if old != new}


def main(fd: int, path: str, first_s: float, raylet: int) -> None:
    """Serve as a template."""
    line = socket.socket(fileno=fd)
    line.set_inheritable(False)
    # Its own folder, which Python puts there for a program.
    del sys.path[0]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Those that workers want are none that load Ray: with them here, all jobs share one import of torch.
    run(line, path, raylet, first_s, modules_to_import(CLEAN_IMPORTS) or LIBRARIES + modules_to_import())


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
