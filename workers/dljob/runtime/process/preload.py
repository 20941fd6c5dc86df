"""Imports that a host may do before it knows its rank: torch, if the role's code imports it anyway.

Importing torch takes seconds and touches no device. Whether the code imports it is read from its source, so nothing of
the user's runs before its rank's environment is in place, and roles without torch stay small. A fork server also does
the imports with which a script begins, which `leading` finds and `worker.early_imports` does.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dljob.plan.role import RolePlan
from dljob.spec.variables import PRELOAD

FILES = 100
"""The most source files that are read for one role."""
HARMLESS = {
    *("bool", "bytes", "dict", "enumerate", "float", "frozenset", "int", "len", "list", "max", "min", "range", "set"),
    *("sorted", "str", "sum", "tuple", "zip", "TypeVar", "compile", "field", "namedtuple"),
    *("Path", "abspath", "dirname", "get", "getLogger", "get_logger", "getenv", "join", "resolve"),
}
"""Calls that an assignment between imports may make: they change nothing that a later import reads."""

OPTIMIZERS, OF_OPTIMIZERS = "torch.optim", ("torch._dynamo",)
"""What the first optimizer of a process imports, whether anything is compiled or not: a second of a core.

Source: torch/_compile.py, 2.15 (`_disable_dynamo`). An older torch imports it later, or not at all.
"""
_NAMED = re.compile(rb"\btorch\.optim\b|\bfrom torch import [^#\n]*\boptim\b")

Import = tuple[str, tuple[str, ...]]
"""A module, and the names that are taken from it; none where the module itself is imported."""


@dataclass(frozen=True, slots=True)
class Preload:
    """What a fork server imports before it forks ranks."""

    modules: tuple[str, ...] = ()
    """Imported as they are: torch."""
    imports: tuple[Import, ...] = ()
    """Those with which the script begins, in their order."""
    first: str = ""
    """The folder that the script has first on its import path."""
    script: str = ""
    code_dir: str = ""
    failure: str = ""
    """What became of the fork server that was to import; its successor, which imports nothing, says so to the ranks."""


def of(role: RolePlan, code_dir: str) -> Preload:
    """Return what the fork server of a role imports."""
    kind, target = role.entrypoint[:2]
    if kind != "module" or dict(role.env).get(PRELOAD) == "0":
        return Preload(modules(role, code_dir))
    first = folder(target, code_dir)
    return Preload(modules(role, code_dir), leading(target, first), str(first), target, code_dir)


def folder(target: str, code_dir: str) -> Path:
    """Return the folder that a script has first on its import path: its own, or with `-m` the code's."""
    return Path(code_dir, target).parent if target.endswith(".py") else Path(code_dir)


def modules(role: RolePlan, code_dir: str) -> tuple[str, ...]:
    """Return the modules to import early for a role."""
    grouped, names = role.comm_backend is not None, imported(role.entrypoint, code_dir)
    if not grouped and "torch" not in names:
        return ()
    return ("torch", *["torch.distributed"] * grouped, *OF_OPTIMIZERS * (OPTIMIZERS in names))


def in_background(names: tuple[str, ...]) -> threading.Thread:
    """Import modules in a thread. Join it before running any code that may import them too.

    Python lets `import torch.distributed` begin while another thread is still inside `import torch`, whose lock it does
    not take once `torch` is in sys.modules; torch's C++ half then aborts the process.
    """
    thread = threading.Thread(target=_import, args=(names,), name="dljob-preload", daemon=True)
    thread.start()
    return thread


def _import(names: tuple[str, ...]) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:  # noqa: BLE001 - the user's own import of it raises the error again
            return


def imported(entrypoint: tuple[str, ...], code_dir: str) -> frozenset[str]:
    """Return the top-level packages that a role's code imports while being imported, as far as its folder shows.

    OPTIMIZERS is among them where one of its files names it.
    """
    kind, target = entrypoint[0], entrypoint[1]
    # A command's program is not known to be Python.
    if kind == "command":
        return frozenset()
    root = Path(code_dir)
    module = target.rpartition(".")[0] if kind == "class" else target
    # Imports are followed through the files of the code's folder; of packages elsewhere the name is enough.
    waiting = [root / target] if target.endswith(".py") else list(_files(root, module))
    read_paths: set[Path] = set()
    packages: set[str] = set()
    while waiting and len(read_paths) < FILES:
        path = waiting.pop()
        if path in read_paths:
            continue
        read_paths.add(path)
        if _NAMED.search(_source(path)):
            packages.add(OPTIMIZERS)
        for name in _names(path, root):
            packages.add(name.partition(".")[0])
            waiting += _files(root, name)
    return frozenset(packages)


def _files(root: Path, module: str) -> Iterator[Path]:
    """Yield the source files under `root` that importing a module executes: its packages' and its own."""
    path = root
    for part in module.split("."):
        path = path / part
        for candidate in (path / "__init__.py", path.with_suffix(".py")):
            if candidate.is_file():
                yield candidate


def _source(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _names(path: Path, root: Path) -> Iterator[str]:
    """Yield the modules that a file imports when it is executed, as absolute names."""
    try:
        tree = ast.parse(path.read_bytes())
    # The user's own import reports it better: here it only means that nothing is preloaded.
    except (OSError, SyntaxError, ValueError):
        return
    # The package of the file, from which relative imports are resolved.
    package = path.parent.relative_to(root).parts if path.is_relative_to(root) else ()
    for node in _run_at_import(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            base += node.module.split(".") if node.module else []
            yield ".".join(base)
            # A name imported from a package may be a module of it, whose imports run, too.
            yield from (".".join([*base, alias.name]) for alias in node.names)


def _run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes except those in functions and under `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        yield child
        yield from _run_at_import(child)


def leading(target: str, first: Path) -> tuple[Import, ...]:
    """Return the imports with which a script begins, up to its first statement that does something else.

    What comes before an import may decide what it does (`os.environ["HF_HOME"] = ...`), so the list ends there. Imports
    of files below `first` are followed, never listed: such a file may be changed between two lives.
    """
    if target.endswith(".py"):
        files = [first / Path(target).name]
    else:
        files = list(_files(first, target))
        if files and files[-1].name == "__init__.py":
            files.append(files[-1].with_name("__main__.py"))
    script = _Script(first)
    all(script.follow(path) for path in files)
    return tuple(script.found)


class _Script:
    """The imports of a script, and of its own files, in the order in which they are executed."""

    def __init__(self, first: Path) -> None:
        self.found: list[Import] = []
        self._first = first
        self._seen: set[Path] = set()

    def follow(self, path: Path) -> bool:
        """Add the imports of a file; False where it does something else, and nothing after it may be listed."""
        if path in self._seen:
            return True
        self._seen.add(path)
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            return False
        package = path.parent.relative_to(self._first).parts if path.is_relative_to(self._first) else ()
        return len(self._seen) <= FILES and self._run(tree.body, package)

    def _run(self, body: Iterable[ast.stmt], package: tuple[str, ...]) -> bool:
        return all(self._statement(statement, package) for statement in body)

    def _statement(self, node: ast.stmt, package: tuple[str, ...]) -> bool:
        match node:
            case ast.Import():
                return all(self._import(alias.name, ()) for alias in node.names)
            case ast.ImportFrom():
                base = package[: len(package) - node.level + 1] if node.level else ()
                name = ".".join([*base, *(node.module or "").split(".")]).strip(".")
                return self._import(name, tuple(alias.name for alias in node.names if alias.name != "*"))
            case ast.Try():
                return self._run(node.body, package) and self._run(node.orelse, package)
            case ast.If():
                # Of other conditions nobody knows here whether they hold.
                return any(name in ast.dump(node.test) for name in ("TYPE_CHECKING", "__name__"))
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                return all(isinstance(target_node, (ast.Name, ast.Tuple)) for target_node in targets) and _harmless(
                    node
                )
            case ast.Expr():
                return isinstance(node.value, ast.Constant)
            case _:
                return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Pass))

    def _import(self, name: str, names: tuple[str, ...]) -> bool:
        own_files = list(_files(self._first, name))
        for imported_name in names:
            own_files += [
                path
                for path in _files(self._first, f"{name}.{imported_name}" if name else imported_name)
                if path not in own_files
            ]
        if own_files:
            return all(self.follow(path) for path in own_files)
        # dljob is in the fork server anyway, and so is most of the standard library.
        if name and name.partition(".")[0] not in {"dljob", *sys.stdlib_module_names}:
            self.found.append((name, names))
        return True


def _harmless(node: ast.AST) -> bool:
    """Whether the calls in a statement change nothing that a later import reads."""
    called = (node_inside.func for node_inside in ast.walk(node) if isinstance(node_inside, ast.Call))
    return all(
        (
            node_inside.id
            if isinstance(node_inside, ast.Name)
            else node_inside.attr
            if isinstance(node_inside, ast.Attribute)
            else ""
        )
        in HARMLESS
        for node_inside in called
    )
