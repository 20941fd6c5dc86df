"""One logger for each room, named after it; who takes another one is named here, with the reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import sources

ROOT = Path(__file__).parents[3]
SOURCES = sorted([*(ROOT / "workers" / "dljob").rglob("*.py"), *(ROOT / "operator").rglob("*.py")])
OWN = "log = logging.getLogger(__package__)"
OTHERS = {
    "workers/dljob/compat/dlrover_api/logs.py": "DLRover's, for user code",
    "workers/dljob/runtime/backend/embedded.py": "Ray's own, made quiet",
    "workers/dljob/runtime/controller/master_log.py": "that of all rooms, which gets the handlers",
    "workers/dljob/runtime/process/worker_context.py": "a rank's, for user code",
    "workers/dljob/ray_private.py": "Ray's own, made quiet",
    "operator/dljob_operator/main.py": "those of libraries, made quiet",
    "operator/dljob_operator/testing/scenario.py": "that of all rooms, which an invariant reads",
}
"""Modules that ask for a logger beside the one of their room."""
ROOT_CALLS = ("debug", "info", "warning", "error", "exception", "critical", "log")


def odd(text: str, *, others: bool = False) -> Iterator[str]:
    """The lines that take, name or use a logger in another way than all rooms do."""
    own = [node for node in sources.tree(text).body if isinstance(node, ast.Assign) and ast.unparse(node) == OWN]
    if len(own) > 1:
        yield "two loggers"
    calls = {id(node.value) for node in own}
    for node in sources.nodes(text):
        if isinstance(node, ast.ImportFrom) and (
            node.module == "logging" or "log" in {name.name for name in node.names}
        ):
            yield ast.unparse(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called = ast.unparse(node.func)
            if called == "logging.getLogger" and id(node) not in calls and not others:
                yield ast.unparse(node)
            if called in {f"logging.{name}" for name in ROOT_CALLS}:
                yield ast.unparse(node)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_logs_on_the_logger_of_its_room(path: Path) -> None:
    others = str(path.relative_to(ROOT)) in OTHERS
    assert list(odd(path.read_text(encoding="utf-8"), others=others)) == []


def test_modules_listed_as_exceptions_still_take_another_logger() -> None:
    for name in OTHERS:
        assert list(odd((ROOT / name).read_text(encoding="utf-8"))), f"{name} takes no other any more"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (OWN, []),
        ("log = logging.getLogger(__name__)", ["logging.getLogger(__name__)"]),
        ("_log = logging.getLogger(__package__)", ["logging.getLogger(__package__)"]),
        ("def f():\n    log = logging.getLogger(__package__)", ["logging.getLogger(__package__)"]),
        (f"{OWN}\n{OWN}", ["two loggers"]),
        ("from logging import getLogger", ["from logging import getLogger"]),
        ("from dljob.tasks import log", ["from dljob.tasks import log"]),
        ("logging.warning('x')", ["logging.warning('x')"]),
        ("logging.getLogger('ray').setLevel(30)", ["logging.getLogger('ray')"]),
    ],
)
def test_other_ways_to_take_a_logger_are_found(code: str, found: list[str]) -> None:
    assert list(odd(code)) == found
