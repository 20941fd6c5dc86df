"""Syntax trees of sources, parsed once a process: a dozen tests look at every file, and a look at all takes 3 s."""

from __future__ import annotations

import ast
from functools import cache


@cache
def tree(text: str) -> ast.Module:
    """Return the syntax tree of a source; nobody may change it."""
    try:
        return ast.parse(text)
    except SystemError:
        # CPython counts the recursion of all threads in one number until 3.13 (python/cpython#106905): another thread
        # parsed at the same time. To be deleted with Python 3.12.
        return ast.parse(text)


@cache
def nodes(text: str) -> tuple[ast.AST, ...]:
    """Return all nodes of a source, in the order of `ast.walk`."""
    return tuple(ast.walk(tree(text)))
