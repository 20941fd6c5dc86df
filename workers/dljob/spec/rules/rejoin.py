"""The rules about restarts in process: the ranks must be able to leave their process group and form a new one."""

from __future__ import annotations

from collections.abc import Iterator

from dljob.spec import cel
from dljob.spec.model import DLJobSpec, Role
from dljob.spec.rules.findings import Check, Finding
from dljob.spec.text.tree import Loc

LEVEL, ACTION = "InProcess", "RestartInProcess"


def _levels(spec: DLJobSpec) -> Iterator[Finding]:
    for index, role in enumerate(spec.roles):
        obstacle = _cannot(role) if role.restart_policy.level == LEVEL else None
        if obstacle is not None:
            loc: Loc = ("spec", "roles", index)
            words = f"{cel.IN_PROCESS.message}: {obstacle[0]}"
            reads = ((*loc, "restartPolicy", "level"), *((*loc, *path) for path in _READ))
            yield Finding(reads[0], words, f"{obstacle[1]}, or another level", reads)


def _rules(spec: DLJobSpec) -> Iterator[Finding]:
    for index, rule in enumerate(spec.fault_tolerance.rules):
        for name, action in (("action", rule.action), ("escalateTo", rule.escalate_to)):
            if action != ACTION:
                continue
            # A rule that names no roles is about all of them.
            about = [role for role in spec.roles if not rule.roles or role.name in rule.roles]
            cannot = [obstacle for role in about if (obstacle := _cannot(role)) is not None]
            # A rule about all roles means those that can; others restart their processes.
            if cannot and (rule.roles or len(cannot) == len(about)):
                loc: Loc = ("spec", "faultTolerance", "rules", index, name)
                words = f"{ACTION}: {cel.IN_PROCESS.message}: {cannot[0][0]}"
                reads = tuple(("spec", "roles", at, *path) for at in range(len(spec.roles)) for path in _READ)
                yield Finding(loc, words, f"{cannot[0][1]}, or another {name}", (loc, *reads))


# If one of them is invalid, the rules are not applied: see `Finding.reads`.
_READ: tuple[Loc, ...] = (("type",), ("entrypoint",), ("comm",))
"""Fields of a role that the rules read."""


def _cannot(role: Role) -> tuple[str, str] | None:
    """Return (reason, hint) where a role's ranks cannot keep their processes; None where they can."""
    if role.type != "Elastic":
        return f"{role.name} is {role.type}, whose ranks have no process group", "set type: Elastic"
    if role.entrypoint.class_ is None:
        return f"{role.name} runs a script, whose process cannot start again in place", "make its entrypoint a class"
    if role.comm.backend == "None":
        return f"{role.name} has no process group", "give comm a backend"
    if not role.comm.init_process_group:
        return f"{role.name} makes its process group itself", "leave initProcessGroup: false out"
    return None


REJOIN_RULES: tuple[Check, ...] = (_levels, _rules)
