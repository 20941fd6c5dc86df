"""Budgets and backoff: counts of failures and restarts within the spec's window, by key.

The keys "<role>" and "job" count restarts against their budgets, "master" counts restarts of PrimeMaster, "rule:<name>"
counts the attempts of a rule, and "fail:<role>" counts failures in a row, for the backoff; "node:<id>" and
"domain:<value>" count failures of a node, and failed nodes of a failure domain. No role may be called job or master, so
the keys cannot collide.
"""

from __future__ import annotations

from collections.abc import Iterable

from dljob.master.state import limits
from dljob.master.state.state import BudgetMark
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import Level

JOB_BUDGET_KEY = "job"
"""Key of the restarts that the budget of the whole job pays."""
MASTER_BUDGET_KEY = "master"
NODE_PREFIX, DOMAIN_PREFIX = "node:", "domain:"


def recent_marks(tx: StateTransaction, key: str) -> tuple[BudgetMark, ...]:
    """Return the failures or restarts that were counted under a key within the spec's window."""
    window_start = tx.now - tx.job.fault_tolerance.window_seconds
    return tuple(mark for mark in tx.marks.get(key, ()) if mark.at > window_start)


def backoff_key(role: str) -> str:
    """Return the key under which failures of a role are counted for its backoff."""
    return f"fail:{role}"


def add_mark(tx: StateTransaction, key: str, node: str = "") -> int:
    """Add a mark now; return the number of marks within the window, this one included."""
    # Marks outside of the window are dropped here, so that the journal's state does not grow with the job's age.
    marks = (*recent_marks(tx, key), BudgetMark(tx.now, node))
    tx.marks = tx.marks.set(key, marks)
    return len(marks)


def add_failure(tx: StateTransaction, role: str, node: str, ready_s: float) -> int:
    """Add a failure of a role; return the number of its failures that count for the backoff.

    Args:
        tx: The transaction.
        role: Role of the failed rank.
        node: Node on which the rank ran.
        ready_s: Seconds for which the rank had been ready; more than the longest wait begins a new row of failures.
    """
    key = backoff_key(role)
    if ready_s > tx.job.fault_tolerance.backoff.max_seconds:
        # Failures of the last seconds stay: ends that belong to them may still be reported.
        recent_failures = tuple(
            mark for mark in tx.marks.get(key, ()) if tx.now - mark.at <= limits.SAME_FAILURE_WINDOW_S
        )
        tx.marks = tx.marks.set(key, recent_failures)
    return add_mark(tx, key, node)


def remove_marks(tx: StateTransaction, keys: Iterable[str], times: frozenset[float]) -> None:
    """Forget what was counted under keys at these times: it belongs to a failure that costs no budget."""
    for key in keys:
        marks = tx.marks.get(key, ())
        remaining_marks = tuple(mark for mark in marks if mark.at not in times)
        if len(remaining_marks) < len(marks):
            tx.marks = tx.marks.set(key, remaining_marks)


def restart_limit(tx: StateTransaction, level: Level, role: str) -> int:
    """Return the number of restarts that the budget of a level allows within the window."""
    if level is Level.JOB:
        return tx.job.fault_tolerance.max_restarts
    return tx.facts(role).plan.max_restarts


def has_restart_left(tx: StateTransaction, level: Level, role: str) -> bool:
    """Whether the budget of a level has a restart left."""
    return len(recent_marks(tx, budget_key(level, role))) < restart_limit(tx, level, role)


def budget_key(level: Level, role: str) -> str:
    """Return the key that restarts of a level are counted under."""
    return JOB_BUDGET_KEY if level is Level.JOB else role


def died_in_counted_failure(tx: StateTransaction, role: str, node: str, process_ordered_at: float) -> bool:
    """Whether the process that was ordered at that time died in a failure of its node that is counted already."""
    marks = (mark for mark in recent_marks(tx, backoff_key(role)) if mark.node == node)
    return any(process_ordered_at < mark.at and tx.now - mark.at <= limits.SAME_FAILURE_WINDOW_S for mark in marks)


def time_of_counted_failure(tx: StateTransaction, role: str, fault_detected_at: float) -> float:
    """Return when the failure was counted that a role's fault of that time is, or belongs to; 0: none is known."""
    counted_times = [mark.at for mark in recent_marks(tx, backoff_key(role))]
    return max((at for at in counted_times if at <= fault_detected_at), default=0.0)


def backoff_seconds(tx: StateTransaction, failure_count: int) -> float:
    """Return the seconds to wait before the next restart, by the number of failures in a row."""
    if failure_count <= 1:
        return 0.0  # a single failure restarts at once
    backoff = tx.job.fault_tolerance.backoff
    wait_s = float(backoff.initial_seconds)
    # Multiplied step by step: a power of many failures would overflow before it is capped.
    for _ in range(failure_count - 2):
        wait_s *= backoff.multiplier
        if wait_s >= backoff.max_seconds or backoff.multiplier == 1:
            break
    return min(wait_s, float(backoff.max_seconds))
