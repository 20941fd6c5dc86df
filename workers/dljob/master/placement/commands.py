"""Commands of users and the operator: restart, scale, checkpoint, stop, suspend. Each happens once, by its id."""

from __future__ import annotations

from dljob.master.failure import cuts, ending
from dljob.master.failure.policy import lift
from dljob.master.failure.restart import RestartOrder, begin
from dljob.master.start import starting
from dljob.master.state.events import Commanded, CutAsked
from dljob.master.state.evolve import evolve
from dljob.master.state.state import Phase, Verdict
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import ENDS, Level
from dljob.telemetry import reasons
from dljob.telemetry.wording import counted


def commanded(d: StateTransaction, event: Commanded) -> None:
    """Carry out a command, or refuse it with a reason."""
    # An operator sends a command again after its restart.
    if event.id in d.commands:
        return
    # A refused command counts as seen, too, so that it stays refused when it is sent again.
    d.commands = d.commands.set(event.id, f"{event.kind} {event.target}")
    why = _refusal(d, event)
    if why:
        d.note(reasons.COMMAND_REFUSED, event.target, f"{event.kind} refused: {why}")
        return
    d.note(
        reasons.COMMAND_ACCEPTED, event.target, f"{event.kind}{f' by {event.by}' if event.by else ''}{_holds(d, event)}"
    )
    by = f" by {event.by}" if event.by else ""
    if event.kind == "stop":
        ending.end(d, Verdict(ok=False, reason=reasons.STOPPED, message=f"stopped{by}", at=d.now))
    elif event.kind == "suspend":
        verdict = Verdict(ok=False, reason=reasons.SUSPENDED, message=f"suspended{by}", at=d.now, suspends=True)
        ending.end(d, verdict)
    elif event.kind == "checkpoint":
        # A cut that cannot begin now is told as CutGivenUp, with the reason.
        cuts.asked(d, CutAsked(event.by or "a command"))
    elif event.kind == "scale":
        # Only the wish: `elastic.follow` looks for room after this event.
        d.sizes = d.sizes.set(
            event.target, evolve(d.sizes[event.target], want=event.count, scaled=d.now, calls=event.calls)
        )
    else:
        begin(d, _order(d, event))


def _holds(d: StateTransaction, event: Commanded) -> str:
    """Return how long an order to scale wins over the role's autoscale, in words; empty where it has none."""
    policy = d.facts(event.target).plan.autoscale if event.kind == "scale" else None
    if policy is None:
        return ""
    return f" to {counted(event.count, 'rank')}; its load decides again in {policy.cooldown_s:g} s"


def _refusal(d: StateTransaction, event: Commanded) -> str:
    """Return why a command cannot be carried out; empty when it can."""
    if event.kind not in ("restart", "scale", "checkpoint", *ENDS):
        return f"no such command: {event.kind}; there are restart, scale, checkpoint, stop and suspend"
    if d.phase is Phase.STOPPING:
        return "the job is ending"
    if event.kind in ENDS:
        return "" if event.target == "job" else f"only the job can be {ENDS[event.kind]}, not {event.target}"
    if event.kind == "checkpoint":
        return "" if event.target == "job" else f"a checkpoint is of the whole job, not of {event.target}"
    if event.target != "job" and not _target_exists(d, event.target):
        roles = ", ".join(d.job.roles)
        return f"no target {event.target}; targets are job, a role ({roles}), or a rank as {next(iter(d.job.roles))}/0"
    if event.kind == "scale":
        return _unscalable(d, event)
    if not d.seats:
        return "the job has not started yet"
    role = event.target.partition("/")[0]
    first = starting.ahead(d, role) if role in d.job.roles else ()
    return f"{role} has not begun: it waits for {', '.join(first)}" if first else ""


def _unscalable(d: StateTransaction, event: Commanded) -> str:
    """Return why a role cannot be scaled to this number of ranks; empty when it can."""
    if event.target not in d.sizes:
        able = ", ".join(sorted(d.sizes)) or "none of this job"
        return f"{event.target} has a fixed number of ranks; roles with minReplicas or maxReplicas: {able}"
    own = d.facts(event.target).plan
    if starting.completed(d, event.target):
        return f"{event.target} has ended ({counted(own.replicas, 'rank')}); restart starts it again"
    if not own.min_replicas <= event.count <= own.max_replicas or event.count % own.group_size:
        groups = f" in whole groups of {own.group_size}" if own.group_size > 1 else ""
        return f"{event.target} has {own.min_replicas} to {own.max_replicas} ranks{groups}, not {event.count}"
    return ""


def _target_exists(d: StateTransaction, target: str) -> bool:
    """Whether a target names a role or a rank of the job."""
    role, slash, number = target.partition("/")
    facts = d.job.roles.get(role)
    if facts is None:
        return False
    return not slash or (number.isdecimal() and int(number) in facts.ranks)


def _order(d: StateTransaction, event: Commanded) -> RestartOrder:
    """Return the restart that a command asks for. It costs no budget and has no backoff."""
    cause = f"restart of {event.target} ordered{f' by {event.by}' if event.by else ''}"
    role, slash, number = event.target.partition("/")
    if event.target == "job":
        first = next(iter(d.job.roles))
        return RestartOrder(Level.JOB, first, (0,), "Requested", cause)
    level = Level.PROCESS if slash else Level.ROLE
    # For a role any rank will do: the level takes all of them.
    ranks = (int(number),) if slash else (d.facts(role).ranks[0],)
    return RestartOrder(lift(d.facts(role), level, host_lost=False), role, ranks, "Requested", cause)
