"""The sources and the pure rooms under other Pythons; tests/ray/cli/test_pythons.py runs a job under each."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import sources
from pythons import ROOT, VERSIONS, environment, installed, interpreter

PURE = ("spec", "plan", "raycluster", "master", "reconcile", "telemetry", "compat")
SOURCES = [file for folder in ("workers", "operator") for file in sorted((ROOT / folder).rglob("*.py"))]
CHECK = """
import importlib, json, sys
files, names = json.load(sys.stdin)
for file in files:
    compile(open(file, encoding="utf-8").read(), file, "exec")
for module, name in names:
    found = importlib.import_module(module)
    if name and not hasattr(found, name):
        importlib.import_module(module + "." + name)
"""


@cache
def taken() -> set[tuple[str, str]]:
    """What the sources take of the standard library."""
    names: set[tuple[str, str]] = set()
    for file in SOURCES:
        for node in sources.nodes(file.read_text(encoding="utf-8")):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names |= {(node.module, alias.name) for alias in node.names}
            elif isinstance(node, ast.Import):
                names |= {(alias.name, "") for alias in node.names}
    return {each for each in names if each[0].partition(".")[0] in sys.stdlib_module_names}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_sources_are_for_this_python_too(version: str) -> None:
    python = interpreter(version)
    names = taken()
    assert len(names) > 100
    files = SOURCES if version == max(VERSIONS) else []  # what the newest compiles without a warning, others do too
    given = json.dumps([[os.fspath(file) for file in files], sorted(names)])
    done = subprocess.run(
        [python, "-W", "error", "-c", CHECK], input=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("version", VERSIONS)
def test_the_pure_rooms_pass_under_this_python(tmp_path: Path, version: str) -> None:
    tests = [os.fspath(ROOT / "tests" / "unit" / room) for room in PURE]
    options = ["-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--timeout=600", "-m", "not slow"]
    done = subprocess.run(
        [environment(version) / "bin" / "python", "-m", "pytest", *options, *tests],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": installed(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]
