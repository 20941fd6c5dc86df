"""Check the walks of a page against the code, and count their files and steps.

    python docs/walks.py [--page docs/architecture.md]

A walk is a Markdown list under `<details><summary>Walk: TITLE</summary>`. An item begins with a function in backticks,
`module:qualified.name`, the module relative to `dljob` (or from `dljob_operator`). It calls the function of the next
item, itself or through a table of its module. An item that goes on with "hands `Name`" makes an event, an action or a
message which the next function takes. "back in" returns to a function of an earlier item, and is no new step.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_WALK = re.compile(r"<details><summary>Walk: (.*?)</summary>\n(.*?)</details>", re.S)
_ITEM = re.compile(r"^\d+\. (back in )?`([\w.]+):([\w.]+)`(?: hands `(\w+)`)?", re.M)


@dataclass(frozen=True)
class WalkStep:
    """One function of a walk."""

    module: str
    name: str
    hands: str
    """Class of the object that the next step receives; empty if the next step is called directly."""
    back: bool = False
    """Whether the walk returns here from an earlier step."""

    @property
    def path(self) -> str:
        """Path of the module without its suffix."""
        top = "operator" if self.module.startswith("dljob_operator") else "workers/dljob"
        return f"{top}/{self.module.replace('.', '/')}"


def walks(page: str) -> dict[str, list[WalkStep]]:
    """Return the walks of a page, by title."""
    return {
        title: [WalkStep(module, name, hands, bool(back)) for back, module, name, hands in _ITEM.findall(items)]
        for title, items in _WALK.findall(page)
    }


@cache
def read(path: str) -> str:
    """Return the text of a file of the repository; a missing file is empty text."""
    file = ROOT / path
    return file.read_text() if file.is_file() else ""


def wrong(walk: list[WalkStep]) -> list[str]:
    """Return the steps of a walk that the code does not confirm; empty if it confirms all."""
    looked = [_source(step) for step in walk]
    errors = [f"{s.module}:{s.name} is not there" for s, node in zip(walk, looked, strict=True) if node is None]
    found = [node for node in looked if node is not None]
    if errors:
        return errors
    for step, node, after, target in zip(walk, found, walk[1:], found[1:], strict=False):
        if after.back:
            if (after.module, after.name) not in {(s.module, s.name) for s in walk[: walk.index(after)]}:
                errors.append(f"{after.module}:{after.name} was not on the walk before")
        elif step.hands:
            if step.hands not in _names(node):
                errors.append(f"{step.module}:{step.name} makes no {step.hands}")
            if step.hands not in _names(target):
                errors.append(f"{after.module}:{after.name} takes no {step.hands}")
        elif not _called_by(after) & (_names(node) | _in_tables(step, node)):
            errors.append(f"{step.module}:{step.name} does not call {after.module}:{after.name}")
    return errors


def files(walk: list[WalkStep]) -> int:
    """Return the number of files that a walk passes."""
    return len({step.path for step in walk})


def steps(walk: list[WalkStep]) -> int:
    """Return the number of functions that a walk passes."""
    return sum(not step.back for step in walk)


def _tree(step: WalkStep) -> ast.Module:
    text = read(f"{step.path}.py") or read(f"{step.path}/__init__.py")
    try:
        return ast.parse(text)
    except SystemError:  # a parse of another thread came between: https://github.com/python/cpython/issues/106905
        return ast.parse(text)  # delete with Python 3.11.9 and older


def _source(step: WalkStep) -> ast.AST | None:
    node: ast.AST = _tree(step)
    for part in step.name.split("."):
        inside = [n for n in _definitions(node) if n.name == part]
        if not inside:
            return None
        node = inside[-1]  # the last of overloads is the function
    return node


def _definitions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for child in ast.walk(node):
        if child is not node and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child


def _names(node: ast.AST) -> set[str]:
    """Return the names that a piece of code uses: variables, attributes, and parts of annotations."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return names | {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}


def _called_by(step: WalkStep) -> set[str]:
    """Return the names by which a function is called; for a method that Python calls, its class or an attribute."""
    owner, _, last = step.name.rpartition(".")
    if last in ("__init__", "__call__", "__enter__", "__aenter__", "__getattr__"):
        return {owner.rpartition(".")[2]}
    return {last}


def _in_tables(step: WalkStep, node: ast.AST) -> set[str]:
    """Return the names in the module constants that a function uses, as in `POLICIES = (finish.verdict, ...)`."""
    used, out = _names(node), set[str]()
    for line in _tree(step).body:
        targets = [line.target] if isinstance(line, ast.AnnAssign) else getattr(line, "targets", [])
        if any(isinstance(target, ast.Name) and target.id in used for target in targets):
            out |= _names(line)
    return out


def main() -> int:
    """Print each walk with its counts. Return 1 if the code does not confirm one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "architecture.md")
    args = parser.parse_args()
    bad = 0
    for title, walk in walks(args.page.read_text()).items():
        sys.stdout.write(f"{title}: {files(walk)} files, {steps(walk)} steps\n")
        for error in wrong(walk):
            bad = 1
            sys.stderr.write(f"  {error}\n")
    return bad


if __name__ == "__main__":
    sys.exit(main())
