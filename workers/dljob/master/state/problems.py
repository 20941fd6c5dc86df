"""Problems that stand in a job's way now and are nobody's failure: a checkpoint that cannot be saved, a full volume."""

from __future__ import annotations

from dataclasses import dataclass

from dljob.telemetry import reasons
from dljob.telemetry.wording import moment

CLOCKS = frozenset((reasons.MACHINE_PAUSED, reasons.CLOCK_STEPPED))
PASSED = CLOCKS | {reasons.CHECKPOINT_DAMAGED, reasons.SHUTDOWN_FAILED}
"""Reasons of what is over when it is known: it does not colour the phase, and has no end. Lost steps and errors of
`shutdown` are shown to the end of the job, what clocks said for a time."""

COUNTED = PASSED | {reasons.ITEM_SET_ASIDE}
"""Reasons of which each report is about another event; of others it is the latest news of the same problem."""
FIRST_SUBJECTS, MAX_SUBJECT = 3, 60
"""Number of subjects of a counted problem that are remembered, and characters of each."""

SLOWNESS = frozenset(
    (
        *(reasons.CPU_THROTTLED, reasons.MACHINE_BUSY, reasons.MEMORY_EXCEEDED, reasons.MEMORY_GROWS),
        *(reasons.SLOW_CALLEE, reasons.SLOW_LOADER, reasons.SLOW_PEER),
    )
)
"""Reasons of slowness and of memory that runs out, which a watch reports; nothing is restarted for them."""


@dataclass(frozen=True, slots=True)
class StandingProblem:
    """A problem that stands; there is one for each reason and target."""

    reason: str
    target: str
    """Whom it concerns: a world that saves (`trainer` or `w/3`), or "job"."""
    message: str
    """The last report's."""
    since: float
    """Unix seconds at which it was first reported."""
    count: int = 1
    """Number of events, of a counted reason."""
    last_at: float = 0.0
    """Unix seconds of the last of these events."""
    first_subjects: tuple[str, ...] = ()
    """What the first of these events were about, such as keys of items."""

    @property
    def role(self) -> str:
        """The role that it concerns, or "job"."""
        return self.target.partition("/")[0]

    @property
    def description(self) -> str:
        """The last report, and of several events also how many there were and what the first were about."""
        if self.count == 1:
            return self.message
        others = ", ..." if self.count > len(self.first_subjects) else ""
        subjects = f" ({', '.join(self.first_subjects)}{others})" if self.first_subjects else ""
        return f"{self.count} times{subjects}, the last at {moment(self.last_at)}: {self.message}"
