"""The tests on a GPU: skipped without one, one at a time, and kept with what they ran on where that is asked for."""

from __future__ import annotations

import importlib
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "bench")]
pytest.register_assert_rewrite("gpu_kit")
import gpu_environment  # noqa: E402 - found by the path above

FACTS = pytest.StashKey[dict[str, str]]()
"""What the tests run on, where that is kept with each."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--keep", action="store_true", help="write into docs/benchmarks.md on what each test ran")


@pytest.fixture(autouse=True, scope="session")
def _gpu(request: pytest.FixtureRequest) -> None:
    """Skip all tests of this folder where there is no GPU; learn what they run on, before they take all of it."""
    try:
        gpu_environment.gpu()
        if request.config.getoption("--keep", default=False):
            day = {"when": datetime.now(UTC).strftime("%Y-%m-%d")}
            request.config.stash[FACTS] = gpu_environment.facts(sys.executable) | day
    except gpu_environment.NotToBeHadError as error:
        pytest.skip(str(error))


@pytest.fixture
def place(tmp_path: Path) -> Any:
    """Return a folder with the code of the jobs, where `dljob` runs."""
    from gpu_kit import made

    return made(tmp_path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Keep each result as it comes: the time on a GPU may end before the tests do."""
    report = yield
    facts = item.config.stash.get(FACTS, None)
    if report.when == "call" and not report.skipped and facts is not None:
        words = {"outcome": report.outcome, "seconds": round(report.duration, 1), **dict(item.user_properties)}
        importlib.import_module("gpu_tests").keep({item.name: words}, facts)
    return report
