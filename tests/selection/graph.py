"""Which file leads to which: imports, class paths in strings, user modules by name, and files that are read.

Static and conservative: an edge may be one too many, none may be missing. Function-level imports count; imports under
`if TYPE_CHECKING` and docstrings do not, as neither runs.
"""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath

from selection.source import ALL, PRODUCT, WORD, Module

ROOT = Path(__file__).resolve().parents[2]
UNSEEN = {
    # The backend of a job that names none: `chosen(None, None, {})`; the others are reached by who names them.
    "workers/dljob/runtime/backend/interface.py": ("workers/dljob/runtime/backend/ray_backend.py",),
    # Type checkers read every annotation of what is public.
    "tests/unit/api/test_types.py": ("workers",),
    # The code blocks of all pages.
    "tests/ray/kits/pages_run.py": ("workers", "docs", "README.md", "examples"),
    # Environments of other Pythons, with all of the product in them.
    "tests/kits/pythons.py": ("workers", "operator", "tests/unit", "pyproject.toml"),
}
"""What neither an import nor a string tells. Folders stand for all that is in them."""
RUNNERS = ("tests/tiers.py", "tests/selection/", "tests/planted/")
"""They name tests to run them; who imports them takes a helper, and runs none."""
DOTTED = re.compile(r"\b(?:dljob|dljob_operator)(?:\.\w+)+\.?")
TAKEN = re.compile(r"from (dljob[\w.]*) import \(?([\w, \n]+)")
COMMAND = re.compile(r"(?:^|[;&|(`/]|\bexec)\s*((?:kubectl-)?dljob(?:-operator)? )", re.MULTILINE)
TEXT = {".yaml", ".yml", ".sh", ".toml", ".Containerfile"}
"""Of what is no Python, what something may run; a page is read, tests/ray/kits/pages_run.py runs its blocks."""


def listed(root: Path = ROOT) -> list[str]:
    """The files of the working tree that git has, or does not ignore."""
    found = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=root, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    return sorted({name for name in found if name and (root / name).is_file()})


class Graph:
    """The files of a tree, and the edges between them; `reach` follows these."""

    def __init__(self, root: Path = ROOT, files: Iterable[str] | None = None) -> None:
        self.root = root
        self.files = sorted(files) if files is not None else listed(root)
        self.all = frozenset(self.files)
        self.below: dict[str, list[str]] = defaultdict(list)
        self.stems: dict[str, list[str]] = defaultdict(list)
        for name in self.files:
            for folder in PurePosixPath(name).parents:
                self.below[str(folder)].append(name)
            path = PurePosixPath(name)
            if path.suffix == ".py" and not name.startswith(tuple(PRODUCT.values())):
                # A module by its name, or a package by its folder's; not what is inside a package.
                top = path.parent if path.name in ("__init__.py", "__main__.py") else path
                if f"{top.parent}/__init__.py" not in self.all:
                    self.stems[top.stem].append(name)
        self._edges: dict[str, frozenset[str]] = {}

    @cached_property
    def entries(self) -> dict[str, set[str]]:
        """Names of scripts and entry points -> the files of what they name, but the default's."""
        files = [self.root / place / "pyproject.toml" for place in (".", "operator", "workers/tools")]
        projects = [tomllib.loads(f.read_text(encoding="utf-8")).get("project", {}) for f in files if f.exists()]
        # A script's name alone is most often a label; `COMMAND` finds where it is run. So are the names of commands.
        groups = [(f"{name} ", value) for one in projects for name, value in one.get("scripts", {}).items()]
        for group, points in (pair for one in projects for pair in one.get("entry-points", {}).items()):
            groups += points.items() if group != "dljob.commands" else ()
        named: dict[str, set[str]] = defaultdict(set)
        for name, value in groups:
            named[name] |= set(self.module(value.partition(":")[0])) if name != "ray" else set()
        return named

    @cached_property
    def lazy(self) -> dict[str, dict[str, set[str]]]:
        """Packages whose names come when first used (PEP 562) -> name -> the files of its home."""
        found: dict[str, dict[str, set[str]]] = {}
        for package, folder in PRODUCT.items():
            path = f"{folder}/__init__.py"
            tree = self.tree(path) if path in self.all else None
            if tree is None or not any(isinstance(n, ast.FunctionDef) and n.name == "__getattr__" for n in tree.body):
                continue
            homes: dict[str, set[str]] = defaultdict(set)
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and node.module:
                    for name in node.names:
                        homes[name.name].update(self.module(node.module))
                for key, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
                    names = value.elts if isinstance(value, ast.Tuple) else ()
                    for name in (n.value for n in names if isinstance(n, ast.Constant)):
                        homes[name].update(self.module(key.value) if isinstance(key, ast.Constant) else ())
            found[package] = homes
        return found

    def tree(self, name: str) -> ast.Module | None:
        """A file's syntax tree; none where it is no Python of ours (a golden file may be broken on purpose)."""
        try:
            return ast.parse((self.root / name).read_text(encoding="utf-8"))
        except (SyntaxError, ValueError):
            return None

    def module(self, dotted: str, *, programs: bool = False) -> Iterator[str]:
        """The files that an import of this product module runs: it, and the packages it is in.

        What follows the module's name (a class, a function) is cut off. With `programs`, a package has its `__main__`.
        """
        parts = dotted.rstrip(".").split(".")
        if parts[0] not in PRODUCT:
            return
        path = PRODUCT[parts[0]]
        yield from self.all & {f"{path}/__init__.py"}
        for part in parts[1:]:
            if f"{path}/{part}.py" in self.all:
                yield f"{path}/{part}.py"
                return
            if f"{path}/{part}" not in self.below:
                return
            path = f"{path}/{part}"
            yield from self.all & {f"{path}/__init__.py"}
        if programs:
            yield from self.all & {f"{path}/__main__.py"}
            if dotted.endswith("."):  # what follows is only known when it runs
                yield from self.below[path]

    def edges(self, name: str) -> frozenset[str]:
        """What this file leads to."""
        if name not in self._edges:
            self._edges[name] = frozenset(self._found(name)) - {name}
        return self._edges[name]

    def names(self, name: str) -> set[str]:
        """What this file imports or names, and the examples it reads: what it is about, not all that it may read."""
        tree = self.tree(name) if name.endswith(".py") else None
        if tree is None:
            return set(self.edges(name))
        module = Module(self, name, tree, ours=False)
        read = (file for file in self.edges(name) if file.startswith("examples/"))
        return {*module.imports(), *module.strings(), *read}

    def _found(self, name: str) -> Iterator[str]:
        if name.startswith(RUNNERS):
            return
        for other in UNSEEN.get(name, ()):
            yield from self.below.get(other, [other])
        path = PurePosixPath(name)
        ours = name.startswith(tuple(PRODUCT.values()))
        if path.suffix == ".py":
            tree = self.tree(name)
            if tree is not None:
                yield from Module(self, name, tree, ours=ours).leads_to()
            if not ours and name.startswith("tests/"):
                yield from (f"{p}/conftest.py" for p in path.parents if f"{p}/conftest.py" in self.all)
            if name != "tests/conftest.py":  # what lies beside it is of whoever names it
                yield from (f for f in self.below[str(path.parent)] if not f.endswith(".py") and _beside(f, path))
        elif path.suffix in TEXT and not ours:
            yield from self.in_text((self.root / name).read_text(encoding="utf-8", errors="replace"), named=True)
            if not name.startswith("tests/"):  # a job's file is run with the code beside it
                yield from self.below[str(path.parent)] if path.parent.parts else ()

    def in_text(self, text: str, *, named: bool) -> Iterator[str]:
        """What of the product a text names: modules, class paths, names imported; with `named`, entry points too."""
        for match in DOTTED.finditer(text):
            yield from self.module(match[0] if match.end() == len(text) else match[0].rstrip("."), programs=True)
            package, name = match[0].split(".")[:2]
            yield from self.lazy.get(package, {}).get(name, ()) if named else ()  # else a hint to users
        for match in TAKEN.finditer(text) if named else ():
            for name in WORD.findall(match[2]):
                yield from self.module(f"{match[1]}.{name}")
                yield from self.lazy.get(match[1], {}).get(name, ())
        if named:
            found = {match[1] for match in COMMAND.finditer(text)} | set(WORD.findall(text))
            for word in found & self.entries.keys():
                yield from self.entries[word]

    def reach(self, *starts: str) -> set[str]:
        """All that these files lead to, over any number of edges, and they themselves."""
        seen, todo = set(starts), list(starts)
        while todo:
            for other in self.edges(todo.pop()) - seen:
                if other == ALL:
                    return set(self.files)
                seen.add(other)
                todo.append(other)
        return seen


def _beside(file: str, path: PurePosixPath) -> bool:
    return PurePosixPath(file).parent == path.parent
