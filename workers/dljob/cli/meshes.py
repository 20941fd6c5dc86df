"""Meshes that the classes of a job's folder declare, read from the source without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from dljob.calls.mesh import resize_misfit
from dljob.spec.model import DLJobManifest
from dljob.spec.rules.elastic import bounded
from dljob.spec.rules.findings import Finding


def unfit_meshes(folder: Path, manifest: DLJobManifest) -> Iterator[Finding]:
    """Yield a finding for each role whose number of ranks may come to one that its mesh does not divide.

    Only a mesh written as a plain dict is read; the rank itself refuses any other when it starts.
    """
    for index, role in enumerate(manifest.spec.roles):
        path = role.entrypoint.class_
        if not path or role.type != "Actor" or not bounded(role):
            continue
        misfit = resize_misfit(_declared(folder, path), role.replicas_per_group, role.name)
        if misfit:
            loc = ("spec", "roles", index)
            words, _, hint = misfit.partition("; ")
            reads = tuple((*loc, name) for name in ("replicasPerGroup", "minReplicas", "maxReplicas"))
            yield Finding((*loc, "entrypoint", "class"), words, hint, reads)


def _declared(folder: Path, path: str) -> dict[str, int]:
    """Return the mesh of a class, given by its dotted path; empty where its source is not here or tells none."""
    names = path.split(".")
    for count in range(len(names) - 1, 0, -1):
        base = folder.joinpath(*names[:count])
        for file in (base.with_suffix(".py"), base / "__init__.py"):
            if file.is_file():
                return _read(file, names[count:])
    return {}


def _read(file: Path, names: list[str]) -> dict[str, int]:
    try:
        body = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return {}  # told when the module is imported
    for name in names:
        classes = [node for node in body if isinstance(node, ast.ClassDef) and node.name == name]
        if not classes:
            return {}
        body = classes[-1].body
    mesh: dict[str, int] = {}
    for value in (value for statement in body for value in _assigned(statement)):
        mesh = _literal(value)
    return mesh


def _assigned(statement: ast.stmt) -> Iterator[ast.expr]:
    """Yield the values that a class, or a method of it, gives to `mesh`."""
    for node in ast.walk(statement):
        match node:
            case ast.Assign(targets=targets, value=value):
                pass
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                targets = [target]
            case _:
                continue
        if any(ast.unparse(target) in ("mesh", "self.mesh") for target in targets):
            yield value


def _literal(node: ast.expr) -> dict[str, int]:
    try:
        value: object = ast.literal_eval(node)
    except ValueError:
        return {}
    return cast("dict[str, int]", value) if isinstance(value, dict) else {}
