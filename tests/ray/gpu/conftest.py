"""The tests on a GPU: skipped without one, one at a time, and kept with what they ran on where that is asked for."""

from __future__ import annotations

import importlib
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE)]
pytest.register_assert_rewrite("gpu_kit")
import gpu_environment  # noqa: E402 - found by the path above

RAN = pytest.StashKey[dict[str, dict[str, Any]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--keep", action="store_true", help="write into docs/benchmarks.md on what each test ran")


@pytest.fixture(autouse=True, scope="session")
def _gpu() -> None:
    """Skip all tests of this folder where there is no GPU."""
    try:
        gpu_environment.gpu()
    except gpu_environment.NotToBeHadError as error:
        pytest.skip(str(error))


@pytest.fixture
def place(tmp_path: Path) -> Any:
    """Return a folder with the code of the jobs, where `dljob` runs."""
    from gpu_kit import made

    return made(tmp_path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.when == "call" and not report.skipped:
        figures = dict(item.user_properties)
        words = {"outcome": report.outcome, "seconds": round(report.duration, 1), **figures}
        item.config.stash.setdefault(RAN, {})[item.name] = words
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    ran = session.config.stash.get(RAN, {})
    if not ran or not session.config.getoption("--keep", default=False):
        return
    sys.path[:0] = [str(HERE.parents[1] / "bench")]
    kept = importlib.import_module("gpu_tests")
    kept.keep(ran, gpu_environment.facts(sys.executable) | {"when": datetime.now(UTC).strftime("%Y-%m-%d")})
