"""Runs pytest in a fork of a process that has imported what the product depends on: those imports take 20 s each time.

The product itself is imported by each fork anew, from the tree that it is given, so that a changed file is seen.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

DEPENDENCIES = (
    "torch",
    "torch.distributed",
    "ray",
    "ray.util.state",
    "kubernetes.client",
    "kubernetes.config",
    "hypothesis",
    "pytest",
    "aiohttp.web",
    "kopf",
    "pydantic",
    "ruamel.yaml",
    "cyclopts",
    "rich.console",
    "prometheus_client",
    "immutables",
    "cryptography.x509",
)
PRODUCT = ("dljob", "dljob_operator")
SOURCES = ("workers", "operator")
TIMED_OUT = 124  # what timeout(1) exits with
OPTIONS = ("-W", "ignore::pytest.PytestAssertRewriteWarning")  # Hypothesis is imported before pytest can rewrite it
POLL_S = 0.05
exit_at_once = os._exit  # that of tests/unit raises in the process that runs the tests


def prepare() -> None:
    """Import the dependencies that are installed; the product must not come with them."""
    os.environ |= {"OMP_NUM_THREADS": "1", "RAY_ENABLE_AUTO_CONNECT": "0"}
    for name in DEPENDENCIES:
        with suppress(ImportError):
            importlib.import_module(name)
    loaded = [name for name in PRODUCT if name in sys.modules]
    if loaded:
        raise RuntimeError(f"{', '.join(loaded)} came with the dependencies; its forks would not see a changed file")
    gc.freeze()  # pytest collects garbage at its end: half a second with all that is imported here


def run(tree: Path, words: Sequence[str], limit_s: float) -> tuple[int, str]:
    """Pytest's exit code and what it printed; `TIMED_OUT` where it was ended. Nothing that it started outlives it."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as printed:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            _become(tree, words, printed.fileno())
        try:
            code = _ended(child, time.monotonic() + limit_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        if code is None:
            os.waitpid(child, 0)
        printed.seek(0)
        return TIMED_OUT if code is None else code, printed.read()


def _ended(child: int, until: float) -> int | None:
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(POLL_S)  # waitpid has no time limit of its own
    return None


def _become(tree: Path, words: Sequence[str], output: int) -> NoReturn:
    code = 70
    try:
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(tree)
        folders = [str(tree / each) for each in SOURCES]
        os.environ["PYTHONPATH"] = os.pathsep.join(folders)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        sys.dont_write_bytecode = False
        sys.path[:0] = folders
        sys.argv = ["pytest", *words]
        pytest = importlib.import_module("pytest")
        code = int(pytest.main([*OPTIONS, *words]))
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - the fork must not go on with its parent's work
        traceback.print_exc()
    finally:
        exit_at_once(code)
