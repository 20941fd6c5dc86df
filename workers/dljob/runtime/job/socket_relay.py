"""A child process that joins a job's Ray, and answers requests in the same way as PrimeMaster's control socket.

`ray.init` may hang in C++, where neither a deadline nor Ctrl-C reaches it. A command therefore never joins a Ray
itself: it starts this child, waits for it with a deadline, and kills it.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from dljob.errors import DLJobError, UnreachableError
from dljob.runtime.control_socket import messages
from dljob.runtime.control_socket.client import NoAnswerError

if TYPE_CHECKING:
    from dljob.runtime.job.launch import JobConnection

JOIN_S = 7.5
"""Seconds for the child to join Ray and to find the job."""
READY = "ready"
VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH")
"""Variables that the child takes from `job.json`: none that could make it run other code."""


class Relay:
    """A context: on entry a child joins the Ray at `address`, on exit it is killed.

    It is a `RequestChannel` to the job.
    """

    def __init__(self, address: str, uid: str, environment: Mapping[str, str], *, tried: str = "") -> None:
        """`tried` lists the other ways to the job that failed before, for the error."""
        self._address = address
        self._uid = uid
        self._environment = {name: value for name, value in environment.items() if name in VARIABLES}
        self._tried = f"; other ways failed before: {tried}" if tried else ""
        self._child: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._output_fd = -1

    def __enter__(self) -> Self:
        """Start the child and wait until it has found the job.

        Raises:
            UnreachableError: Ray cannot be joined within `JOIN_S`, or does not know the job; with the last line of
                Ray's output.
        """
        try:
            self._start()
            messages.result(self._answer(time.monotonic() + JOIN_S))
        except (NoAnswerError, ValueError) as error:
            raise UnreachableError(
                f"the Ray at {self._address} cannot be joined within {JOIN_S:g} s: {error}"
                f"{self._last_output()}{self._tried}",
                hint="is the address reachable from here, and its token set? `ray status --address` asks Ray itself",
            ) from None
        except UnreachableError as error:
            raise UnreachableError(f"{error.message}{self._tried}", hint=error.hint) from None
        finally:  # __exit__ is not called when __enter__ raises, also by Ctrl-C
            if sys.exc_info()[0] is not None:
                self.close()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Kill the child."""
        self.close()

    def _start(self) -> None:
        # A memfd takes Ray's output: a pipe that nobody empties would block the child.
        parent_end, child_end = socket.socketpair()
        self._line, self._output_fd = parent_end, os.memfd_create("dljob-relay")
        with child_end:
            self._child = subprocess.Popen(
                # -P: no file of the current folder may stand in for a module.
                [sys.executable, "-P", "-m", __name__, str(child_end.fileno()), self._address, self._uid],
                stdin=subprocess.DEVNULL,
                stdout=self._output_fd,
                stderr=self._output_fd,
                pass_fds=[child_end.fileno()],
                # Ctrl-C reaches the command alone, which then decides about the child.
                start_new_session=True,
                env=self._env(),
            )

    def _env(self) -> dict[str, str]:
        env = {**os.environ, **self._environment}
        if "RAY_AUTH_TOKEN_PATH" in self._environment:
            env.pop("RAY_AUTH_TOKEN", None)  # Ray prefers a token to its file
        return env

    def ask(self, request: bytes, seconds: float) -> bytes:
        """Return the answer to a request; see `RequestChannel`.

        A request without an answer in time closes the relay: a late answer would be taken for that of the next request.
        """
        line = self._line
        if line is None:
            raise NoAnswerError("the process that joined Ray is gone")
        try:
            line.sendall(request)
            return self._answer(time.monotonic() + seconds)
        except (OSError, NoAnswerError) as error:
            self.close()
            raise NoAnswerError(f"{error}{self._last_output()}", is_sent=True) from None

    def _answer(self, end: float) -> bytes:
        line = self._line
        parts: list[bytes] = []
        while line is not None and (not parts or not parts[-1].endswith(b"\n")):
            # One deadline for all parts of an answer; never 0, which would mean not to wait at all.
            line.settimeout(max(0.01, end - time.monotonic()))
            try:
                part = line.recv(2**20)
            except TimeoutError:
                raise NoAnswerError("no answer") from None
            if not part:
                raise NoAnswerError("the process that joins Ray ended")
            parts.append(part)
        return b"".join(parts)

    def _last_output(self) -> str:
        """Return the last line of the child's output, which is mostly Ray's."""
        if self._output_fd < 0:
            return ""
        # By offset: the child goes on writing at the position that it shares with this process.
        text = os.pread(self._output_fd, 2**16, max(0, os.fstat(self._output_fd).st_size - 2**16)).decode(
            errors="replace"
        )
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return f"; Ray said: {lines[-1][-300:]}" if lines else ""

    def close(self) -> None:
        """Kill the child, whatever it does; idempotent."""
        if self._child is not None:
            # SIGKILL: `ray.init` may hang in C++, where no other signal is handled.
            self._child.kill()
            self._child.wait()
            self._child = None
        if self._line is not None:
            self._line.close()
            self._line = None


def main(descriptor: int, address: str, uid: str) -> None:
    """Join Ray, report whether that worked, then answer requests until the command closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=descriptor) as line:
        # Before Ray is joined: from then on the main thread may hang.
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
        try:
            job = _join(address, uid)
        except Exception as error:  # noqa: BLE001 - sent to the command, which prints it and ends
            line.sendall(messages.refusal(error))
            return
        line.sendall(messages.answer(READY))
        with line.makefile("rb") as requests:
            for request in requests:
                line.sendall(_reply(job, request))


def _end_with(parent: int) -> None:
    """Exit when the command does, even while Ray's C++ code holds the main thread."""
    with suppress(ProcessLookupError):
        select.select([os.pidfd_open(parent)], [], [])
    os._exit(0)


def _join(address: str, uid: str) -> JobConnection:
    from dljob.errors import NotFoundError
    from dljob.runtime.backend.connect import connect
    from dljob.runtime.job.launch import attach

    connect(address)
    try:
        return attach(uid)
    except NotFoundError:
        raise UnreachableError(f"the Ray at {address} does not know job {uid[:8]}") from None


def _reply(job: JobConnection, request: bytes) -> bytes:
    try:
        call, args = messages.parse(request, job.uid)
        return messages.answer(_call(job, call, args))
    except DLJobError as error:
        return messages.refusal(error)


def _call(job: JobConnection, call: str, args: list[Any]) -> Any:
    if call == "command":
        order, kind, target, by = args
        return job.command(kind, target, by=by, id=order)
    if call == "learned":
        from dljob.master.state.views import Clue

        target, incarnation, source, text = args
        return job.learned(target, incarnation, Clue(source, text))
    if call == "wait":
        return _final(job, args[0])
    return getattr(job, call)(*args)


def _final(job: JobConnection, timeout_s: float) -> dict[str, Any] | None:
    from dljob.errors import DeadlineError

    try:
        return job.wait(timeout_s) if timeout_s else job.final()
    except DeadlineError:
        return None


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:4])
