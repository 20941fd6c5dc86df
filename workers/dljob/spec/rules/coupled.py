"""The rules about coupled restarts: `restartPolicy.with` names other roles, which can restart together with its own."""

from __future__ import annotations

from collections.abc import Iterator

from dljob.spec import cel
from dljob.spec.model import DLJobSpec, Role
from dljob.spec.rules.findings import ROLE_NAMES, Check, Finding, other_role, repeated
from dljob.spec.text.tree import Loc


def _names(spec: DLJobSpec) -> Iterator[Finding]:
    names = [role.name for role in spec.roles]
    for index, role in enumerate(spec.roles):
        loc: Loc = ("spec", "roles", index, "restartPolicy", "with")
        for at, _, name in repeated(role.restart_policy.with_):
            yield Finding((*loc, at), f"{name} is listed twice", "keep one")
        for at, name in enumerate(role.restart_policy.with_):
            if name not in names:
                words = f"{cel.RESTART_WITH.message}: there is no role {name}"
                yield Finding((*loc, at), words, other_role(spec, role, name), ((*loc, at), ROLE_NAMES))
            elif name == role.name:
                words = f"{cel.RESTART_WITH.message}: {name} is the role itself"
                yield Finding((*loc, at), words, "restartPolicy.level says how much of it restarts")


# A field that could never do anything is a mistake (ADR 5).
def _levels(spec: DLJobSpec) -> Iterator[Finding]:
    for index, role in enumerate(spec.roles):
        if role.restart_policy.with_ and role.restart_policy.level == "Job":
            loc: Loc = ("spec", "roles", index, "restartPolicy")
            words = f"each failure of {role.name} restarts all roles: its level is Job"
            yield Finding((*loc, "with"), words, "leave with out, or level", ((*loc, "with"), (*loc, "level")), True)


def _completion(spec: DLJobSpec) -> Iterator[Finding]:
    """Refuse roles of which one waits for the other to complete: they never live at the same time."""
    roles = {role.name: role for role in spec.roles}
    reads = tuple(("spec", "roles", index, "dependsOn") for index in range(len(spec.roles)))
    for index, role in enumerate(spec.roles):
        for at, name in enumerate(role.restart_policy.with_):
            for first, then in ((role.name, name), (name, role.name)):
                if name in roles and name != role.name and _after(roles, then, first):
                    loc: Loc = ("spec", "roles", index, "restartPolicy", "with", at)
                    words = f"{then} waits until {first} has completed, so they never restart together"
                    yield Finding(loc, words, "leave it out, or wait for Ready", (loc, *reads))


def _after(roles: dict[str, Role], role: str, awaited: str) -> bool:
    """Whether a role starts only after another one has completed, which it may wait for through others."""
    # (role, whether a completion lies on the way to it)
    queue, visited = [(role, False)], set[tuple[str, bool]]()
    while queue:
        name, ended = queue.pop()
        if (name, ended) in visited or name not in roles:
            continue
        visited.add((name, ended))
        if ended and name == awaited:
            return True
        queue.extend((d.role, ended or d.condition == "Complete") for d in roles[name].depends_on)
    return False


COUPLED_RULES: tuple[Check, ...] = (_names, _levels, _completion)
