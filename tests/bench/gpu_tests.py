"""What each test of the tier `gpu` ran on: gpu_tests.json, of which a section of docs/benchmarks.md is made.

    make test ARGS="gpu -- --keep"        # run them, and write what they ran on
    python tests/bench/gpu_tests.py       # write the page again

Only the standard library is imported: the Python of a machine with a GPU runs this, too.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KEPT = HERE / "gpu_tests.json"
PAGE = ROOT / "docs" / "benchmarks.md"
TESTS = ROOT / "tests" / "ray" / "gpu"
BEGIN, END = "<!-- gpu tests -->", "<!-- end of gpu tests -->"
HEAD = ("| test | GPU, driver, torch | when | |", "| --- | --- | --- | --- |")

Ran = dict[str, dict[str, Any]]
"""Test -> GPU, driver, torch, day, outcome, and where they were written down seconds and figures."""


def known() -> Ran:
    """Return what is kept."""
    return json.loads(KEPT.read_text())


def names() -> list[str]:
    """Return the tests that there are, in their order."""
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in sorted(TESTS.glob("test_*.py"))]
    functions = [each for tree in trees for each in tree.body if isinstance(each, ast.FunctionDef)]
    return [each.name for each in functions if each.name.startswith("test_")]


def keep(ran: Mapping[str, Mapping[str, Any]], facts: Mapping[str, str]) -> None:
    """Add what was run to what is kept, without tests that are no more, and write the page."""
    everything = known() | {name: {**facts, **words} for name, words in ran.items()}
    there = {name: everything[name] for name in names() if name in everything}
    KEPT.write_text(json.dumps(there, indent=1) + "\n")
    write(there)


def write(ran: Ran) -> None:
    """Write the page."""
    PAGE.write_text(rendered(PAGE.read_text(), ran))


def line(name: str, ran: Ran) -> str:
    """Return the row of a test."""
    words = name.removeprefix("test_").replace("_", " ")
    own = ran.get(name)
    if own is None:
        return f"| {words} | not run | | |"
    where = f"{own['gpu']}, driver {own['driver']}, torch {own['torch']}"
    figures = {key: value for key, value in own.items() if key not in ("gpu", "driver", "torch", "when", "outcome")}
    took = f"{figures.pop('seconds')} s" if "seconds" in figures else ""
    told = "; ".join(filter(None, [took, *(f"{key}: {value}" for key, value in figures.items())]))
    return f"| {words} | {where} | {own['when']} | {own['outcome']}{f', {told}' if told else ''} |"


def rendered(page: str, ran: Ran) -> str:
    """Return the page with what is kept."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    made = "\n".join([*HEAD, *(line(name, ran) for name in names())])
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{after}"


if __name__ == "__main__":
    write(known())
