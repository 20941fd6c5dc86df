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

JOB = "job"
MASTER = "master"
NODE, DOMAIN = "node:", "domain:"


def recent(tx: StateTransaction, key: str) -> tuple[BudgetMark, ...]:
    """Return the marks of a key that lie within the window."""
    since = tx.now - tx.job.fault_tolerance.window_seconds
    return tuple(mark for mark in tx.marks.get(key, ()) if mark.at > since)


def failures_of(role: str) -> str:
    """Return the key under which failures of a role are counted for its backoff."""
    return f"fail:{role}"


def add(tx: StateTransaction, key: str, node: str = "") -> int:
    """Add a mark now; return the number of marks within the window, this one included."""
    # Marks outside of the window are dropped here, so that the journal's state does not grow with the job's age.
    marks = (*recent(tx, key), BudgetMark(tx.now, node))
    tx.marks = tx.marks.set(key, marks)
    return len(marks)


def add_failure(tx: StateTransaction, role: str, node: str, ran_s: float) -> int:
    """Add a failure of a role; return the number of its failures that count for the backoff.

    Args:
        tx: The job.
        role: Whose rank failed.
        node: Where it ran.
        ran_s: Seconds that it had been ready. After more than the longest wait its failure is the first of a new row.
    """
    name = failures_of(role)
    if ran_s > tx.job.fault_tolerance.backoff.max_seconds:
        # Those of the last seconds stay: ends that belong to them may still be reported.
        own = tuple(mark for mark in tx.marks.get(name, ()) if tx.now - mark.at <= limits.JOIN_S)
        tx.marks = tx.marks.set(name, own)
    return add(tx, name, node)


def refund(tx: StateTransaction, keys: Iterable[str], times: frozenset[float]) -> None:
    """Remove the marks of these times, which turned out to belong to a failure that costs no budget."""
    for name in keys:
        marks = tx.marks.get(name, ())
        kept = tuple(mark for mark in marks if mark.at not in times)
        if len(kept) < len(marks):
            tx.marks = tx.marks.set(name, kept)


def limit(tx: StateTransaction, level: Level, role: str) -> int:
    """Return the number of restarts that the budget of a level allows within the window."""
    if level is Level.JOB:
        return tx.job.fault_tolerance.max_restarts
    return tx.facts(role).plan.max_restarts


def has_restart(tx: StateTransaction, level: Level, role: str) -> bool:
    """Whether the budget of a level has a restart left."""
    return len(recent(tx, key(level, role))) < limit(tx, level, role)


def key(level: Level, role: str) -> str:
    """Return the key that restarts of a level are counted under."""
    return JOB if level is Level.JOB else role


def joined(tx: StateTransaction, role: str, node: str, since: float) -> bool:
    """Whether a process that was ordered at `since` died in a failure of its node that is already counted."""
    return any(
        mark.node == node and since < mark.at and tx.now - mark.at <= limits.JOIN_S
        for mark in recent(tx, failures_of(role))
    )


def counted_at(tx: StateTransaction, role: str, at: float) -> float:
    """Return when the failure was counted that a fault of a role at `at` is, or belongs to; 0: none is known."""
    return max((mark.at for mark in recent(tx, failures_of(role)) if mark.at <= at), default=0.0)


def backoff(tx: StateTransaction, failures: int) -> float:
    """Return the seconds to wait before the next restart, by the number of failures in a row."""
    if failures <= 1:
        return 0.0  # a single failure restarts at once
    rule = tx.job.fault_tolerance.backoff
    wait = float(rule.initial_seconds)
    # Multiplied step by step: a power of many failures would overflow before it is capped.
    for _ in range(failures - 2):
        wait *= rule.multiplier
        if wait >= rule.max_seconds or rule.multiplier == 1:
            break
    return min(wait, float(rule.max_seconds))
