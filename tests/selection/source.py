"""What one Python file leads to: what it imports, what its strings name, and which files its path expressions read."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

PRODUCT = {"dljob": "workers/dljob", "dljob_operator": "operator/dljob_operator"}
"""Import name -> folder."""
ALL = "*"
"""An edge to everything: the file reads the repository at large."""
WORD = re.compile(r"[A-Za-z_]\w*")
LISTS = {"iterdir", "walk", "copytree", "listdir", "scandir"}
GLOBS = {"glob", "rglob"}
PATHS = {*LISTS, *GLOBS, "Path", "joinpath", "with_name", "open"}


def runs(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a module that may run: no docstrings, nothing under `if TYPE_CHECKING`."""
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in (
            getattr(node.test, "id", ""),
            getattr(node.test, "attr", ""),
        ):
            todo.extend(node.orelse)
            continue
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "register_assert_rewrite":
            continue  # no import: how pytest is to read these, should they be imported
        for field in node._fields:
            child = getattr(node, field, None)
            for each in child if isinstance(child, list) else (child,):
                if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
                    continue
                if isinstance(each, ast.AST) and each._fields:
                    todo.append(each)


class Module:
    """One Python file: what its code imports, names and reads."""

    def __init__(self, graph: Any, name: str, tree: ast.Module, *, ours: bool) -> None:
        self.graph, self.name, self.ours = graph, name, ours
        self.nodes = list(runs(tree))
        self.folders = [str(p) for p in PurePosixPath(name).parents]

    def leads_to(self) -> Iterator[str]:
        """All edges of this file."""
        yield from self.imports()
        if self.name not in {f"{folder}/__init__.py" for folder in PRODUCT.values()}:  # its names come when used
            yield from self.strings()
        yield from self._read()

    def imports(self) -> Iterator[str]:
        """What it imports, in functions too, and the homes of names that come when first used."""
        bound: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield from self._module(alias.name)
                    bound[alias.asname or alias.name.partition(".")[0]] = alias.name.partition(".")[0]
            elif isinstance(node, ast.ImportFrom):
                base = self._absolute(node)
                for alias in node.names:
                    yield from self._module(f"{base}.{alias.name}" if base else alias.name)
                    yield from self.graph.lazy.get(base, {}).get(alias.name, ())
        lazy = {name: self.graph.lazy[package] for name, package in bound.items() if package in self.graph.lazy}
        owned = set[ast.AST]()
        for node in self.nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in lazy:
                owned.add(node.value)
                yield from lazy[node.value.id].get(node.attr, ())
        for node in self.nodes:
            if isinstance(node, ast.Name) and node.id in lazy and node not in owned:  # getattr(dljob, ...)
                yield from (file for home in lazy[node.id].values() for file in home)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        folder = self.folders[node.level - 1]
        for package, place in PRODUCT.items():
            if folder == place or folder.startswith(f"{place}/"):
                inside = [package, *folder.removeprefix(place).strip("/").split("/")]
                return ".".join(filter(None, [*inside, node.module]))
        return ".".join(filter(None, [folder.rpartition("/")[2], node.module]))

    def _module(self, dotted: str) -> Iterator[str]:
        if dotted.partition(".")[0] in PRODUCT:
            yield from self.graph.module(dotted)
        elif not self.ours:  # found by sys.path, which tests extend: whatever is so called
            first, *rest = dotted.split(".")
            for file in self.graph.stems.get(first, ()):
                if not file.endswith("/__main__.py"):  # of a folder without `__init__`; `-m` runs it
                    yield file
                inside = str(PurePosixPath(file).parent)
                for part in rest if file.endswith("__.py") else ():
                    yield from self.graph.all & {f"{inside}/{part}.py", f"{inside}/{part}/__init__.py"}
                    inside = f"{inside}/{part}"

    def strings(self) -> Iterator[str]:
        """What its strings name: modules, class paths, programs, entry points, user modules of jobs."""
        words = set[str]()
        for node in self.nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from self.graph.in_text(node.value, named=not self.ours)
                words.update(WORD.findall(node.value))
            elif isinstance(node, ast.List | ast.Tuple) and not self.ours:  # a command, whole
                yield from self._program(node.elts[:1])
                yield from self._ran(node.elts)
            elif isinstance(node, ast.Call) and not self.ours:
                yield from self._ran(node.args)
                if getattr(node.func, "attr", "") in ("which", "with_name"):
                    yield from self._program(node.args)
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                yield from self._program([node.right])
        if not self.ours:  # entrypoints of jobs: `prime_user:Trainer`; helpers that a subprocess imports
            top = "/".join(self.name.split("/")[:2])
            for stem in words & self.graph.stems.keys():
                near = (f for f in self.graph.stems[stem] if f.startswith((f"{top}/", "tests/kits/")))
                yield from (f for f in near if not PurePosixPath(f).name.startswith(("test_", "conftest", "__main__")))

    def _ran(self, words: list[ast.expr]) -> Iterator[str]:
        """The program of `-m NAME`."""
        values = [word.value if isinstance(word, ast.Constant) else None for word in words]
        for flag, name in itertools.pairwise(values):
            if flag == "-m" and isinstance(name, str):
                yield from self.graph.stems.get(name, ())

    def _program(self, words: list[ast.expr]) -> Iterator[str]:
        for word in words:
            if isinstance(word, ast.Constant) and not self.ours:
                yield from self.graph.entries.get(f"{word.value} ", ())

    def _read(self) -> Iterator[str]:
        """The files and folders that this one's path expressions name, in any folder above it."""
        said, vague, lists, ours = set[str](), False, False, False
        inner = set[ast.AST]()  # `ROOT / "docs"` of `ROOT / "docs" / "page.md"` names no folder to be read
        for node in self.nodes:
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and node not in inner:
                inner.update(each for each in ast.walk(node) if isinstance(each, ast.BinOp))
                tail, known = _chain(node)
                said.add(tail)
                vague |= not known
            elif isinstance(node, ast.Call):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if called in PATHS:
                    said.update(a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str))
                    vague |= called == "joinpath" and not all(isinstance(a, ast.Constant) for a in node.args)
                lists |= called in LISTS or (called in GLOBS and not _data(node))
            elif isinstance(node, ast.Attribute) and node.attr == "__file__":
                ours = True
        texts = {n.value for n in self.nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        said |= texts if vague and not self.ours else {text for text in texts if "/" in text}
        # Of the package that it is given, seldom the one around it.
        for text in said - {"__main__.py"}:
            yield from self._there(text, code=lists and not self.ours)
        if "ls-files" in texts:
            yield ALL
        if ours and lists and not self.ours:  # the folder of a module that it imported
            yield from (file for folder in PRODUCT.values() for file in self.graph.below[folder])

    def _there(self, text: str, *, code: bool) -> Iterator[str]:
        """A file, or what is in a folder: the Python there only where folders are listed; else its names stand here."""
        parts: list[str] = []
        for part in text.strip("./").split("/"):
            if set("*?[{\n ") & set(part):
                break
            parts.append(part)
        if not parts or parts == [""]:
            return
        for folder in self.folders:
            path = "/".join([*([] if folder == "." else [folder]), *parts])
            if path in self.graph.all:
                yield path
            elif path in self.graph.below:
                found = self.graph.below[path]
                yield from (
                    f for f in found if not f.endswith(".py") or (code and not PurePosixPath(f).match("test_*"))
                )


def _data(call: ast.Call) -> bool:
    """Whether a pattern finds no Python."""
    patterns = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    return bool(patterns) and all(re.search(r"\.\w+$", p) and not p.endswith(".py") for p in patterns)


def _chain(node: ast.expr) -> tuple[str, bool]:
    """The constant words of `a / "b" / "c"`, from the first to before one that is not known; whether all are."""
    parts: list[ast.expr] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        parts.insert(0, node.right)
        node = node.left
    fixed = not isinstance(node, ast.Name) or node.id.isupper()  # else a folder of the test's own, or a number
    words: list[str] = []
    for part in parts:
        if not (isinstance(part, ast.Constant) and isinstance(part.value, str)):
            return "/".join(words), bool(words) or not fixed
        words.append(part.value)
    return "/".join(words), True
