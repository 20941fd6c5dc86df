"""Coverage tracing of unit tests: branch coverage of the pure rooms counts all tests except those named here."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Generator
from pathlib import Path

import pytest

os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
"""Make a unit test that calls Ray fail: Ray would otherwise start itself, for all tests of the process."""
HERE = Path(__file__).parent
UNTRACED = (
    *("testing/", "operator_shell/", "observability/", "chart/", "examples/", "docs/", "house/", "kube/", "api/"),
    *("compat/", "runtime/", "calls/test_cut_laws.py"),
)
"""Simulations, whole operators and code that is not pure: like slow tests and laws, they run the same lines a million
times."""
TRACED = {
    *("calls/test_completions.py", "calls/test_dispatch.py", "calls/test_split.py", "spec/test_properties.py"),
    *("master/persistence/test_codec.py", "master/state/test_pairing.py", "runtime/controller/test_checking.py"),
    *("runtime/controller/test_master_loop.py", "runtime/controller/test_rebuild.py", "runtime/job/test_driver.py"),
    *("runtime/job/test_launch_files.py", "runtime/journal/test_journal.py", "runtime/process/test_extensions.py"),
    *("runtime/process/test_outcome.py", "runtime/rpc/test_async_calls.py", "runtime/rpc/test_resuming.py"),
    *("runtime/rpc/test_talk.py", "runtime/serving/test_completion_stream.py", "runtime/worker/test_serving.py"),
}
"""Of these, files that reach pure lines which no other test reaches; in the first six it is Hypothesis that does."""

RUN = os.getpid()
exit_at_once = os._exit


def tell_who_ends(code: int) -> None:
    """End a process that a test made; raise, with the caller's stack, in the one that runs the tests."""
    if os.getpid() != RUN or "execnet" in traceback.extract_stack(limit=2)[0].filename:
        exit_at_once(code)
    # A late thread of another test may be the caller: stderr is all that surely tells which.
    os.write(2, "".join(traceback.format_stack()).encode())
    raise AssertionError(f"os._exit({code}) in the process that runs the tests")


os._exit = tell_who_ends  # pyright: ignore[reportAttributeAccessIssue] - one that raises where the real one never returns


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Run these tests untraced: what coverage traces takes three times as long.

    pytest-cov's own marker `no_cover` does nothing in a process of xdist: two collectors run there, one in the other,
    and the outer one goes on where the inner one pauses (pytest-cov 7.1).
    """
    file = item.path.relative_to(HERE).as_posix()
    repeats = file.startswith(UNTRACED) or item.get_closest_marker("hypothesis") is not None
    if item.get_closest_marker("slow") is None and (file in TRACED or not repeats):
        return (yield)
    here, elsewhere = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)  # pyright: ignore[reportArgumentType] - as threading itself has it
    try:
        return (yield)
    finally:
        threading.settrace(elsewhere)  # pyright: ignore[reportArgumentType]
        sys.settrace(here)
