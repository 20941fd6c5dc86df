"""The tree of dljob's exceptions, and the exit codes of its commands.

    DLJobError
    +-- SpecError            the spec is wrong; carries all problems at once       exit 2
    +-- UsageError           a command or call is used wrongly                      exit 2
    +-- PlacementError       the plan cannot fit; names the missing resources       exit 2
    +-- NotFoundError        no such job, role or rank                              exit 3
    +-- UnreachableError     Ray cannot be reached, refuses access, or went away    exit 4
    +-- DeadlineError        an awaited event did not happen in time                exit 5
    +-- JobFailedError       the job ended without success                          exit 1
        +-- JobStoppedError  a person or a program stopped the job                  exit 6
    +-- JournalError         a journal that must not be replayed (offset, why)      exit 1
    +-- CheckpointError      a checkpoint cannot be saved or restored               exit 1
    +-- CollectiveError      a group of collectives, or its backend, cannot be used
        +-- CollectiveAbortedError   a member was lost; names it, and the group's epoch
    +-- QueueClosedError     a DataQueue is closed: it accepts no item, or has none left
    +-- CallError            a call to another role failed
        +-- CallTimeoutError     no answer within the deadline
        +-- PeerLostError        the callee died with the call, or its answer was lost; it may have run
        +-- RemoteError          the callee's code raised; carries its traceback

A message says what happened, to whom, why, and what to do next.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from textwrap import indent
from typing import Any, ClassVar


class ExitCode(IntEnum):
    """Exit codes of `dljob`."""

    OK = 0
    JOB_FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4
    TIMED_OUT = 5
    STOPPED = 6
    INTERRUPTED = 130


def exit_code(phase: str) -> ExitCode:
    """Return the exit code of a command whose job ended in a phase."""
    return {"Succeeded": ExitCode.OK, "Stopped": ExitCode.STOPPED}.get(phase, ExitCode.JOB_FAILED)


class DLJobError(Exception):
    """The root of the tree; `hint` names the next step, often a command."""

    exit_code: ClassVar[ExitCode] = ExitCode.JOB_FAILED

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # pickle would call the class with the message alone, and classes of this tree ask for more.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(cls: type[DLJobError], args: tuple[Any, ...], attributes: dict[str, Any]) -> DLJobError:
    """Return a pickled error."""
    error = cls.__new__(cls, *args)
    error.__dict__.update(attributes)
    return error


class RenamedWarning(FutureWarning):
    """A user's file or program has an old name, which is accepted for one minor version; `dljob` prints a line."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of a spec: its place, and what to write instead.

    `line` and `column` count from 1; they are 0 when no place in a file is known.
    """

    path: str
    message: str
    file: str = ""
    line: int = 0
    column: int = 0
    hint: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        place_prefix = f"{place}: " if place else ""
        tail = f" ({self.hint})" if self.hint else ""
        return (
            f"{place_prefix}{self.path}: {self.message}{tail}" if self.path else f"{place_prefix}{self.message}{tail}"
        )


class SpecError(DLJobError):
    """A spec with at least one fault; `problems` holds all of them, in file order."""

    exit_code = ExitCode.USAGE

    def __init__(self, problems: tuple[Problem, ...], *, hint: str = "") -> None:
        super().__init__("\n".join(str(p) for p in problems), hint=hint)
        self.problems = problems


class UsageError(DLJobError):
    """A command or a builder call used wrongly."""

    exit_code = ExitCode.USAGE


class PlacementError(DLJobError):
    """A plan that cannot fit on the machines; says what is missing and by how much, and `loc` where the spec asks it.

    `loc` is a path such as ("spec", "roles", 0).
    """

    exit_code = ExitCode.USAGE

    def __init__(self, message: str, *, hint: str = "", loc: tuple[str | int, ...] = ("spec",)) -> None:
        super().__init__(message, hint=hint)
        self.loc = loc


class NotFoundError(DLJobError):
    """No job, role or rank of that name, or the job has ended and takes no orders."""

    exit_code = ExitCode.NOT_FOUND


class UnreachableError(DLJobError):
    """Ray cannot be reached, refuses access, or went away."""

    exit_code = ExitCode.UNREACHABLE


class DeadlineError(DLJobError):
    """An awaited event did not happen within its deadline."""

    exit_code = ExitCode.TIMED_OUT


class JobFailedError(DLJobError):
    """The job ended without success; the message is its first cause."""


class JobStoppedError(JobFailedError):
    """A person or a program stopped the job before its end."""

    exit_code = ExitCode.STOPPED


class JournalError(DLJobError):
    """A journal that must not be replayed; `offset` is the byte where it goes wrong."""

    def __init__(self, message: str, *, offset: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.offset = offset


class CheckpointError(DLJobError):
    """A checkpoint cannot be saved, or the one to restore is gone or does not fit."""


class CollectiveError(DLJobError):
    """A group of collectives, or its backend, cannot be used."""


class CollectiveAbortedError(CollectiveError):
    """A group lost a member, and its pending operations failed; the tensors of these have undefined contents.

    `group` and `epoch` identify the group, `lost` names the lost members ("rollout/1") where they are known. `ended`
    is true where their code ended with success, so that the group will not be formed again.
    """

    def __init__(
        self, message: str, *, group: str, epoch: int, lost: tuple[str, ...] = (), ended: bool = False, hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.group = group
        self.epoch = epoch
        self.lost = lost
        self.ended = ended


class QueueClosedError(DLJobError):
    """A DataQueue is closed: it accepts no item, or all its items have been handed out."""


class CallError(DLJobError):
    """A call to another role failed; `role` and `rank` name the callee."""

    def __init__(self, message: str, *, role: str, rank: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.role = role
        self.rank = rank


class JobEndingError(CallError):
    """The callee will not be back, as the job is ending. Code that it ends has not failed, and leaves no traceback."""


class CallTimeoutError(CallError):
    """No answer within the deadline.

    `origin` says where the callee was when its caller gave up; None where it did not say.
    """

    exit_code = ExitCode.TIMED_OUT
    origin: ErrorOrigin | None = None


class PeerLostError(CallError):
    """The callee's process died during the call, or its answer was lost with a node: it may have run, or not.

    `incarnation` is that of the callee, 0 where it is not known. `died` is false where its process is not known to have
    died with the call in it.
    """

    def __init__(
        self, message: str, *, role: str, rank: int, incarnation: int = 0, died: bool = True, hint: str = ""
    ) -> None:
        super().__init__(message, role=role, rank=rank, hint=hint)
        self.incarnation = incarnation
        self.died = died


@dataclass(frozen=True, slots=True)
class ErrorOrigin:
    """The rank whose code raised an error that reached others by calls, and what it raised first."""

    rank: str
    """As users write it: `reward/0`."""
    incarnation: int
    error_type: str
    message: str
    frame: str
    """Innermost line of the user's code there, "file.py:12 in f"; empty: none is known."""


class RemoteError(CallError):
    """The callee's code raised; `remote_traceback` is its traceback as text, which `str` has below the message.

    `origin` says where the error began: in the callee, or in a rank that the callee called. It is None where no code of
    a callee raised, as for a method that does not exist.
    """

    def __init__(
        self, message: str, *, role: str, rank: int, remote_traceback: str, origin: ErrorOrigin | None = None
    ) -> None:
        super().__init__(message, role=role, rank=rank)
        self.remote_traceback = remote_traceback
        self.origin = origin

    def __str__(self) -> str:
        if not self.remote_traceback:
            return super().__str__()
        return f"{super().__str__()}\n  in {self.role}/{self.rank}:\n{indent(self.remote_traceback.rstrip(), '    ')}"


_EXTRAS = {
    "ray": ("Ray", "runtime"),
    "torch": ("PyTorch", "torch"),
    "kubernetes": ("the Kubernetes client", "kubernetes"),
    "aiohttp": ("aiohttp", "kubernetes"),
    "httpx": ("httpx", "http"),
    "yaml": ("PyYAML", "kubernetes"),
    "kopf": ("kopf", "operator"),
    "dljob_operator": ("the operator", "operator"),
    "prometheus_client": ("the Prometheus client", "operator"),
    "yr": ("openYuanrong", "yr"),
    "kafka": ("kafka-python", "kafka"),
}
"""Module -> the name of its product, and the extra of dljob that installs it."""


def not_installed(error: ModuleNotFoundError, extra: str = "") -> UsageError | None:
    """Return an error with the command that installs a missing package; None where no extra of dljob installs it.

    `extra` is the extra that the program needs; it takes the place of the package's own.
    """
    extra_of_package = _EXTRAS.get((error.name or "").partition(".")[0])
    if extra_of_package is None:
        return None
    package_text, own_extra = extra_of_package
    return UsageError(
        f"{package_text} is not installed here, and this needs it", hint=f"pip install 'dljob[{extra or own_extra}]'"
    )
