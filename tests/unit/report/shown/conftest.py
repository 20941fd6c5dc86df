"""Pages of made-up jobs in a headless Chromium, one for the folder: it starts in a second."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dljob.report.page import html

sys.path.insert(0, str(Path(__file__).parents[3] / "kits"))
import browser as chromium
import page_jobs

JOBS: dict[str, Callable[[], dict[str, Any]]] = {
    "rl": lambda: page_jobs.rl_job(ranks=120, hours=2, events=400, incidents=6),
    "never": page_jobs.never_started,
    "none": page_jobs.no_ranks,
    "hostile": page_jobs.hostile,
    "restless": lambda: page_jobs.rl_job(ranks=16, hours=24, events=3000, incidents=1200),
    "large": lambda: page_jobs.rl_job(ranks=10_000, events=10_000),
}
Show = Callable[..., chromium.Browser]


@pytest.fixture(scope="session")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Write the page of a made-up job, once."""
    folder = tmp_path_factory.mktemp("pages")

    def write(name: str) -> Path:
        file = folder / f"{name}.html"
        if not file.exists():
            file.write_text(html(JOBS[name]()), encoding="utf-8")
        return file

    return write


@pytest.fixture(scope="session")
def chrome() -> Iterator[chromium.Browser]:
    if why := chromium.missing():
        pytest.skip(why)
    with chromium.browser() as made:
        yield made


@pytest.fixture
def show(chrome: chromium.Browser, page_file: Callable[[str], Path]) -> Show:
    """Show the page of a made-up job."""

    def shown(name: str, width: int = 1440, *, dark: bool = False) -> chromium.Browser:
        chrome.open(page_file(name).as_uri(), width, dark=dark)
        chrome.run("page.ready")
        chrome.settle()
        return chrome

    return shown
