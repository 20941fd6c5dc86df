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
from dljob.telemetry.wording import counted

VERSION = 1
BUDGETS = ("restarts", "roles", "marks")
"""Keys of the state that count restarts and failures."""
MARKS_A_KEY, MARKS = 32, 256
"""Number of times that are handed on for each budget, and in all, the newest first: about 4 KiB in the status."""
NAMES = 4
"""Number of ranks that a message names."""
WORLDS = 64
"""Number of worlds whose last checkpoint is handed on, the newest first."""


def carry(state: JobState) -> dict[str, Any]:
    """Return the state to hand on, as JSON-able data; empty while nothing was restarted, failed or saved."""
    # Ids of nodes end with their RayCluster.
    lasting = [(key, times) for key, times in sorted(state.marks.items()) if not key.startswith(budget.NODE_PREFIX)]
    marks = {key: [mark.at for mark in times[-MARKS_A_KEY:]] for key, times in lasting}
    # The newest of all budgets are kept: the oldest leave their windows first anyhow.
    newest = sorted((at for times in marks.values() for at in times), reverse=True)[:MARKS]
    oldest = newest[-1] if newest else 0.0
    tables = {
        "restarts": dict(sorted(state.restarts.items())),
        "roles": {name: role.restarts for name, role in sorted(state.roles.items()) if role.restarts},
        "marks": {key: [round(at, 1) for at in times if at >= oldest] for key, times in marks.items()},
        "checkpoints": _last_checkpoints(state),
        "data": shards.carry_positions(state),
        "memory": {role: show_memory(amount) for role, amount in sorted(state.memory_overrides.requested.items())},
    }
    entries = {name: {key: value for key, value in table.items() if value} for name, table in tables.items()}
    filled_tables = {name: table for name, table in entries.items() if table}
    return {"v": VERSION, **filled_tables} if filled_tables else {}


def _last_checkpoints(state: JobState) -> dict[str, list[float]]:
    """Return world -> [attempt, number of the run, step, unix seconds, revision unless 0] of its last checkpoint."""
    checkpoints = [(saves.last, world) for world, saves in state.saves.items() if saves.last]
    newest = sorted(checkpoints, key=lambda checkpoint: (-checkpoint[0].at, checkpoint[1]))[:WORLDS]
    return {
        world: [last.mark.run_id.attempt, last.mark.run_id.number, last.mark.step, round(last.at, 1)]
        + ([last.mark.revision] if last.mark.revision else [])
        for last, world in sorted(newest, key=lambda checkpoint: checkpoint[1])
    }


def carried(text: str, uid: str, attempt: int) -> Carried:
    """Return the state of the previous attempt as an event; if it cannot be used, the event's `why` says the reason.

    `text` is JSON: {"job": uid, "attempt": number of its writer, "step": its last step, "state": from `carry`}, with
    "newBudgets": true where somebody resumed the ended job: who did that has looked at it.
    """
    try:
        data = json.loads(text)
        writer, job, state = int(data["attempt"]), str(data["job"]), data["state"]
        # Or the budgets of a namesake would count here.
        if job != uid:
            return Carried(writer, why=f"it belongs to another job, {job}")
        # Only an earlier attempt can have handed it on.
        if not 0 < writer < attempt:
            return Carried(writer, why=f"it belongs to attempt {writer}, and this is attempt {attempt}")
        if state["v"] != VERSION:
            return Carried(writer, why=f"it has version {state['v']}, and this dljob reads version {VERSION}")
        if data.get("newBudgets"):
            state = {key: value for key, value in state.items() if key not in BUDGETS}
        return _parse_state(writer, data.get("step"), state)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        return Carried(0, why=f"it cannot be read: {error!r}")


def _parse_state(attempt: int, step: object, state: Mapping[str, Any]) -> Carried:
    """Return the event for a state from `carry`. Raises ValueError, TypeError, KeyError or AttributeError on others."""
    restarts, roles = (_parse_counts(state.get(name, {})) for name in ("restarts", "roles"))
    marks: list[tuple[str, tuple[float, ...]]] = []
    for key, times in cast("Mapping[str, list[float]]", state.get("marks", {})).items():
        mark_times = tuple(float(at) for at in times)
        # NaN has no place in the order of marks, which are kept sorted by time.
        if not all(math.isfinite(at) for at in mark_times):
            raise ValueError(f"a time of {key} is not finite")
        marks.append((key, mark_times))
    saves: list[tuple[str, Committed]] = []
    checkpoints = cast("Mapping[str, list[float]]", state.get("checkpoints", {}))
    for world, (writer, number, saved_step, at, *revision) in checkpoints.items():
        if not math.isfinite(at):
            raise ValueError(f"the time of the checkpoint of {world} is not finite")
        mark = CheckpointId(RunId(int(writer), int(number)), int(saved_step), *map(int, revision))
        saves.append((world, Committed(mark, float(at))))
    reached = step if isinstance(step, int) else None
    memory_texts = cast("Mapping[str, str]", state.get("memory", {}))
    memory = tuple((role, parse_memory(text)) for role, text in sorted(memory_texts.items()))
    feeds = shards.read_carried_positions(state.get("data", {}))
    return Carried(attempt, restarts, roles, tuple(marks), reached, saves=tuple(saves), feeds=feeds, memory=memory)


def _parse_counts(table: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    # Restarts are only counted up: a negative number would make the count fall.
    return tuple((key, max(int(count), 0)) for key, count in table.items())


def take_over(tx: StateTransaction, event: Carried) -> None:
    """Take over the state of the previous attempt, once."""
    if tx.carried:
        return
    tx.carried = True
    if event.why:
        tx.note(reasons.RESTART_COUNTS_DISCARDED, "job", f"the state of the previous attempt is not used: {event.why}")
        return
    # The state may be of another spec or version: unknown levels, roles and keys are left out.
    levels = {level.value for level in Level}
    for level, count in event.restarts:
        # Added up: this attempt may have restarted something already.
        if level in levels:
            tx.restarts = tx.restarts.set(level, tx.restarts.get(level, 0) + count)
    for name, count in event.roles:
        role = tx.roles.get(name)
        if role is not None:
            tx.set_role(name, evolve(role, restarts=role.restarts + count))
    known = _budget_keys(tx)
    for key, times in event.marks:
        if key in known:
            # The clock of the last head may have been ahead: a mark of the past must not be later than now.
            marks = [Failure(min(at, tx.now)) for at in times]
            tx.marks = tx.marks.set(key, tuple(sorted((*marks, *tx.marks.get(key, ())), key=lambda mark: mark.at)))
    _take_saves(tx, event)
    lost_checkpoints = _settle_missing_ranks(tx, event)
    _take_memory(tx, event)
    counts = ", ".join(f"{level} {count}" for level, count in event.restarts if count) or "none"
    reached = "" if event.step is None else f"; it had reached step {event.step}"
    tx.note(
        reasons.RESTART_COUNTS_RESTORED,
        "job",
        f"restart counts of attempt {event.attempt}: {counts}{reached}{lost_checkpoints}",
    )


def _take_saves(tx: StateTransaction, event: Carried) -> None:
    """Take over data positions and the last checkpoints of roles that still exist."""
    for name, feed in event.feeds:
        # A data set that a rank has asked for by now has positions of its own.
        if name not in tx.feeds:
            tx.feeds = tx.feeds.set(name, feed)
    for world, checkpoint in event.saves:
        if world.partition("/")[0] in tx.roles:
            saves = tx.saves.get(world, Saves())
            committed = (evolve(checkpoint, at=min(checkpoint.at, tx.now)), *saves.committed)
            tx.saves = tx.saves.set(world, evolve(saves, committed=committed))


def _settle_missing_ranks(tx: StateTransaction, event: Carried) -> str:
    """Hand out again the shards of missing Actor ranks that no checkpoint has; name the checkpoints nobody restores."""
    saved = {world: checkpoint.mark for world, checkpoint in event.saves}
    worlds = {*saved, *(interval.world for _, feed in event.feeds for interval in feed.acked)}
    ranks = {f"{role}/{rank}" for role, rank in tx.ranks}
    missing_ranks = sorted(world for world in worlds if "/" in world and world not in ranks)
    for world in missing_ranks:
        shards.return_work_after_checkpoint(tx, world, RunId(event.attempt + 1, 1), saved.get(world), None)
    names = [world for world in missing_ranks if world in saved]
    if not names:
        return ""
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    sizes = dict[str, int]()
    for role, _, rank in (name.partition("/") for name in names):
        sizes[role] = max(sizes.get(role, 0), int(rank) + 1)
    enough_ranks = " and ".join(f"{counted(size, 'rank')} of {role}" for role, size in sizes.items())
    return (
        f"; nobody restores the checkpoints of {', '.join(names[:NAMES])}{more}, and shards in them are not handed out "
        f"again: there are fewer ranks than before. An attempt with {enough_ranks} restores them; dljob checkpoint "
        "export writes their states into files; under another name a data set begins anew"
    )


def _take_memory(tx: StateTransaction, event: Carried) -> None:
    """Begin all ranks of a role with the largest memory that one of them wanted: the others would need it later.

    Only before admission: later the units are reserved.
    """
    for role, amount in () if tx.was_admitted else event.memory:
        policy = memory_overrides.memory_policy_of(tx.job, role)
        if policy is None:
            continue
        most = min(amount, parse_memory(policy.max_memory))
        if most > memory_overrides.planned_memory_of(tx.job.plan, role):
            tx.memory_overrides = memory_overrides.with_role_memory(tx.job.plan, tx.memory_overrides, role, most)


def _budget_keys(tx: StateTransaction) -> frozenset[str]:
    """Return the budget keys of the present spec, which may differ from the previous attempt's."""
    rules = (f"rule:{rule.name}" for rule in tx.job.fault_tolerance.rules)
    return frozenset(
        {budget.JOB_BUDGET_KEY, budget.MASTER_BUDGET_KEY, *tx.roles, *(f"fail:{name}" for name in tx.roles), *rules}
    )
