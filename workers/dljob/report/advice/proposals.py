"""What advice consists of: proposals, and what nothing can be said about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LEAST = 0.1
"""Least share of a resource that is worth a proposal."""
LEAST_POINTS = 0.005
"""Least gain in goodput, as a share of 1."""


@dataclass(frozen=True, slots=True)
class Gain:
    """What a proposal is predicted to bring."""

    of: str
    """`share` is one of a resource (`memory`, `cpu`, `ranks`), of the time (`goodput`), or of a caller's (`work`)."""
    share: float
    uncertainty: float


@dataclass(frozen=True, slots=True)
class Proposal:
    """A value to change, with its reason and the numbers that it stands on."""

    field: tuple[str, ...]
    """Names from `spec` on; behind `roles` stands the name of the role. Empty: no field has it."""
    subject: str
    """The field, or the place in the code."""
    now: str
    proposed: str
    value: str | int | None
    """The value for the file; None: it is not in the file."""
    reason: str
    gain: Gain

    def data(self) -> dict[str, Any]:
        """Return it as data for JSON."""
        return {
            "field": self.subject if self.field else None,
            "what": self.subject,
            "now": self.now,
            "proposed": self.proposed,
            "why": self.reason,
            "gain": {
                "of": self.gain.of,
                "share": round(self.gain.share, 4),
                "uncertainty": round(self.gain.uncertainty, 4),
            },
        }


@dataclass(frozen=True, slots=True)
class NoAdvice:
    """Something about which nothing is proposed, and why."""

    subject: str
    reason: str


@dataclass(frozen=True, slots=True)
class Advice:
    """All that is said about a job."""

    proposals: tuple[Proposal, ...] = ()
    none: tuple[NoAdvice, ...] = ()
    slowness: tuple[str, ...] = ()
    """What slowed the last run down, a line each."""

    def __add__(self, added: Advice) -> Advice:
        """Return both together."""
        return Advice(self.proposals + added.proposals, self.none + added.none, self.slowness + added.slowness)

    @classmethod
    def no(cls, subject: str, reason: str) -> Advice:
        """Return advice that says only why there is none."""
        return cls(none=(NoAdvice(subject, reason),))
