"""The count of a probe's answers: pure."""

from __future__ import annotations

from dataclasses import dataclass

from dljob.plan.serving import ProbePlan

FIRST_PAUSE_S = 0.1
"""Seconds between the first two probes; each pause until the first success is twice as long, up to the period."""


@dataclass(frozen=True, slots=True)
class Tally:
    """The answers of one probe so far. `verdict`: what they say, None before there was enough of them."""

    verdict: bool | None = None
    successes: int = 0
    failures: int = 0
    tries: int = 0
    ever: bool = False
    """Whether it ever succeeded."""

    def counted(self, plan: ProbePlan, *, ok: bool) -> Tally:
        """Count one more answer."""
        successes, failures = (self.successes + 1, 0) if ok else (0, self.failures + 1)
        verdict = self.verdict
        if successes >= plan.successes:
            verdict = True
        elif failures >= plan.failures:
            verdict = False
        return Tally(verdict, successes, failures, self.tries + 1, self.ever or ok)

    def pause_s(self, plan: ProbePlan) -> float:
        """Return the seconds to the next probe."""
        if self.ever:
            return plan.period_s
        return min(float(plan.period_s), FIRST_PAUSE_S * 2 ** min(self.tries - 1, 16))
