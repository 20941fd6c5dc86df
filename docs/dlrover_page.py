"""The page docs/reference/dlrover.md: each name of DLRover that is served, from the table of `dljob.compat`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dljob.compat.dlrover_api.draft import IDLE
from dljob.compat.dlrover_api.names import MODULES, Kind, Name

WORDS = {
    Kind.WORKS: "works",
    Kind.NO_EFFECT: "accepted without effect, told once",
    Kind.REFUSED: "an error that names our way",
}
HEAD = """# DLRover's names

This page is for users of DLRover: it lists each import path of its unified API and torch
trainer that dljob serves. [How to](../howto/dlrover.md) says how a script gets them. A path that is not here is the
installed dlrover's own; without one it is an ImportError that names this page. "main" marks names that 0.6.1 does not
have."""


def page(table: Callable[[str, Iterable[Iterable[object]]], list[str]]) -> list[str]:
    """Return the page's lines; `table` formats rows."""
    text = [*HEAD.splitlines(), ""]
    for module, names in MODULES.items():
        text += [f"## {module}", "", *table("name|what it does|difference", map(_row, names.items()))]
    text += ["## Options of a submission without effect", ""]
    return text + table("option of JobConfig|why", ((f"`{name}`", why) for name, why in IDLE.items()))


def _row(named: tuple[str, Name]) -> tuple[str, str, str]:
    name, one = named
    return (f"`{name}`" + (" (main)" if one.since == "main" else ""), WORDS[one.kind], one.told)
