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


SUITE_HEAD = """Of the unified tests of DLRover's main branch (7c3e9648, August 2026), those of what this page lists,
with omegaconf installed. All others test its own scheduler, managers, actors and helpers, which dljob does not have."""
SUITE = (
    ("api/test_builder", 12, 12, ""),
    ("common/test_workload_desc", 3, 3, ""),
    ("util/test_config_util", 2, 2, ""),
    (
        "driver/test_driver",
        3,
        1,
        ("`test_submit`, `test_submit_init`: they mock the master that DLRover's `submit` drives, and `ray.init`"),
    ),
    (
        "api/test_runtime",
        8,
        2,
        (
            "five replace internals (`_rpc_call`, `BaseWorker.CURRENT`, `DataLoader._get_iterator`); `test_rpc` wants "
            "an error where the same function is exported twice under one name, which is allowed here, as a rank "
            "exports all functions of its entrypoint's module; another function is refused, and both are named"
        ),
    ),
    ("common/test_actor_base", 3, 0, "all run `ActorBase` and `BaseWorker`, which dljob refuses, by hand"),
)
"""File of DLRover's unified tests, its tests, those that pass, and why the others do not.

`tests/frameworks/dlrover_suite.py` counts them anew."""


def page(table: Callable[[str, Iterable[Iterable[object]]], list[str]]) -> list[str]:
    """Return the page's lines; `table` formats rows."""
    text = [*HEAD.splitlines(), ""]
    for module, names in MODULES.items():
        text += [f"## {module}", "", *table("name|what it does|difference", map(_row, names.items()))]
    text += ["## DLRover's own tests", "", *SUITE_HEAD.splitlines(), ""]
    rows = ((f"`{file}`", count, passed, reason) for file, count, passed, reason in SUITE)
    text += [*table("file of dlrover/python/unified/tests|tests|pass|why the others do not", rows)]
    text += ["## Options of a submission without effect", ""]
    return text + table("option of JobConfig|why", ((f"`{name}`", why) for name, why in IDLE.items()))


def _row(named: tuple[str, Name]) -> tuple[str, str, str]:
    name, one = named
    return (f"`{name}`" + (" (main)" if one.since == "main" else ""), WORDS[one.kind], one.reason)
