"""A name says what it holds: these words alone, without a noun, say nothing where one function is read by itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import sources

ROOT = Path(__file__).parents[3]
WORDS = """
    said told made found own kept left heard seen given here there gone whole alone taken held due mine ours theirs one
    each other wanted meant where what why who whom was
"""
BARE = frozenset(WORDS.split())
"""No variable, parameter, field or function is called so."""
STAYING = {
    **{f"workers/dljob/master/state/events.py:{name}": "fields of journals" for name in ("why", "seen", "whole")},
    "workers/dljob/plan/model.py:gone": "a field of plans, and of their digests",
    "workers/dljob/plan/role.py:gone": "a field of plans, and of their digests",
    "workers/dljob/api/views.py:wanted": "public: RoleStatus.wanted",
    "workers/dljob/calls/rows.py:whole": "public: dljob.whole",
    "workers/dljob/runtime/collectives/group.py:whole": "public: CollectiveGroup.whole",
    "workers/dljob/runtime/controller/relauncher.py:why": "public: BadNode.why",
    "workers/dljob/runtime/process/worker_context.py:why": "public: suspect(why=...)",
}
"""File and name -> why it stays."""


def bare_names(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of what a module binds to a bare word; the command `why` is called so."""
    for node in sources.nodes(text):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "why":
            name = node.name
        else:
            continue
        if name.strip("_") in BARE:
            yield node.lineno, name


def test_bare_words_are_found() -> None:
    text = "def _told(who, *, is_left): said = [one for one in who]; [kept_logs for kept_logs in who]\ndef why(): ...\n"
    assert sorted(name for _, name in bare_names(text)) == ["_told", "one", "said", "who"]


def test_no_name_is_a_bare_word() -> None:
    found: dict[str, list[int]] = {}
    files = [path for room in ("workers", "operator") for path in sorted((ROOT / room).rglob("*.py"))]
    for path in files:
        for line, name in bare_names(path.read_text(encoding="utf-8")):
            found.setdefault(f"{path.relative_to(ROOT).as_posix()}:{name}", []).append(line)
    assert len(files) > 700
    assert {place: lines for place, lines in found.items() if place not in STAYING} == {}
    assert sorted(STAYING.keys() - found.keys()) == [], "these are gone"
