"""The site has every page of the documentation, and builds without a warning."""

from __future__ import annotations

import base64
import json
import mimetypes
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import browser
import pytest

import dljob

ROOT = Path(__file__).parents[3]


KNOWN = {
    "docs/a.md": "a.md",
    "docs/howto/b.md": "howto/b.md",
    "examples/x/README.md": "recipes/x.md",
    "docs/i.png": "i.png",
}


@pytest.mark.parametrize(
    ("source", "link", "staged"),
    [
        ("docs/a.md", "howto/b.md#part", "howto/b.md#part"),
        ("docs/howto/b.md", "../a.md", "../a.md"),
        ("docs/howto/b.md", "../../examples/x/README.md", "../recipes/x.md"),
        ("docs/a.md", "../examples/x", "recipes/x.md"),
        ("examples/x/README.md", "../../docs/i.png", "../i.png"),
        ("docs/a.md", "../tests/test_a.py", "https://files/tests/test_a.py"),
        ("docs/a.md", "../charts", "https://files/charts"),
        ("docs/howto/b.md", "../adr/0001-c.md#d", "https://files/docs/adr/0001-c.md#d"),
        ("docs/a.md", "#part", "#part"),
        ("docs/a.md", "https://elsewhere/b.md", "https://elsewhere/b.md"),
    ],
)
def test_a_link_leads_to_its_page_in_the_site_or_to_the_repository(
    site: ModuleType, source: str, link: str, staged: str
) -> None:
    assert site.staged(f"see [it]({link}).", source, KNOWN, "https://files") == f"see [it]({staged})."


def test_code_keeps_its_brackets_and_comments_about_tests_are_left_out(site: ModuleType) -> None:
    text = (
        "One.\n\n<!-- run by: tests/a.py::test_b -->\n```console\n$ f[x](y)\n```\n\n<details><summary>More</summary>\n"
    )
    staged = "One.\n\n```console\n$ f[x](y)\n```\n\n<details markdown><summary>More</summary>\n"
    assert site.staged(text, "docs/a.md", KNOWN, "https://files") == staged


def named(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from named(entry)


def test_each_page_stands_in_the_navigation_once(site: ModuleType, tmp_path: Path) -> None:
    config = site.stage(ROOT, tmp_path)
    pages = {path.relative_to(tmp_path / "docs").as_posix() for path in (tmp_path / "docs").rglob("*.md")}
    shown = list(named(json.loads(config.read_text())["nav"]))
    assert sorted(shown) == sorted(pages)


def test_decision_records_stay_out_of_the_site(site: ModuleType) -> None:
    assert [source for source in site.pages(ROOT) if "adr/" in source] == []


def test_the_python_page_has_every_public_name() -> None:
    text = (ROOT / "docs" / "reference" / "python.md").read_text()
    shown = set(re.findall(r"^::: [\w.]+\.(\w+)$", text, re.M)) | set(
        re.findall(r"\w+", text.partition("members: [")[2])
    )
    assert sorted(set(dljob.__all__) - shown) == []


def test_the_page_of_variables_has_each_of_ours() -> None:
    """As strings of the product, whole: `DLJOB_HOME`."""
    text = (ROOT / "docs" / "reference" / "environment.md").read_text()
    files = [path for folder in ("workers", "operator") for path in (ROOT / folder).rglob("*.py")]
    names = {name for path in files for name in re.findall(r"[\"'](DLJOB_[A-Z_]+[A-Z])[\"']", path.read_text())}
    assert sorted(name for name in names if f"`{name}`" not in text) == []
    assert "DLJOB_HOME" in names


class Reader(browser.Browser):
    """A browser for which the built site is all there is: every other request fails."""

    def __init__(self, site: Path) -> None:
        self.site = site
        self.answers = 1_000_000  # beyond the numbers of commands whose answer is waited for
        super().__init__()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        if method == "Page.navigate":
            super().call("Fetch.enable")
        return super().call(method, **params)

    def _read(self, end: float) -> dict[str, Any]:
        message = super()._read(end)
        if message.get("method") == "Fetch.requestPaused":
            self.answer(message)
        return message

    def answer(self, paused: dict[str, Any]) -> None:
        """Without a wait for the browser's answer: it is among those that nobody asks for."""
        url, request = urlsplit(paused["params"]["request"]["url"]), paused["params"]["requestId"]
        file = self.site / url.path.lstrip("/")
        params: dict[str, Any] = {"requestId": request, "errorReason": "NameNotResolved"}
        method = "Fetch.failRequest"
        if url.netloc == "docs.example" and file.is_file():
            kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
            body = base64.b64encode(file.read_bytes()).decode()
            headers = [{"name": "Content-Type", "value": kind}]
            params = {"requestId": request, "responseCode": 200, "responseHeaders": headers, "body": body}
            method = "Fetch.fulfillRequest"
        self.answers += 1
        sent = {"id": self.answers, "method": method, "params": params, "sessionId": paused["sessionId"]}
        data = memoryview(json.dumps(sent).encode() + b"\0")
        while data:
            data = data[os.write(self.to_write, data) :]

    def until(self, condition: str) -> None:
        """Wait for a condition of the page, which may become true without a request."""
        look = f"{condition} ? done() : setTimeout(look, 50)"
        self.run(f"new Promise((done) => {{ const look = () => {look}; look(); }})")

    def troubles(self) -> list[str]:
        """What a page asked for and did not get, and its errors."""
        return [line for line in self.complaints() if not line.startswith("request: http://docs.example/")]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "build.py", site], capture_output=True, text=True, check=False
    )
    if "npm did not give" in done.stderr:
        pytest.skip("no npm registry")
    assert done.returncode == 0, done.stdout + done.stderr
    return site


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_page_of_the_site_opens_without_a_network(built: Path) -> None:
    if browser.missing():
        pytest.skip(browser.missing())
    reader = Reader(built)
    try:
        wrong: dict[str, list[str]] = {}
        pages = sorted(path.relative_to(built).as_posix() for path in built.rglob("*.html"))
        for page in pages:
            reader.open(f"http://docs.example/{page}")
            reader.settle()
            if troubles := reader.troubles():
                wrong[page] = troubles
        assert wrong == {}
        assert len(pages) > 90
        reader.open("http://docs.example/architecture.html")
        diagrams = (ROOT / "docs" / "architecture.md").read_text().count("```mermaid")
        drawn = "[...document.querySelectorAll('div.mermaid')].filter((each) => each.offsetHeight > 50).length"
        reader.until(f"{drawn} === {diagrams}")
        reader.open("http://docs.example/index.html")
        reader.press("/")
        for letter in "goodput":
            reader.press(letter)
        result = "each.shadowRoot?.querySelector('a[href*=\"ledger.html\"]')"
        reader.until(f"[...document.querySelectorAll('*')].some((each) => {result})")
    finally:
        reader.close()
