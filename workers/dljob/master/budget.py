"""Budgets and backoff: what happened within the window, by key.

Keys: "<role>" and "job" count restarts against their budgets, "master" counts PrimeMaster's, "rule:<name>" a rule's
attempts, "fail:<role>" all failures, for the backoff. No role may be called job or master.
"""

from __future__ import annotations

from dljob.master import limits
from dljob.master.draft import Draft
from dljob.master.state import Mark
from dljob.master.views import Level

JOB = "job"
MASTER = "master"


def recent(d: Draft, key: str) -> tuple[Mark, ...]:
    """The marks of a key that lie within the window."""
    since = d.now - d.job.fault_tolerance.window_seconds
    return tuple(mark for mark in d.marks.get(key, ()) if mark.at > since)


def add(d: Draft, key: str, node: str = "") -> int:
    """Add a mark now; gives how many lie within the window, this one included."""
    marks = (*recent(d, key), Mark(d.now, node))
    d.marks = d.marks.set(key, marks)
    return len(marks)


def limit(d: Draft, level: Level, role: str) -> int:
    """How many restarts the budget of a level allows within the window."""
    if level is Level.JOB:
        return d.job.fault_tolerance.max_restarts
    return d.facts(role).plan.max_restarts


def left(d: Draft, level: Level, role: str) -> bool:
    """Whether the budget of a level has a restart left."""
    return len(recent(d, key(level, role))) < limit(d, level, role)


def key(level: Level, role: str) -> str:
    """The key that restarts of a level are counted under."""
    return JOB if level is Level.JOB else role


def joined(d: Draft, role: str, node: str, since: float) -> bool:
    """Whether a process that was ordered at `since` fell to a failure that is counted already."""
    return any(
        mark.node == node and since < mark.at and d.now - mark.at <= limits.JOIN_S for mark in recent(d, f"fail:{role}")
    )


def backoff(d: Draft, failures: int) -> float:
    """Seconds to wait before the restart after so many failures within the window: none after the first."""
    if failures <= 1:
        return 0.0
    rule = d.job.fault_tolerance.backoff
    wait = float(rule.initial_seconds)
    for _ in range(failures - 2):
        wait *= rule.multiplier
        if wait >= rule.max_seconds or rule.multiplier == 1:
            break
    return min(wait, float(rule.max_seconds))
