"""The page of versions says what the package declares, and what is locked for the tests."""

from __future__ import annotations

import re
import tomllib

import pytest
from pages import ROOT

PAGE = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
ROWS = {
    part: (supported, tested)
    for part, supported, tested in re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", PAGE, re.M)
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def locked(name: str) -> str:
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    return next(package["version"] for package in packages if package["name"] == name)


def module(name: str, file: str = "go.mod") -> str:
    text = (ROOT / "tests" / "kube" / "cluster" / "go" / file).read_text()
    return re.search(rf"{re.escape(name)} v(\S+)", text)[1]  # pyright: ignore


def chart() -> str:
    return re.search(r'kubeVersion: "(\S+)-0"', (ROOT / "charts" / "dljob" / "Chart.yaml").read_text())[1]  # pyright: ignore


def bound(extra: str, name: str) -> str:
    return next(line for line in EXTRAS[extra] if line.startswith(name)).partition(" ;")[0]


@pytest.mark.parametrize(
    ("part", "supported", "tested"),
    [
        ("Python", PROJECT["requires-python"], "3.11"),
        ("Ray", bound("runtime", "ray[default]").removeprefix("ray[default]=="), locked("ray")),
        ("PyTorch", bound("torch", "torch").removeprefix("torch"), locked("torch")),
        ("Kubernetes", chart().removesuffix(".0"), module("k8s.io/kubernetes")),
        ("KubeRay", "1.6", module("github.com/ray-project/kuberay/ray-operator", "kuberay/go.mod")),
        ("Helm", "3", module("helm.sh/helm/v4")),
        ("Kubernetes client for Python", bound("kubernetes", "kubernetes").removeprefix("kubernetes"), "locked"),
        ("openYuanrong SDK", "0.9.10", locked("openyuanrong-sdk")),
    ],
)
def test_the_page_of_versions_agrees_with_what_is_declared_and_locked(part: str, supported: str, tested: str) -> None:
    assert supported in ROWS[part][0]
    assert tested in ROWS[part][1]
