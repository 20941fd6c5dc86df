"""Failed deliveries: items of queues pay for the failures of ranks that held them, in place of the ranks' role.

PrimeMaster tells the queues which processes have ended (`runtime.controller.services.holder_ends`), and hears which
items pay. A queue says that none does where a row of its items was set aside with none finished between: then the code
fails on every item, and the budget of the role ends that.
"""

from __future__ import annotations

from dljob.master.failure import budget
from dljob.master.start.problems import end_problem, stand
from dljob.master.state.events import DeliveriesFailed
from dljob.master.state.evolve import evolve
from dljob.master.state.faults import Failure
from dljob.master.state.problems import StandingProblem
from dljob.master.state.state import OwnFailure
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import Reason
from dljob.telemetry import reasons
from dljob.telemetry.wording import counted

CAUSE = 500
"""Characters of a cause that are remembered, and told to queues."""
_OWN = frozenset({Reason.USER_ERROR, Reason.OOM_KILLED, Reason.HANG, Reason.UNHEALTHY})
"""Reasons of an end that what the process worked on can have caused."""


def remember_failure(d: StateTransaction, failure: Failure, ranks: tuple[int, ...], cause: str) -> None:
    """Remember a failure that items which these ranks held may pay for."""
    outcome = failure.outcome
    if not d.cuts.queues or failure.secondary or failure.ordered or outcome.fatal or outcome.reason not in _OWN:
        return
    for rank in ranks:
        old = d.ranks[failure.role, rank]
        d.set_rank((failure.role, rank), evolve(old, own_failure=OwnFailure(old.incarnation, d.now, cause[:CAUSE])))


def record_payment(d: StateTransaction, event: DeliveriesFailed) -> None:
    """Give the role its restart back, as if the failure had not been: the items that the process held pay for it."""
    key, name = (event.role, event.rank), f"{event.role}/{event.rank}"
    failure = d.ranks[key].own_failure if key in d.ranks else None
    if failure is None or failure.incarnation != event.incarnation:
        return
    state = d.roles[event.role]
    if not event.items:
        words = f"{event.row} items of queue {event.queue} in a row were set aside, and none was finished between"
        d.set_role(event.role, evolve(state, barren=words))
        message = f"{words}: the code is at fault, and the budget of {event.role} pays"
        d.note(reasons.ITEMS_KEEP_FAILING, name, message)
        stand(d, StandingProblem(reasons.ITEMS_KEEP_FAILING, f"queue/{event.queue}", message, d.now))
        return
    if state.barren:
        d.set_role(event.role, evolve(state, barren=""))
        end_problem(d, reasons.ITEMS_KEEP_FAILING, f"queue/{event.queue}")
    budget.refund(d, (event.role, budget.JOB, budget.failures_of(event.role)), frozenset({failure.at}))
    for error in (key, (event.role, -1)):
        if error in d.errors:
            d.errors = d.errors.delete(error)
    for item_key, deliveries, dead in event.items:
        item, again = f"item {item_key} of queue {event.queue}", "another rank gets it next"
        after = counted(deliveries, "failed delivery", plural="failed deliveries")
        if dead:
            message = f"{item} is set aside after {after}: {failure.cause}"
            d.note(reasons.ITEM_SET_ASIDE, name, message)
            # One for each queue, with its last item: the others are in the timeline.
            stand(d, StandingProblem(reasons.ITEM_SET_ASIDE, f"queue/{event.queue}", message, d.now))
        else:
            d.note(reasons.ITEM_FAILED, name, f"{item} has {after}, {again}: {failure.cause}")


def barren_words(d: StateTransaction, role: str) -> str:
    """Return what the end of a job adds where a role failed on every item of a queue."""
    words = d.roles[role].barren
    return f"; {words}" if words else ""
