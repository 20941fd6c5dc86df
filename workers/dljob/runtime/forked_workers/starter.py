"""What a raylet starts in place of a worker: it hands the start to a server that forks, and stays until the end.

Run as `python -I -S starter.py FOLDER setup_worker.py default_worker.py ARGUMENT...`. It imports only the standard
library, and little of it: it is started for each worker. The raylet knows a worker by the pid with which that
registers, so it ends the worker itself; if it ends this process instead, the server sees the connection close, and ends
the worker. If this process is killed before its worker has registered, the server lets the worker do so all the same.
If the server or the worker is killed before that, this process has another one forked: the raylet would wait for the
first one for a minute.

There is a server for each environment, as libraries read variables when they are imported: also Ray, which reads
RAY_JOB_ID. A template forks it, which is there for all jobs of an environment that is else the same. Whatever no server
can do, or does not do in time, is done as Ray does it.
"""

# It is started for each worker, and pathlib takes as long to import as all else here.
# ruff: noqa: PTH100, PTH108, PTH109, PTH110, PTH116, PTH120, PTH123

from __future__ import annotations

import array
import errno
import fcntl
import io
import json
import os
import re
import socket
import struct
import sys
import time
from collections.abc import Callable
from hashlib import sha256

SETUP = "setup_worker.py"
"""The name of Ray's own first program of a worker."""
CONTEXT, LANGUAGE = "--serialized-runtime-env-context=", "--language="
"""Arguments for it alone. Source: ray/_private/workers/setup_worker.py, 2.60."""
MOST = 64
"""Most servers and templates beside a raylet: workers of further environments are started as Ray does it."""
JOB = "RAY_JOB_ID"
PATIENCE_S = 20.0
"""Most seconds that a starter waits each for a lock, a template and a server; a raylet ends it after 60 in all, and one
that waited for a lock needs no template."""
LOOK_S = 0.01
"""Seconds between two tries to get a lock."""
IMPORT_S = 120.0
"""Age in seconds from which a server or template is not importing any more, but hangs if it does not answer."""
IDLE_S = 30.0
"""Seconds without a child after which either ends."""
YES = b"y"
REGISTERED = b"r"
"""What a worker says once its raylet knows it: a death before that is no news to the raylet."""
TRIES = 3
"""Most workers that are forked one after the other for a start, where each is killed before it has registered."""
WORKER, SERVER, CLEAN = "worker", "server", "clean"
"""What is asked for: a worker, the server of a job, or a process without Ray (`clean_process`)."""
SIGNALLED = 128
"""An exit code above it tells a signal, as a shell tells it."""
UNFIT = ".unfit"
"""What is appended to a server's path for the file by which it says that it must not fork."""

Request = tuple[list[str], dict[str, str]]
"""Ray's program of a worker with its arguments, and the environment."""


def request_of(words: list[str], environ: dict[str, str], executable: str) -> Request | None:
    """Return what to ask a server for; None where only Ray's own way will do.

    Args:
        words: The arguments behind the folder.
        environ: The raylet's environment.
        executable: The Python of the raylet's workers.
    """
    context = next((json.loads(word.removeprefix(CONTEXT)) for word in words if word.startswith(CONTEXT)), {})
    program = [word for word in words[1:] if not word.startswith((CONTEXT, LANGUAGE))]
    is_usual_start = context.get("py_executable", executable) == executable and not context.get(
        "override_worker_entrypoint"
    )
    # Workers for spilled objects come before any job, and a worker without a job cannot load Ray in advance.
    known = environ.get(JOB) and not any(word.startswith("--worker-type=") for word in program)
    if not (is_usual_start and known and program) or context.get("command_prefix"):
        return None
    env = dict(environ)
    for name, value in (context.get("env_vars") or {}).items():
        # As Ray does it: `${X}` is X of the node, and nothing where there is none.
        env[name] = re.sub(r"\$\{[A-Z0-9_]+\}", "", _expanded(value, env))
    return program, env


def _expanded(text: str, env: dict[str, str]) -> str:
    """Do as `os.path.expandvars`, for an environment that is not this process's."""

    def value(match: re.Match[str]) -> str:
        return env.get(match[1] or match[2], match[0])

    return re.sub(r"\$(?:(\w+)|\{([^}]*)\})", value, text)


def socket_of(folder: str, env: dict[str, str], raylet: int) -> str:
    """Return the path of the server for an environment, beside a raylet."""
    digest = sha256(json.dumps([sys.executable, sorted(env.items())]).encode()).hexdigest()[:16]
    return f"{folder}/{raylet}-{digest}.sock"


def ask(path: str, request: Request, kind: str = WORKER, files: tuple[int, ...] = (0, 1, 2)) -> socket.socket:
    """Hand a start to a server; return the connection. Raises OSError where nobody listens.

    Args:
        path: Where the server listens.
        request: What to start. The program of a server is its socket.
        kind: What it is.
        files: Its standard files, and one more of a clean process.
    """
    program, env = request
    try:
        folder = os.getcwd()
    except OSError:  # removed meanwhile
        folder = "/"
    text = json.dumps([program, env, folder, kind]).encode()
    line = socket.socket(socket.AF_UNIX)
    try:
        line.settimeout(PATIENCE_S)
        line.connect(path)
        # The environment, which may have secrets, goes to nobody else.
        if _uid_of_peer(line) != os.geteuid():
            raise PermissionError(errno.EPERM, "another user listens there", path)
        message = len(text).to_bytes(4, "big") + text
        # In one message: a starter that is ended meanwhile has sent all of it, or nothing.
        sent = line.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))])
        # The kernel takes a part of what is very long. Where nothing is left, `sendall` would still wait for room.
        if rest := message[sent:]:
            line.sendall(rest)
    except OSError:
        line.close()
        raise
    return line


def _uid_of_peer(line: socket.socket) -> int:
    return struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]


def reach(folder: str, request: Request, raylet: int) -> socket.socket:
    """Hand a start to the server of its environment, which is started if there is none. Raises OSError."""
    path = socket_of(folder, request[1], raylet)
    if (line := _asked(path, request)) is not None:
        return line
    # Who waits for it needs this very server: others start theirs meanwhile.
    with locked(path):
        if (line := _asked(path, request)) is not None:
            return line
        if served(folder, raylet) >= MOST:
            raise OSError("there are too many environments beside this raylet")
        _clear(path)
        _fork_server(folder, path, request[1], raylet)
    return ask(path, request)


def _asked(path: str, request: Request, kind: str = WORKER, files: tuple[int, ...] = (0, 1, 2)) -> socket.socket | None:
    """Ask a server, or return None where there is none. Raises OSError if it must not fork, or does not answer."""
    if os.path.exists(path + UNFIT):
        raise OSError("libraries of this environment start threads, or load a device's driver, when they are imported")
    try:
        return ask(path, request, kind, files)
    except (FileNotFoundError, ConnectionRefusedError):
        return None


def locked(path: str) -> io.TextIOWrapper:
    """Lock the path of a server, until the result is closed. Raises OSError where another process has it for long."""
    lock = open(f"{path}.lock", "w")  # noqa: SIM115 - the caller closes it
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                lock.close()
                raise
            time.sleep(LOOK_S)
        else:
            return lock


def served(folder: str, raylet: int) -> int:
    """Return the number of servers and templates beside a raylet, without those that were killed."""
    start = os.fsencode(f" {folder}/{raylet}-")
    with open("/proc/net/unix", "rb") as sockets:
        # More than one has the same path: one listens, and each connection has one.
        return len({line.partition(start)[2] for line in sockets if start in line})


def _clear(path: str) -> None:
    """Remove the socket of a server that was killed, or that hangs."""
    try:  # noqa: SIM105 - contextlib takes 5 ms to import
        os.unlink(path)
    except FileNotFoundError:
        pass


def _fork_server(folder: str, path: str, env: dict[str, str], raylet: int) -> None:
    """Have the template of an environment fork a server for a job; the template is started if there is none."""
    common = {name: value for name, value in env.items() if name != JOB}
    template = socket_of(folder, common, raylet)

    def start(listener: socket.socket) -> None:
        _start(listener, template, common, raylet)

    with from_template(template, ([path], env), start, SERVER) as line:
        answer = first_byte(line, template)
        if not answer:
            raise ConnectionResetError("the template was killed")
        if answer != YES:
            raise OSError("the template forks no server")


def from_template(
    path: str,
    request: Request,
    start: Callable[[socket.socket], None],
    kind: str,
    files: tuple[int, ...] = (0, 1, 2),
) -> socket.socket:
    """Ask a template, which is started if there is none; return the connection. Raises OSError.

    Args:
        path: Where it listens.
        request: What it is to fork.
        start: Starts it; gets the socket on which it listens.
        kind: See `ask`.
        files: See `ask`.
    """
    if (line := _asked(path, request, kind, files)) is None:
        with locked(path):
            if (line := _asked(path, request, kind, files)) is None:
                _clear(path)
                with listening(path) as listener:
                    start(listener)
    # It imports without the lock: whoever needs the same one asks it, too.
    return line or ask(path, request, kind, files)


def first_byte(line: socket.socket, path: str) -> bytes:
    """Return the first byte that a server or template says. Raises OSError, and closes, if that takes too long."""
    try:
        return line.recv(1)
    except TimeoutError:
        line.close()
        # Connections to a stopped one succeed: only without its path will the next starter make another.
        if time.time() - os.stat(path).st_mtime >= IMPORT_S:
            _clear(path)
        raise


def listening(path: str) -> socket.socket:
    """Return the socket of a template that is about to be started: others may ask before it runs."""
    line = socket.socket(socket.AF_UNIX)
    if line.fileno() < 3:
        # This process has closed a standard file, and the template gets one of that number.
        line, low = socket.socket(fileno=fcntl.fcntl(line, fcntl.F_DUPFD_CLOEXEC, 3)), line
        low.close()
    line.bind(path)
    line.listen(1024)
    line.set_inheritable(True)
    return line


def words_of(line: socket.socket, path: str, first_s: float, raylet: int) -> list[str]:
    """Return the command of a template; `first_s`: seconds without a first server after which it ends."""
    program = f"{os.path.dirname(os.path.abspath(__file__))}/server.py"
    return [sys.executable, program, str(line.fileno()), path, str(first_s), str(raylet)]


def _start(line: socket.socket, path: str, env: dict[str, str], raylet: int) -> None:
    """Start a template that is no child of this process: Ray ends the descendants of a worker with it."""
    if (child := os.fork()) == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        try:
            os.execve(sys.executable, words_of(line, path, IDLE_S, raylet), env)  # noqa: S606 - no shell wanted
        finally:
            os._exit(1)
    os.waitpid(child, 0)


def run_forked(folder: str, request: Request) -> int | None:
    """Have a worker forked and wait for its end; return its exit code, or None where Ray is to start it itself.

    A server or worker that is killed before the worker has registered is replaced, at most TRIES times.
    """
    raylet = os.getppid()
    for _ in range(TRIES):
        try:
            line = reach(folder, request, raylet)
            answer = first_byte(line, socket_of(folder, request[1], raylet))
        except ConnectionError:  # the server, or its template, was killed
            continue
        except OSError:  # no room for a socket, or a server that does not answer in time
            return None
        with line:
            # A server may be killed between the fork and its answer: then the first word is the worker's.
            if answer in (YES, REGISTERED):
                is_registered, code = wait_for_end(line, is_registered=answer == REGISTERED)
                is_killed = code is None or code > SIGNALLED
                if is_registered or not is_killed or os.getppid() != raylet:
                    return 1 if code is None else code
    return None


def wait_for_end(line: socket.socket, *, is_registered: bool) -> tuple[bool, int | None]:
    """Wait for a worker's end; return whether it had registered, and its exit code: None where its server was killed.

    The worker holds the connection, too, so that it closes behind both of them.
    """
    line.settimeout(None)
    while True:
        try:
            word = line.recv(1)
        except OSError:
            word = b""
        if word != REGISTERED or is_registered:
            return is_registered, word[0] if word else None
        is_registered = True


def open_standard_files() -> None:
    """Open those that are closed, as of a raylet without stdin: a server would get the lock as one of them."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest free number


def main(folder: str, words: list[str]) -> None:
    """Have a worker forked, and end with its exit code; else become it, as Ray does."""
    open_standard_files()
    request = request_of(words, dict(os.environ), sys.executable)
    if request is not None and (code := run_forked(folder, request)) is not None:
        os._exit(code)
    os.execv(sys.executable, [sys.executable, *words])  # noqa: S606 - no shell wanted


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
