"""Problems that stand in a job's way now and are nobody's failure: a checkpoint that cannot be saved, a full volume."""

from __future__ import annotations

from dataclasses import dataclass

from dljob.telemetry import reasons

CLOCKS = frozenset((reasons.MACHINE_PAUSED, reasons.CLOCK_STEPPED))
PASSED = CLOCKS | {reasons.CHECKPOINT_DAMAGED, reasons.SHUTDOWN_FAILED}
"""Reasons of what is over when it is known: it does not colour the phase, and has no end. Lost steps and errors of
`shutdown` are shown to the end of the job, what clocks said for a time."""

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
    since: float
    """Unix seconds at which it was first reported."""

    @property
    def role(self) -> str:
        """The role that it concerns, or "job"."""
        return self.target.partition("/")[0]
