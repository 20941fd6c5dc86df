"""Imports that a host may do before it knows its rank: torch, if the role's code imports it anyway.

Importing torch takes seconds and touches no device. Whether the code imports it is read from its source, so nothing of
the user's runs before its rank's environment is in place, and roles without torch stay small.
"""

from __future__ import annotations

import ast
import importlib
import threading
from collections.abc import Iterator
from pathlib import Path

from dljob.plan.role import RolePlan

FILES = 100
"""The most source files that are read for one role."""


def modules(role: RolePlan, code_dir: str) -> tuple[str, ...]:
    """Return the modules to import early for a role."""
    grouped = role.comm_backend is not None
    if grouped or "torch" in imported(role.entrypoint, code_dir):
        return ("torch", "torch.distributed") if grouped else ("torch",)
    return ()


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
    """Return the top-level packages that a role's code imports while being imported, as far as its folder shows."""
    kind, target = entrypoint[0], entrypoint[1]
    # A command's program is not known to be Python.
    if kind == "command":
        return frozenset()
    root = Path(code_dir)
    module = target.rpartition(".")[0] if kind == "class" else target
    # Imports are followed through the files of the code's folder; of packages elsewhere the name is enough.
    waiting = [root / target] if target.endswith(".py") else list(_files(root, module))
    seen: set[Path] = set()
    found: set[str] = set()
    while waiting and len(seen) < FILES:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        for name in _names(path, root):
            found.add(name.partition(".")[0])
            waiting += _files(root, name)
    return frozenset(found)


def _files(root: Path, module: str) -> Iterator[Path]:
    """Yield the source files under `root` that importing a module executes: its packages' and its own."""
    path = root
    for part in module.split("."):
        path = path / part
        for candidate in (path / "__init__.py", path.with_suffix(".py")):
            if candidate.is_file():
                yield candidate


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
