"""Failed deliveries: a failure counts against the queue items that the rank held, and not against its role's budget.

PrimeMaster tells the queues which processes have ended (`runtime.controller.services.holder_ends`), and hears which
items count the failure. A queue names no item once a row of its items was set aside with none finished between: then
the code fails on every item, and the role's budget is charged.
"""

from __future__ import annotations

from dljob.master.failure import budget, restart
from dljob.master.start.problems import end_problem, record_problem
from dljob.master.state.events import DeliveriesFailed
from dljob.master.state.evolve import evolve
from dljob.master.state.faults import Failure
from dljob.master.state.problems import StandingProblem
from dljob.master.state.state import WHOLE_WORLD, OwnFailure
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import Reason
from dljob.telemetry import reasons
from dljob.telemetry.wording import counted

MAX_CAUSE_CHARS = 500
"""Characters of a cause that are remembered, and sent to queues."""
_REASONS_AN_ITEM_CAN_CAUSE = frozenset({Reason.USER_ERROR, Reason.OOM_KILLED, Reason.HANG, Reason.UNHEALTHY})
"""Reasons of an end that what the process worked on can have caused."""


def remember_failure(tx: StateTransaction, failure: Failure, ranks: tuple[int, ...], cause: str) -> None:
    """Remember a failure that may count against the items that these ranks held."""
    has_queues, outcome = bool(tx.cuts.queue_names), failure.outcome
    is_own_failure = not failure.reports_lost_peer and not failure.ended_by_master
    # A fatal failure would repeat with any item.
    can_item_be_cause = outcome.reason in _REASONS_AN_ITEM_CAN_CAUSE and not outcome.fatal
    if not has_queues or not is_own_failure or not can_item_be_cause:
        return
    for key in ((failure.role, rank) for rank in ranks):
        own_failure = OwnFailure(tx.ranks[key].incarnation, tx.now, cause[:MAX_CAUSE_CHARS])
        tx.set_rank(key, evolve(tx.ranks[key], own_failure=own_failure))


def handle_failed_deliveries(tx: StateTransaction, event: DeliveriesFailed) -> None:
    """Refund the restart to the role's budget: the failure counts against the items that the process held.

    A restart that waits out the backoff of earlier failures begins now.
    """
    key, rank_name = (event.role, event.rank), f"{event.role}/{event.rank}"
    failure = tx.ranks[key].own_failure if key in tx.ranks else None
    if failure is None or failure.incarnation != event.incarnation:
        return
    role_state = tx.roles[event.role]
    if not event.items:
        row_text = f"{event.items_set_aside_in_a_row} items of queue {event.queue} in a row"
        explanation = f"{row_text} were set aside, and none was finished between"
        tx.set_role(event.role, evolve(role_state, failing_items_text=explanation))
        message = f"{explanation}: the code is at fault, and the budget of {event.role} pays"
        tx.note(reasons.ITEMS_KEEP_FAILING, rank_name, message)
        record_problem(tx, StandingProblem(reasons.ITEMS_KEEP_FAILING, f"queue/{event.queue}", message, tx.now))
        return
    if role_state.failing_items_text:
        tx.set_role(event.role, evolve(role_state, failing_items_text=""))
        end_problem(tx, reasons.ITEMS_KEEP_FAILING, f"queue/{event.queue}")
    budget.remove_marks(
        tx, (event.role, budget.JOB_BUDGET_KEY, budget.backoff_key(event.role)), frozenset({failure.at})
    )
    for error_key in (key, (event.role, WHOLE_WORLD)):
        if error_key in tx.last_errors:
            tx.last_errors = tx.last_errors.delete(error_key)
    incident_number = tx.ranks[key].incident
    incident = tx.incidents.get(incident_number)
    if (
        incident is not None
        and not incident.is_backoff_over
        and incident.detected_at == failure.at
        and incident.reason in _REASONS_AN_ITEM_CAN_CAUSE
    ):
        deadline = tx.now + restart.restart_time_limit_s(tx, incident.members)
        tx.incidents = tx.incidents.set(incident_number, evolve(incident, backoff_until=tx.now, deadline=deadline))
        restart.launch_restart(tx, incident_number)
    for item_key, failure_count, is_set_aside in event.items:
        item_text = f"item {item_key} of queue {event.queue}"
        deliveries_text = counted(failure_count, "failed delivery", plural="failed deliveries")
        if is_set_aside:
            message = f"{item_text} is set aside after {deliveries_text}: {failure.cause}"
            tx.note(reasons.ITEM_SET_ASIDE, rank_name, message)
            # One for each queue: all its items are in the timeline.
            problem = StandingProblem(reasons.ITEM_SET_ASIDE, f"queue/{event.queue}", message, tx.now)
            record_problem(tx, problem, item_key)
        else:
            message = f"{item_text} has {deliveries_text}, another rank gets it next, if one asks: {failure.cause}"
            tx.note(reasons.ITEM_FAILED, rank_name, message)


def failing_items_suffix(tx: StateTransaction, role: str) -> str:
    """Return what the end of a job adds where a role failed on every item of a queue."""
    explanation = tx.roles[role].failing_items_text
    return f"; {explanation}" if explanation else ""
