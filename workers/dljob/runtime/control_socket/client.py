"""A command's end of the control socket."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dljob.errors import DeadlineError, UnreachableError
from dljob.linux.socket_peer import peer
from dljob.runtime.control_socket import location, messages

if TYPE_CHECKING:
    from dljob.master.state.views import Clue

REACH_S = 9.0
"""Seconds in which a command tries to reach a job, so that it ends within 10 s after its start."""
AWAY_S = 60.0
"""Seconds for later requests: PrimeMaster may need that long to restart on a busy machine."""
RETRY_S = 0.05
"""Seconds between attempts."""
LONGEST_S = 30.0
"""Seconds after which PrimeMaster answers a request that waits for news; the command then asks again."""


class Connection(Protocol):
    """A job, seen from outside, however it is reached."""

    @property
    def name(self) -> str:
        """The job's name."""
        ...

    def status(self, after_version: int = 0, timeout_s: float = 0.0) -> dict[str, Any]:
        """Return the status; with a timeout, once its version is greater than `after_version`."""
        ...

    def notes(self, after_seq: int = 0, timeout_s: float = 0.0) -> list[dict[str, Any]]:
        """Return the events with a number greater than `after_seq`; with a timeout, once there are some."""
        ...

    def command(self, kind: str, target: str = "job", *, by: str = "", id: str = "") -> None:  # noqa: A002
        """Send a command. It takes effect once, even if PrimeMaster dies meanwhile."""
        ...

    def learned(self, target: str, incarnation: int, clue: Clue) -> None:
        """Report evidence for the end of a rank's process."""
        ...

    def stacks(self, target: str = "job") -> dict[str, str]:
        """Return rank -> the stacks of its process as text."""
        ...

    def pids(self) -> dict[str, int]:
        """Return the processes as `master` and `<role>/<rank>` -> pid."""
        ...

    def wait(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Wait for the end; return the final status."""
        ...


class NoAnswerError(Exception):
    """The other end gives no answer now, for the reason in the message. Another try may succeed."""

    def __init__(self, message: str, *, is_sent: bool = False) -> None:
        """`is_sent`: the request was sent, so that the other end may still act on it."""
        super().__init__(message)
        self.is_sent = is_sent


class RequestChannel(Protocol):
    """A way for requests to reach a job."""

    def ask(self, request: bytes, seconds: float) -> bytes:
        """Return the answer to a request. Raises NoAnswerError without one within `seconds`."""
        ...


class SocketLine:
    """The control socket that `job.json` names. One connection per request, since PrimeMaster may restart."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Root, too: it could replace the socket anyway.
        self._owners = {0, folder.stat().st_uid}

    def ask(self, request: bytes, seconds: float) -> bytes:
        """Return the answer to a request; see `RequestChannel`."""
        try:
            entry = location.read(self._folder)
            place = location.socket_of(self._folder, entry)
        except (OSError, ValueError) as error:
            raise NoAnswerError(f"{self._folder / location.ENTRY} cannot be read: {error}") from None
        # Read anew for each request: a PrimeMaster that restarted may have bound another path.
        if not entry.get("socket"):
            raise NoAnswerError(str(entry.get("socket_trouble") or "PrimeMaster has not opened its control socket yet"))
        if place is None:
            raise NoAnswerError(f"{self._folder} is a copy: the job whose socket its job.json names runs elsewhere")
        path, end, is_sent = str(place), time.monotonic() + seconds, False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
                # One deadline for connecting and reading; never 0, which would mean not to wait.
                line.settimeout(max(0.01, end - time.monotonic()))
                line.connect(path)
                self._check_owner(path, line)
                with suppress(BrokenPipeError):  # the server may refuse before it reads; its answer gives the reason
                    line.sendall(request)
                is_sent = True
                parts: list[bytes] = []
                while not parts or not parts[-1].endswith(b"\n"):
                    line.settimeout(max(0.01, end - time.monotonic()))
                    part = line.recv(2**20)
                    if not part:
                        raise ConnectionResetError("the connection was closed")
                    parts.append(part)
                return b"".join(parts)
        except TimeoutError:
            raise NoAnswerError(f"PrimeMaster does not answer at {path}", is_sent=is_sent) from None
        except OSError as error:
            problem = error.strerror or error
            raise NoAnswerError(f"no process answers at {path}: {problem}", is_sent=is_sent) from None

    def _check_owner(self, path: str, line: socket.socket) -> None:
        pid, uid = peer(line)
        # The process at this path gets commands and answers for PrimeMaster: it must be the owner's, or root's.
        if uid not in self._owners:
            raise UnreachableError(
                f"{path} is held by process {pid} of user {uid}, not by the owner of the job",
                hint=f"end that process, or remove {path}; the job itself goes on",
            )


class LocalConnection:
    """A job, seen from another process of this machine: `JobConnection` without joining Ray.

    A request without an answer is repeated, since PrimeMaster may be restarting: the first for `REACH_S`, later ones
    for `AWAY_S`. Once the job has ended, the files in its folder answer.
    """

    def __init__(self, name: str, uid: str, folder: Path, line: RequestChannel, *, why_gone: Callable[[], str]) -> None:
        """`why_gone` returns why no process of the job can be alive any more; empty while one may be."""
        self._name = name
        self.uid = uid
        self.dir = folder
        self._line = line
        self._gone = why_gone
        self._reached = False

    @property
    def name(self) -> str:
        """The job's name."""
        return self._name

    def status(self, after_version: int = 0, timeout_s: float = 0.0, *, reach_s: float | None = None) -> dict[str, Any]:
        """Return the status; with a timeout, once its version is greater than `after_version`."""
        from dljob.runtime.journal.job_record import read_status

        answer = self._call("status", after_version, timeout_s, waits=timeout_s, reach_s=reach_s)
        return answer if answer is not None else read_status(self.dir)

    def notes(self, after_seq: int = 0, timeout_s: float = 0.0) -> list[dict[str, Any]]:
        """Return the events with a number greater than `after_seq`, also of an ended job; a timeout waits for some."""
        from dljob.runtime.journal.job_record import read_notes

        answer = self._call("notes", after_seq, timeout_s, waits=timeout_s)
        return answer if answer is not None else read_notes(self.dir, after_seq)

    def command(self, kind: str, target: str = "job", *, by: str = "", id: str = "") -> None:  # noqa: A002
        """Send a command. It takes effect once, even if PrimeMaster dies meanwhile; an ended job ignores it."""
        self._call("command", id or uuid.uuid4().hex, kind, target, by)

    def learned(self, target: str, incarnation: int, clue: Clue) -> None:
        """Report evidence for the end of a rank's process, before or after that end."""
        self._call("learned", target, incarnation, str(clue.source), clue.text)

    def stacks(self, target: str = "job") -> dict[str, str]:
        """Return rank -> the stacks of its process as text; nothing for an ended job.

        Raises:
            NotFoundError: There is no such target.
        """
        return self._call("stacks", target) or {}

    def pids(self) -> dict[str, int]:
        """Return the processes as `master` and `<role>/<rank>` -> pid; nothing for an ended job."""
        return self._call("pids") or {}

    def wait(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Wait for the end; return the final status. Raises DeadlineError when the job does not end in time."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            seconds_left = LONGEST_S if end is None else end - time.monotonic()
            if seconds_left <= 0:
                raise DeadlineError(f"job {self.name} was not over after {timeout_s:g} s")
            # In polls: PrimeMaster ends each one by itself, and a restart of it is noticed in between.
            if (status := self.final(min(seconds_left, LONGEST_S))) is not None:
                return status

    def final(self, timeout_s: float = 0.0) -> dict[str, Any] | None:
        """Return the final status; None while the job runs."""
        from dljob.runtime.journal.job_record import is_final, read_status

        answer = self._call("wait", timeout_s, waits=timeout_s)
        return read_status(self.dir) if answer is None and is_final(self.dir) else answer

    def _call(self, call: str, *args: object, waits: float = 0.0, reach_s: float | None = None) -> Any:
        """Return PrimeMaster's answer, through its restarts; None when the job has ended.

        Raises:
            UnreachableError: None came within `reach_s` (by default `REACH_S`, and `AWAY_S` after the first answer),
                beside the time that the call itself may wait.
        """
        from dljob.runtime.journal.job_record import is_final

        asked = messages.request(self.uid, call, args)
        begun = time.monotonic()
        # After a first answer the job is known to run: PrimeMaster may be restarting, which takes longer.
        patience = (AWAY_S if self._reached else REACH_S) if reach_s is None else reach_s
        end, is_sent = begun + min(waits, LONGEST_S) + patience, False
        while not is_final(self.dir):
            # A command's id makes it safe to send the same request again after a lost answer.
            try:
                answer = self._line.ask(asked, end - time.monotonic())
                self._reached = True
                return messages.result(answer)
            except NoAnswerError as error:
                problem, is_sent = str(error), is_sent or error.is_sent
            except (ValueError, RecursionError):
                problem = "the process at the control socket does not answer as PrimeMaster does"
            # The job may have ended between the question and now: then its files answer.
            if is_final(self.dir):
                break
            if gone_reason := self._gone():
                raise UnreachableError(gone_reason, hint=f"its journal and logs are in {self.dir}")
            if time.monotonic() + RETRY_S >= end:
                took, hint = time.monotonic() - begun, f"its last status, journal and logs are in {self.dir}"
                if call == "command" and is_sent:
                    problem = f"{problem}; the order stands"
                    hint = f"a PrimeMaster that goes on carries it out: see dljob status {self.uid[:8]}; {hint}"
                raise UnreachableError(
                    f"job {self.name} cannot be reached; tried for {took:.0f} s: {problem}", hint=hint
                )
            time.sleep(RETRY_S)
        return None
