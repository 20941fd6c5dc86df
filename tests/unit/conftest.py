"""Coverage tracing of unit tests: branch coverage of the pure rooms counts all tests except those named here."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
"""Make a unit test that calls Ray fail: Ray would otherwise start itself, for all tests of the process."""
HERE = Path(__file__).parent
UNTRACED = ("testing", "operator_shell", "observability", "chart", "examples", "docs", "house", "kube", "api", "compat")
"""Simulations, whole operators and code that is not ours: like slow tests, they run the same lines a million times."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Run these tests untraced: what coverage traces takes three times as long.

    pytest-cov's own marker `no_cover` does nothing in a process of xdist: two collectors run there, one in the other,
    and the outer one goes on where the inner one pauses (pytest-cov 7.1).
    """
    if item.path.relative_to(HERE).parts[0] not in UNTRACED and item.get_closest_marker("slow") is None:
        return (yield)
    here, elsewhere = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)  # pyright: ignore[reportArgumentType] - as threading itself has it
    try:
        return (yield)
    finally:
        threading.settrace(elsewhere)  # pyright: ignore[reportArgumentType]
        sys.settrace(here)
