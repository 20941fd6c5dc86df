"""Findings of the rules between fields: location, message, hint, and the other fields that the rule read."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from dljob.spec.model import DLJobSpec, Role
from dljob.spec.text.tree import Loc
from dljob.spec.text.words import one_of, path_of

T = TypeVar("T", bound=Hashable)


NAMES = "<names>"
"""Last part of a location in `reads`: all names of a list's items, among which the rule looks one up."""
ROLE_NAMES: Loc = ("spec", "roles", NAMES)
GROUP_NAMES: Loc = ("spec", "nodeGroups", NAMES)


@dataclass(frozen=True, slots=True)
class Finding:
    """An error at `loc`.

    `reads` are the fields that the rule read, by default `loc` itself. If one of them is invalid, its intended value is
    unknown, and the finding is dropped: it might be only a consequence.
    """

    loc: Loc
    message: str
    hint: str = ""
    reads: tuple[Loc, ...] = ()
    at_key: bool = False
    """Whether the error is in the key, not in its value."""

    def touches(self, field: Loc) -> bool:
        """Return whether the rule read `field`, a part of it, or an object that contains it."""
        return any(_overlap(field, read) for read in self.reads or (self.loc,))


Check: TypeAlias = Callable[[DLJobSpec], Iterator[Finding]]
"""One rule; its locations start at "spec"."""


def repeated(items: Sequence[T]) -> Iterator[tuple[int, int, T]]:
    """Yield (index, index of the first, item) of each repeated item."""
    first: dict[T, int] = {}
    for index, item in enumerate(items):
        if item in first:
            yield index, first[item], item
        else:
            first[item] = index


def one_each(loc: Loc, names: Sequence[str], kind: str) -> Iterator[Finding]:
    """Refuse a second item of the same name in a list keyed by `name`."""
    for index, first, name in repeated(names):
        words = f"two {kind} of one name: {name}"
        yield Finding((*loc, index, "name"), words, f"the first is {path_of((*loc, first))}")


def other_role(spec: DLJobSpec, role: Role, name: str) -> str:
    """Return a hint at the role that is meant where a role names another one that is not there."""
    names = [candidate.name for candidate in spec.roles if candidate.name != role.name]
    return one_of(name, names) if names else "this job has no other role"


def listed(names: Iterable[str]) -> str:
    """Join words as `a, b and c`."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _overlap(a: Loc, b: Loc) -> bool:
    shorter = min(len(a), len(b))
    # One of the two locations contains the other, or they are the same.
    return a[:shorter] == b[:shorter]
