"""Results of a policy: the actions of one pass, or a change of the status that later passes act on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from dljob.reconcile.state import reasons
from dljob.reconcile.state.model import Action, Event, Object
from dljob.spec.chosen_resources import ChosenResource

Ending: TypeAlias = Literal["Complete", "Failed", "Stopped"]
"""The terminal conditions. At the end of a job exactly one of them is True."""
ENDINGS: tuple[Ending, ...] = ("Complete", "Failed", "Stopped")


def ending(reason: str) -> Ending:
    """Return the terminal condition for a reason to end a job: a user's stop is Stopped, a deadline is a failure."""
    return "Stopped" if reason == reasons.STOPPED else "Failed"


@dataclass(frozen=True, slots=True)
class Said:
    """A condition as this pass sees it."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class JobEnd:
    """The end of the job."""

    condition: Ending
    """The terminal condition that becomes True."""
    reason: str
    message: str
    at: float
    """When the job ended, in unix seconds."""
    commands: tuple[Object, ...] = ()
    """The order to resume that came too early, for status.lastCommands."""


@dataclass(frozen=True, slots=True)
class NewAttempt:
    """The end of this attempt and the start of the next one."""

    reason: str
    message: str
    counted: bool = True
    """Whether the new attempt uses up one of faultTolerance.maxClusterRestarts."""
    fault: bool = True
    """Whether something failed. False: somebody wanted the change, such as a suspension or an edit of the spec."""
    commands: tuple[Object, ...] = ()
    """The command of the user that led to it, for status.lastCommands."""


@dataclass(frozen=True, slots=True)
class SubmitOrder:
    """The order to submit the attempt. It is written to the status before the launcher is posted."""


@dataclass(frozen=True, slots=True)
class Intent:
    """The decision to stop the job. It is written to the status before PrimeMaster gets the order."""

    reason: str
    message: str
    commands: tuple[Object, ...] = ()
    """The command of the user that led to the stop, for status.lastCommands."""

    @property
    def condition(self) -> Ending:
        """The terminal condition that the stop leads to. It is False while the job stops."""
        return ending(self.reason)


@dataclass(frozen=True, slots=True)
class Halt:
    """A stage of a suspension, or its end: the reason that the condition Suspended gets."""

    reason: Literal["Suspending", "JobSuspended", "JobResumed"]
    message: str


@dataclass(frozen=True, slots=True)
class Noted:
    """Commands that are settled: no later pass looks at them again."""

    commands: tuple[Object, ...]


@dataclass(frozen=True, slots=True)
class ResourceChoice:
    """The resources that were chosen for the attempt, which is made with them."""

    resources: tuple[ChosenResource, ...]
    shape: str
    """The digest of what must be equal for the records of this job to count for another."""


Change: TypeAlias = JobEnd | NewAttempt | SubmitOrder | Intent | Halt | Noted | ResourceChoice


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """The decision of a policy for this pass."""

    reason: str
    actions: tuple[Action, ...] = ()
    change: Change | None = None
    """The change of the status. Actions that follow from it are taken in a later pass, so that a crash cannot lose it.
    """
    events: tuple[Event, ...] = ()
    requeue: float | None = None
    """Seconds after which the policy must be asked again."""
    postponed: int = 0
    """Actions of the same kind that exceed the limit of one pass."""
    written_first: bool = False
    """Whether the status is written before the actions."""
