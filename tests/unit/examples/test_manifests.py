"""What `kubectl apply` of an example brings along is what `dljob run` takes from its folder."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from dljob.plan.plan import plan
from dljob.spec.loading.load import load_file

EXAMPLES = Path(__file__).parents[3] / "examples"
FILES = sorted(EXAMPLES.glob("*/dljob.yaml"))


def documents(path: Path) -> list[dict[str, Any]]:
    return list(YAML(typ="safe", pure=True).load_all(path.read_text(encoding="utf-8")))


def imported(path: Path, folder: Path, seen: set[str]) -> set[str]:
    """A file and those of its folder that it imports, directly or not."""
    seen.add(path.name)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            other = folder / f"{name}.py"
            if other.exists() and other.name not in seen:
                imported(other, folder, seen)
    return seen


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_every_example_loads_and_plans(path: Path) -> None:
    assert plan(load_file(path)).roles


def test_the_config_map_of_hello_is_its_file() -> None:
    folder = EXAMPLES / "hello-cpu"
    job, code = documents(folder / "dljob.yaml")
    assert job["spec"]["code"]["configMap"] == code["metadata"]["name"]
    assert code["data"] == {"hello.py": (folder / "hello.py").read_text(encoding="utf-8")}


def test_the_kustomization_of_grpo_tiny_brings_all_that_its_roles_import() -> None:
    folder = EXAMPLES / "grpo-tiny"
    (kustomization,) = documents(folder / "kustomization.yaml")
    (generator,) = kustomization["configMapGenerator"]
    manifest = load_file(folder / kustomization["resources"][0])
    assert generator["name"] == manifest.spec.code.config_map
    needed: set[str] = set()
    for role in manifest.spec.roles:
        module = (role.entrypoint.class_ or "").rpartition(".")[0]
        imported(folder / f"{module}.py", folder, needed)
    assert set(generator["files"]) == needed
