"""What a policy decides: actions of one pass, or a change of the status that later passes act on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from dljob.reconcile.state import reasons
from dljob.reconcile.state.model import Action, Event, Object

Ending: TypeAlias = Literal["Complete", "Failed", "Stopped"]
"""The terminal conditions, of which exactly one is True in the end."""
ENDINGS: tuple[Ending, ...] = ("Complete", "Failed", "Stopped")


def ending(reason: str) -> Ending:
    """The terminal condition of a job that was ended for this reason: a deadline is a failure, an order is none."""
    return "Stopped" if reason == reasons.STOPPED else "Failed"


@dataclass(frozen=True, slots=True)
class Said:
    """A condition as it is now."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class JobEnd:
    """The job is over."""

    condition: Ending
    """The terminal condition that becomes True."""
    reason: str
    message: str
    at: float
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class NewAttempt:
    """This attempt is lost; the next one begins."""

    reason: str
    message: str
    counted: bool = True
    """Whether it uses up one of maxClusterRestarts."""
    fault: bool = True
    """Whether something failed; else somebody wants it otherwise."""


@dataclass(frozen=True, slots=True)
class SubmitOrder:
    """The attempt is to be submitted."""


@dataclass(frozen=True, slots=True)
class Intent:
    """The job is to be stopped, for this reason."""

    reason: str
    message: str
    commands: tuple[Object, ...] = ()
    """The command that says so."""

    @property
    def condition(self) -> Ending:
        """The terminal condition that the stop leads to, False until then."""
        return ending(self.reason)


@dataclass(frozen=True, slots=True)
class Halt:
    """How far the suspension of the job is now."""

    reason: Literal["Suspending", "JobSuspended", "JobResumed"]
    message: str


@dataclass(frozen=True, slots=True)
class Noted:
    """Commands that are settled, and need not be looked at again."""

    commands: tuple[Object, ...]


Change: TypeAlias = JobEnd | NewAttempt | SubmitOrder | Intent | Halt | Noted


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """What a policy wants of this pass."""

    reason: str
    actions: tuple[Action, ...] = ()
    change: Change | None = None
    """Written to the status; what follows from it is done in a later pass."""
    events: tuple[Event, ...] = ()
    requeue: float | None = None
    """Seconds after which it wants to be asked again."""
    left: int = 0
    """Actions of the same kind that there was no room for in this pass."""
    written_first: bool = False
    """Whether the status is written before the actions."""
