"""The rules about `roles[].python` that need no look at a machine: the versions that names of interpreters say."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dljob.spec.model import DLJobSpec, Role
from dljob.spec.rules.findings import Check, Finding
from dljob.spec.text.tree import Loc
from dljob.spec.versions import NEWEST, OLDEST

_NAMED = re.compile(r"python(\d+)\.(\d+)$")


def _version(role: Role) -> tuple[int, int] | None:
    """Return the version that the name of a role's interpreter says, as /usr/bin/python3.12 does."""
    match = _NAMED.search(role.python or "")
    return (int(match[1]), int(match[2])) if match else None


def in_ray(role: Role) -> bool:
    """Whether a role's ranks are processes of Ray: workers, or drivers."""
    return role.entrypoint.class_ is not None or role.reserve == "Quota"


def _supported(spec: DLJobSpec) -> Iterator[Finding]:
    for index, role in enumerate(spec.roles):
        version = _version(role)
        if version is not None and not OLDEST <= version <= NEWEST:
            words = f"ranks need Python 3.11 to 3.13, and {role.python} is another"
            yield Finding(("spec", "roles", index, "python"), words, "name one of these")


# The cluster has one Python, with which the workers of all these roles must agree.
def _one_cluster(spec: DLJobSpec) -> Iterator[Finding]:
    first: tuple[Loc, Role] | None = None
    for index, role in enumerate(spec.roles):
        loc: Loc = ("spec", "roles", index, "python")
        if _version(role) is None or not in_ray(role):
            continue
        if first is None:
            first = loc, role
        elif _version(role) != _version(first[1]):
            words = (
                f"{role.python} is of another version than {first[1].python} of role {first[1].name}, and ranks of "
                "both need the Python of the cluster: that of a class, or with reserve: Quota, is Ray's"
            )
            yield Finding(loc, words, "a module or command may have any Python", (loc, first[0]))


INTERPRETER_RULES: tuple[Check, ...] = (_supported, _one_cluster)
