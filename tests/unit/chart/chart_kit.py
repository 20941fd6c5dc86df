"""Helm for the chart's tests: rendered objects, or the message of a refusal."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[3]
sys.path += [str(ROOT / "tests" / "kube"), str(ROOT / "tests" / "kube" / "kits")]

from cluster import cache  # noqa: E402 - the folder above has no package

CHART = ROOT / "charts/dljob"
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def load(name: str) -> Any:
    """Return the data of a YAML file of the chart."""
    return YAML(typ="safe").load((CHART / name).read_text(encoding="utf-8"))


def find_helm() -> str | None:
    """Return the path of helm: the one that `make kube-build` built, or that on PATH."""
    try:
        return str(cache.program("helm"))
    except cache.MissingError:
        return shutil.which("helm")


class HelmError(Exception):
    """Helm failed; the text is its stderr."""


class Helm:
    """The helm program, used without a cluster."""

    def __init__(self, program: str) -> None:
        self.program = program

    def run(self, *arguments: str, values: Mapping[str, Any] | None = None) -> str:
        """Run helm; returns its output."""
        made = subprocess.run(
            [self.program, *arguments, "--values", "-"],
            input=yaml.safe_dump(dict(values or {})),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        if made.returncode:
            raise HelmError(made.stderr + made.stdout)
        return made.stdout

    def lint(self, **values: Any) -> str:
        """Run `helm lint --strict`; returns its output."""
        return self.run("lint", "--strict", str(CHART), values=values)

    def render(self, *, release_namespace: str = "here", **values: Any) -> dict[tuple[str, str], dict[str, Any]]:
        """(kind, name, in namespaces other than the release's with `namespace/` before it) -> object."""
        text = self.run("template", "dljob", str(CHART), "--namespace", release_namespace, values=values)
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for item in yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            if item:
                space = item["metadata"].get("namespace", release_namespace)
                name = item["metadata"]["name"]
                found[item["kind"], name if space == release_namespace else f"{space}/{name}"] = item
        return found
