"""The rules between collectives and the rest of the spec."""

from __future__ import annotations

from collections.abc import Iterator

from dljob.spec import cel
from dljob.spec.model import DLJobSpec
from dljob.spec.rules.findings import ROLE_NAMES, Check, Finding, one_each, repeated
from dljob.spec.text.tree import Loc
from dljob.spec.text.words import one_of

AUTO = "AUTO"
_BACKENDS: Loc = ("spec", "collectives", "backends")
_GROUPS: Loc = ("spec", "collectives", "groups")


# Ray compares names of backends in capitals.
def _backends(spec: DLJobSpec) -> Iterator[Finding]:
    names = [backend.name.upper() for backend in spec.collectives.backends]
    for index, first, name in repeated(names):
        words = f"two backends of one name: {name}"
        yield Finding((*_BACKENDS, index, "name"), words, f"the first is backends[{first}]; case is ignored")
    if AUTO in names:
        yield Finding(
            (*_BACKENDS, names.index(AUTO), "name"),
            "Auto is a reserved name",
            "in a group it lets dljob choose the backend",
        )


def _groups(spec: DLJobSpec) -> Iterator[Finding]:
    groups = spec.collectives.groups
    yield from one_each(_GROUPS, [group.name for group in groups], "groups")
    role_names = [role.name for role in spec.roles]
    for index, group in enumerate(groups):
        loc: Loc = (*_GROUPS, index, "roles")
        for at, _, name in repeated(group.roles):
            yield Finding((*loc, at), f"{name} is listed twice", "keep one")
        for at, name in enumerate(group.roles):
            if name not in role_names:
                words = f"{cel.GROUP_ROLES.message}: there is no role {name}"
                yield Finding((*loc, at), words, one_of(name, role_names), ((*loc, at), ROLE_NAMES))


COLLECTIVE_RULES: tuple[Check, ...] = (_backends, _groups)
