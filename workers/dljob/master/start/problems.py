"""Problems that stand: recorded while they do, and noted once when they begin and once when they are over."""

from __future__ import annotations

from dljob.master.state.events import ProblemReported
from dljob.master.state.evolve import evolve
from dljob.master.state.problems import COUNTED, FIRST_SUBJECTS, MAX_SUBJECT, PASSED, StandingProblem
from dljob.master.state.transaction import StateTransaction
from dljob.telemetry import reasons
from dljob.telemetry.wording import seconds


def report_problem(tx: StateTransaction, event: ProblemReported) -> None:
    """Record a problem, or its end where the event has no message."""
    if not event.message:
        end_problem(tx, event.reason, event.target)
        return
    problem = StandingProblem(event.reason, event.target, event.message, tx.now)
    # A full volume meets all ranks of a role at once: one of them speaks for the others.
    if event.reason in COUNTED or not any(_are_alike(standing, problem) for standing in tx.problems):
        tx.note(event.reason, event.target, event.message)
    record_problem(tx, problem)


def record_problem(tx: StateTransaction, problem: StandingProblem, subject: str = "") -> None:
    """Record a problem that is noted elsewhere; one that stands already keeps its beginning, and is counted.

    `subject`: what this event is about, if the target does not say it.
    """
    known = _find(tx, problem.reason, problem.target)
    if problem.reason in COUNTED:
        subjects = (*(known.first_subjects if known else ()), *([subject[:MAX_SUBJECT]] if subject else []))
        problem = evolve(problem, last_at=tx.now, first_subjects=subjects[:FIRST_SUBJECTS])
        problem = evolve(problem, count=known.count + 1) if known else problem
    tx.problems = (*_others_than(tx, problem), evolve(problem, since=known.since) if known else problem)


def end_problem(tx: StateTransaction, reason: str, target: str) -> None:
    """Forget a problem that is over; unknown ones are ignored."""
    problem = _find(tx, reason, target)
    if problem is None:
        return
    tx.problems = _others_than(tx, problem)
    if problem.reason not in PASSED and not any(_are_alike(standing, problem) for standing in tx.problems):
        duration_s = tx.now - problem.since
        message = f"{problem.reason} is over after {seconds(duration_s)}"
        tx.note(reasons.PROBLEM_OVER, problem.target, message, seconds=duration_s)


def _find(tx: StateTransaction, reason: str, target: str) -> StandingProblem | None:
    return next((problem for problem in tx.problems if (problem.reason, problem.target) == (reason, target)), None)


def _others_than(tx: StateTransaction, problem: StandingProblem) -> tuple[StandingProblem, ...]:
    key = problem.reason, problem.target
    return tuple(standing for standing in tx.problems if (standing.reason, standing.target) != key)


def _are_alike(first: StandingProblem, second: StandingProblem) -> bool:
    return (first.reason, first.role) == (second.reason, second.role)
