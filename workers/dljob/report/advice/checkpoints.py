"""Advice on how often to save: Young's and Daly's interval from measured failures and save times. No I/O.

J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974; J. T. Daly, A higher
order estimate of the optimum checkpoint interval for restart dumps, Future Generation Computer Systems 22, 2006.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from dljob.report.advice.job_use import JobUse, RoleUse
from dljob.report.advice.proposals import LEAST_POINTS, Advice, Gain, Proposal
from dljob.report.advice.values import mapping
from dljob.telemetry.wording import counted, seconds

FAILURES = 3
"""Failures from which a mean time between them is told."""
SAVES = 10
"""Saves from which their time is told."""


class Intervals(NamedTuple):
    """The saves and failures of a role, in seconds of productive time of one rank."""

    save_s: float
    between_failures_s: float
    now_s: float
    best_s: float

    def cost(self, interval_s: float) -> float:
        """Return the share of time that saves take, and that is repeated after failures: half an interval each."""
        return self.save_s / interval_s + interval_s / (2 * self.between_failures_s)


def daly(save_s: float, between_failures_s: float) -> float:
    """Return the best time between two saves."""
    if save_s >= 2 * between_failures_s:
        return between_failures_s
    part = save_s / (2 * between_failures_s)
    return math.sqrt(2 * save_s * between_failures_s) * (1 + math.sqrt(part) / 3 + part / 9) - save_s


def advise(uses: Sequence[JobUse]) -> Advice:
    """Return advice on the saves of each role that saves."""
    advice = Advice()
    saving = [name for name in uses[-1].roles if any(_saves(use.roles.get(name)) for use in uses)]
    if not saving:
        return Advice.no("checkpoints", "no save was recorded")
    for name in saving:
        advice += _role(name, uses)
    return advice


def _saves(use: RoleUse | None) -> int:
    return use.saves.count if use is not None and use.saves is not None else 0


def _role(name: str, uses: Sequence[JobUse]) -> Advice:
    subject = f"roles.{name}: interval of checkpoint.save()"
    known = [use for use in uses if use.journal and _saves(use.roles.get(name))]
    if not known:
        return Advice.no(subject, "the failures are not known: the folders have no journal that can be read")
    role_uses = [use.roles[name] for use in known]
    saves, failures = sum(_saves(use) for use in role_uses), sum(use.failures for use in role_uses)
    if saves < SAVES:
        return Advice.no(subject, f"too little history: {counted(saves, 'save')}, wanted are {SAVES}")
    if failures < FAILURES:
        return Advice.no(subject, f"too little history: {counted(failures, 'failure')}, wanted are {FAILURES}")
    # Of one rank: all of a role save together, and are lost together.
    time = sum((use.productive_s + use.recompute_s) / use.ranks for use in role_uses)
    save = sum(use.saves.seconds for use in role_uses if use.saves) / saves
    if not time or not save:
        return Advice.no(subject, "a save took no time that could be measured: save as often as you like")
    intervals = Intervals(save, time / failures, time / saves, daly(save, time / failures))
    repeated = sum(use.recompute_s / use.ranks for use in role_uses) / time
    return _propose_interval(subject, intervals, _step(role_uses), (saves, failures, repeated), uses[-1])


def _step(role_uses: Sequence[RoleUse]) -> float:
    """Return the seconds of a step; 0: the ranks told none."""
    steps = sum(use.steps for use in role_uses)
    return sum(use.productive_s / use.ranks for use in role_uses) / steps if steps else 0.0


def _propose_interval(
    subject: str, intervals: Intervals, step_s: float, measured: tuple[int, int, float], newest: JobUse
) -> Advice:
    saves, failures, repeated = measured
    before, after = intervals.cost(intervals.now_s), intervals.cost(intervals.best_s)
    share = newest.goodput or 1.0
    gain = (before - after) * share
    # The number of failures is as unsure as its root, on both sides; and what was repeated is measured, too.
    rate = 1 / math.sqrt(failures)
    unsure = abs(intervals.now_s - intervals.best_s) / (2 * intervals.between_failures_s) * rate * share
    off = abs(intervals.now_s / (2 * intervals.between_failures_s) - repeated) * share if repeated else 0.0
    measured_text = (
        f"{counted(saves, 'save')} of {_span(intervals.save_s)} each, every {_span(intervals.now_s)}; a failure every "
        f"{_span(intervals.between_failures_s)} ({failures}); {repeated:.1%} of the time repeated steps"
    )
    if gain < max(LEAST_POINTS, unsure + off):
        more = "" if gain < LEAST_POINTS else f", which is within its uncertainty of {100 * (unsure + off):.1f}"
        return Advice.no(
            subject, f"{measured_text}: the best interval would bring {max(0.0, 100 * gain):.1f} points{more}"
        )
    now, best = _in_steps(intervals.now_s, step_s), _in_steps(intervals.best_s, step_s)
    cut = mapping(newest.spec.get("checkpoint")).get("everySteps")
    gained = Gain("goodput", gain, unsure + off)
    reason = f"{measured_text}; Daly's interval"
    if isinstance(cut, int) and step_s:
        steps = max(1, round(cut * intervals.best_s / intervals.now_s))
        field = ("checkpoint", "everySteps")
        return Advice((Proposal(field, "checkpoint.everySteps", str(cut), str(steps), steps, reason, gained),))
    return Advice((Proposal((), subject, now, best, None, f"{reason}; it is in the code of the job", gained),))


def _in_steps(interval_s: float, step_s: float) -> str:
    if not step_s:
        return _span(interval_s)
    return f"{counted(max(1, round(interval_s / step_s)), 'step')}, {_span(interval_s)}"


def _span(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 0.1 else f"{value:.2g} s" if value < 10 else seconds(value)
