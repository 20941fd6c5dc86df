"""State that an attempt hands on to the next one, so that budgets, checkpoints and data positions hold across attempts.

The operator keeps it in the DLJob's status and gives it back, possibly in a version that is a little old: it is safe
although stale. Finished ranks are not handed on: a new attempt runs them again, since their results may not outlive the
pods.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, cast

from dljob.master.failure import budget
from dljob.master.start import shards
from dljob.master.state import memory_overrides
from dljob.master.state.checkpoint_ids import CheckpointId, Committed, RunId, Saves
from dljob.master.state.events import Carried
from dljob.master.state.evolve import evolve
from dljob.master.state.state import BudgetMark as Failure
from dljob.master.state.state import JobState
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import Level
from dljob.spec.quantity import parse_memory, show_memory
from dljob.telemetry import reasons

VERSION = 1
BUDGETS = ("restarts", "roles", "marks")
"""Keys of the state that count restarts and failures."""
MARKS_A_KEY, MARKS = 32, 256
"""Number of times that are handed on for each budget, and in all, the newest first: about 4 KiB in the status."""
WORLDS = 64
"""Number of worlds whose last checkpoint is handed on, the newest first."""


def carry(state: JobState) -> dict[str, Any]:
    """Return the state to hand on, as JSON-able data; empty while nothing was restarted, failed or saved."""
    # Ids of nodes end with their RayCluster.
    lasting = [(key, own) for key, own in sorted(state.marks.items()) if not key.startswith(budget.NODE)]
    marks = {key: [mark.at for mark in own[-MARKS_A_KEY:]] for key, own in lasting}
    # The newest of all budgets are kept: the oldest leave their windows first anyhow.
    newest = sorted((at for own in marks.values() for at in own), reverse=True)[:MARKS]
    oldest = newest[-1] if newest else 0.0
    found = {
        "restarts": dict(sorted(state.restarts.items())),
        "roles": {name: role.restarts for name, role in sorted(state.roles.items()) if role.restarts},
        "marks": {key: [round(at, 1) for at in own if at >= oldest] for key, own in marks.items()},
        "checkpoints": _saves(state),
        "data": shards.carry(state),
        "memory": {role: show_memory(amount) for role, amount in sorted(state.grants.wanted.items())},
    }
    kept = {name: {key: value for key, value in table.items() if value} for name, table in found.items()}
    told = {name: table for name, table in kept.items() if table}
    return {"v": VERSION, **told} if told else {}


def _saves(state: JobState) -> dict[str, list[float]]:
    """Return world -> [attempt and number of the life, step, unix seconds] of its last checkpoint."""
    found = [(own.last, world) for world, own in state.saves.items() if own.last]
    newest = sorted(found, key=lambda one: (-one[0].at, one[1]))[:WORLDS]
    return {
        world: [one.mark.life.attempt, one.mark.life.number, one.mark.step, round(one.at, 1)]
        for one, world in sorted(newest, key=lambda one: one[1])
    }


def carried(text: str, uid: str, attempt: int) -> Carried:
    """Return the state of the previous attempt as an event; if it cannot be used, the event's `why` says the reason.

    `text` is JSON: {"job": uid, "attempt": number of its writer, "step": its last step, "state": from `carry`}, with
    "newBudgets": true where somebody resumed the ended job: who did that has looked at it.
    """
    try:
        data = json.loads(text)
        told, job, state = int(data["attempt"]), str(data["job"]), data["state"]
        # Or the budgets of a namesake would count here.
        if job != uid:
            return Carried(told, why=f"it belongs to another job, {job}")
        # Only an earlier attempt can have handed it on.
        if not 0 < told < attempt:
            return Carried(told, why=f"it belongs to attempt {told}, and this is attempt {attempt}")
        if state["v"] != VERSION:
            return Carried(told, why=f"it has version {state['v']}, and this dljob reads version {VERSION}")
        if data.get("newBudgets"):
            state = {key: value for key, value in state.items() if key not in BUDGETS}
        return _read(told, data.get("step"), state)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        return Carried(0, why=f"it cannot be read: {error!r}")


def _read(attempt: int, step: object, state: Mapping[str, Any]) -> Carried:
    """Return the event for a state from `carry`. Raises ValueError, TypeError, KeyError or AttributeError on others."""
    restarts, roles = (_counts(state.get(name, {})) for name in ("restarts", "roles"))
    marks: list[tuple[str, tuple[float, ...]]] = []
    for key, times in cast("Mapping[str, list[float]]", state.get("marks", {})).items():
        own = tuple(float(at) for at in times)
        # NaN has no place in the order of marks, which are kept sorted by time.
        if not all(math.isfinite(at) for at in own):
            raise ValueError(f"a time of {key} is not finite")
        marks.append((key, own))
    saves: list[tuple[str, Committed]] = []
    for world, (told, number, saved, at) in cast("Mapping[str, list[float]]", state.get("checkpoints", {})).items():
        if not math.isfinite(at):
            raise ValueError(f"the time of the checkpoint of {world} is not finite")
        saves.append((world, Committed(CheckpointId(RunId(int(told), int(number)), int(saved)), float(at))))
    reached = step if isinstance(step, int) else None
    wanted = cast("Mapping[str, str]", state.get("memory", {}))
    memory = tuple((role, parse_memory(text)) for role, text in sorted(wanted.items()))
    feeds = shards.carried(state.get("data", {}))
    return Carried(attempt, restarts, roles, tuple(marks), reached, saves=tuple(saves), feeds=feeds, memory=memory)


def _counts(table: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    # Restarts are only counted up: a negative number would make the count fall.
    return tuple((key, max(int(count), 0)) for key, count in table.items())


def take(d: StateTransaction, event: Carried) -> None:
    """Take over the state of the previous attempt, once."""
    if d.carried:
        return
    d.carried = True
    if event.why:
        d.note(reasons.RESTART_COUNTS_DISCARDED, "job", f"the state of the previous attempt is not used: {event.why}")
        return
    # The state may be of another spec or version: unknown levels, roles and keys are left out.
    levels = {level.value for level in Level}
    for level, count in event.restarts:
        # Added up: this attempt may have restarted something already.
        if level in levels:
            d.restarts = d.restarts.set(level, d.restarts.get(level, 0) + count)
    for name, count in event.roles:
        role = d.roles.get(name)
        if role is not None:
            d.set_role(name, evolve(role, restarts=role.restarts + count))
    known = _keys(d)
    for key, times in event.marks:
        if key in known:
            # The clock of the last head may have been ahead: a mark of the past must not be later than now.
            marks = [Failure(min(at, d.now)) for at in times]
            d.marks = d.marks.set(key, tuple(sorted((*marks, *d.marks.get(key, ())), key=lambda mark: mark.at)))
    _take_saves(d, event)
    _take_memory(d, event)
    _tell(d, event)


def _take_saves(d: StateTransaction, event: Carried) -> None:
    """Take over data positions and the last checkpoints of roles that still exist."""
    for name, feed in event.feeds:
        # A data set that a rank has asked for by now has positions of its own.
        if name not in d.feeds:
            d.feeds = d.feeds.set(name, feed)
    for world, one in event.saves:
        if world.partition("/")[0] in d.roles:
            own = d.saves.get(world, Saves())
            d.saves = d.saves.set(world, evolve(own, committed=(evolve(one, at=min(one.at, d.now)), *own.committed)))


def _take_memory(d: StateTransaction, event: Carried) -> None:
    """Begin all ranks of a role with the largest memory that one of them wanted: the others would need it later.

    Only before admission: later the units are reserved.
    """
    for role, amount in () if d.seats else event.memory:
        policy = memory_overrides.policy_of(d.job, role)
        if policy is None:
            continue
        most = min(amount, parse_memory(policy.max_memory))
        if most > memory_overrides.memory_of(d.job.plan, role):
            d.grants = memory_overrides.for_role(d.job.plan, d.grants, role, most)


def _keys(d: StateTransaction) -> frozenset[str]:
    """Return the budget keys of the present spec, which may differ from the previous attempt's."""
    rules = (f"rule:{rule.name}" for rule in d.job.fault_tolerance.rules)
    return frozenset({budget.JOB, budget.MASTER, *d.roles, *(f"fail:{name}" for name in d.roles), *rules})


def _tell(d: StateTransaction, event: Carried) -> None:
    """Report the restart counts that were taken over."""
    counts = ", ".join(f"{level} {count}" for level, count in event.restarts if count) or "none"
    reached = "" if event.step is None else f"; it had reached step {event.step}"
    d.note(reasons.RESTART_COUNTS_RESTORED, "job", f"restart counts of attempt {event.attempt}: {counts}{reached}")
