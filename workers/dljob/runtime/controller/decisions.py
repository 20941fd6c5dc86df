"""A batch of events: folded by the core, with its journal records and the log entries of its decisions. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dljob.master.persistence.codec import event_record
from dljob.master.state import actions as ac
from dljob.master.state.events import Event
from dljob.master.state.state import JobState, Step
from dljob.master.transition import transition
from dljob.runtime.controller.rebuild import change_record
from dljob.telemetry.records import Record

MOST_REASONS = 20
"""Largest number of reasons logged of one batch; the rest is counted: the timeline has all of 1,000 deaths at once."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One step of the core: the event, the actions that it led to, and why."""

    event: str
    actions: tuple[str, ...]
    """Names of the actions in order, without notes, which are text for the timeline."""
    reason: str


def decided(event: Event, step: Step) -> Decision | None:
    """Return the decision of a step; None for a step without an action or a reason."""
    actions = tuple(type(action).__name__ for action in step.actions if not isinstance(action, ac.Note))
    return Decision(type(event).__name__, actions, step.reason) if actions or step.reason else None


@dataclass(frozen=True, slots=True)
class Folded:
    """The result of folding a batch of events: the next state, the actions, and the records of both."""

    state: JobState
    actions: tuple[ac.Action, ...]
    records: tuple[Record, ...]
    """Journal records of the batch: one per event, then one with the change of the state."""
    decisions: tuple[Decision, ...] = ()
    """Entries of the batch for PrimeMaster's log."""


def fold(state: JobState, events: Iterable[Event], at: float) -> Folded:
    """Fold a batch of events that share one time (`at`, unix seconds) into the state."""
    after, actions, records, decisions = state, list[ac.Action](), list[Record](), list[Decision]()
    for event in events:
        step = transition(after, event, at)
        after = step.state
        if (decision := decided(event, step)) is not None:
            decisions.append(decision)
        actions.extend(step.actions)
        records.append(event_record(event, at))
    # Other versions of dljob read this record instead of folding the events, which they might decide otherwise.
    records.append(change_record(state, after, actions, at))
    return Folded(after, tuple(actions), tuple(records), tuple(decisions))


def entries(decisions: Sequence[Decision]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (message, fields) of the log entries of a batch.

    A step with a reason has an entry of its own, up to `MOST_REASONS`. Steps without one are counted by their event,
    and so are the actions: {"event": "HostReady", "steps": 64, "actions": {"StartRanks": 64}}.
    """
    reasoned = [decision for decision in decisions if decision.reason]
    for decision in reasoned[:MOST_REASONS]:
        yield decision.reason, {"event": decision.event, "actions": dict(Counter(decision.actions))}
    steps, actions = Counter[str](), dict[str, Counter[str]]()
    for decision in [*(decision for decision in decisions if not decision.reason), *reasoned[MOST_REASONS:]]:
        steps[decision.event] += 1
        actions.setdefault(decision.event, Counter()).update(decision.actions)
    for event, count in steps.items():
        yield "", {"event": event, "steps": count, "actions": dict(actions[event])}
