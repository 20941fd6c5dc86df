"""Commands of users and the operator: restart, scale, checkpoint, stop, suspend. Each happens once, by its id."""

from __future__ import annotations

from dljob.master.failure import cuts, ending
from dljob.master.failure.policy import raise_to_allowed_level
from dljob.master.failure.restart import RestartOrder, begin_restart
from dljob.master.start import starting
from dljob.master.state.events import Commanded, CutAsked
from dljob.master.state.evolve import evolve
from dljob.master.state.state import Phase, Verdict
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import ENDS, Level
from dljob.telemetry import reasons
from dljob.telemetry.wording import counted


def handle_command(tx: StateTransaction, event: Commanded) -> None:
    """Carry out a command, or refuse it with a reason."""
    # An operator sends a command again after its restart.
    if event.id in tx.commands:
        return
    # A refused command counts as seen, too, so that it stays refused when it is sent again.
    tx.commands = tx.commands.set(event.id, f"{event.kind} {event.target}")
    refusal = _refusal(tx, event)
    if refusal:
        tx.note(reasons.COMMAND_REFUSED, event.target, f"{event.kind} refused: {refusal}")
        return
    by = f" by {event.by}" if event.by else ""
    policy = tx.facts(event.target).plan.autoscale if event.kind == "scale" else None
    words = f"{event.kind}{by}"
    if policy is not None:
        words += f" to {counted(event.count, 'rank')}; its load decides again in {policy.cooldown_s:g} s"
    tx.note(reasons.COMMAND_ACCEPTED, event.target, words)
    if event.kind == "stop":
        ending.end_job(tx, Verdict(ok=False, reason=reasons.STOPPED, message=f"stopped{by}", at=tx.now))
    elif event.kind == "suspend":
        verdict = Verdict(ok=False, reason=reasons.SUSPENDED, message=f"suspended{by}", at=tx.now, suspends=True)
        ending.end_job(tx, verdict)
    elif event.kind == "checkpoint":
        # A cut that cannot begin now is reported as CutGivenUp, with the reason.
        cuts.handle_cut_request(tx, CutAsked(event.by or "a command"))
    elif event.kind == "scale":
        # This only sets the wanted size: `elastic.follow` looks for room after this event.
        sizing = evolve(tx.sizes[event.target], want=event.count, scaled=tx.now, calls=event.calls)
        tx.sizes = tx.sizes.set(event.target, sizing)
    else:
        begin_restart(tx, _restart_order(tx, event))


def _refusal(tx: StateTransaction, event: Commanded) -> str:
    """Return why a command cannot be carried out; empty when it can."""
    if event.kind not in ("restart", "scale", "checkpoint", *ENDS):
        return f"no such command: {event.kind}; there are restart, scale, checkpoint, stop and suspend"
    if tx.phase is Phase.STOPPING:
        return "the job is ending"
    if event.kind in ENDS:
        return "" if event.target == "job" else f"only the job can be {ENDS[event.kind]}, not {event.target}"
    if event.kind == "checkpoint":
        return "" if event.target == "job" else f"a checkpoint is of the whole job, not of {event.target}"
    if event.target != "job" and not _target_exists(tx, event.target):
        roles = ", ".join(tx.job.roles)
        return f"no target {event.target}; targets are job, a role ({roles}), or a rank as {next(iter(tx.job.roles))}/0"
    if event.kind == "scale":
        return _scale_refusal(tx, event)
    if not tx.was_admitted:
        return "the job has not started yet"
    role = event.target.partition("/")[0]
    first = starting.unmet_prerequisites(tx, role) if role in tx.job.roles else ()
    return f"{role} has not begun: it waits for {', '.join(first)}" if first else ""


def _scale_refusal(tx: StateTransaction, event: Commanded) -> str:
    """Return why a role cannot be scaled to this number of ranks; empty when it can."""
    if event.target not in tx.sizes:
        elastic_roles = ", ".join(sorted(tx.sizes)) or "none of this job"
        return f"{event.target} has a fixed number of ranks; roles with minReplicas or maxReplicas: {elastic_roles}"
    plan = tx.facts(event.target).plan
    if starting.is_role_completed(tx, event.target):
        return f"{event.target} has ended ({counted(plan.replicas, 'rank')}); restart starts it again"
    if not plan.min_replicas <= event.count <= plan.max_replicas or event.count % plan.group_size:
        groups = f" in whole groups of {plan.group_size}" if plan.group_size > 1 else ""
        return f"{event.target} has {plan.min_replicas} to {plan.max_replicas} ranks{groups}, not {event.count}"
    return ""


def _target_exists(tx: StateTransaction, target: str) -> bool:
    """Whether a target names a role or a rank of the job."""
    role, slash, number = target.partition("/")
    facts = tx.job.roles.get(role)
    if facts is None:
        return False
    return not slash or (number.isdecimal() and int(number) in facts.ranks)


def _restart_order(tx: StateTransaction, event: Commanded) -> RestartOrder:
    """Return the restart that a command asks for. It costs no budget and has no backoff."""
    cause = f"restart of {event.target} ordered{f' by {event.by}' if event.by else ''}"
    role, slash, number = event.target.partition("/")
    if event.target == "job":
        first = next(iter(tx.job.roles))
        return RestartOrder(Level.JOB, first, (0,), "Requested", cause)
    level = Level.PROCESS if slash else Level.ROLE
    # For a role any rank will do: the level takes all of them.
    ranks = (int(number),) if slash else (tx.facts(role).ranks[0],)
    return RestartOrder(raise_to_allowed_level(tx.facts(role), level, host_lost=False), role, ranks, "Requested", cause)
