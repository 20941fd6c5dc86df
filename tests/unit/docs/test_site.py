"""The site has every page of the documentation, and builds without a warning."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dljob

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def site() -> ModuleType:
    found = importlib.util.spec_from_file_location("docs_build", ROOT / "docs" / "build.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


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
        for one in nav.values() if isinstance(nav, dict) else nav:
            yield from named(one)


def test_each_page_stands_in_the_navigation_once(site: ModuleType, tmp_path: Path) -> None:
    config = site.stage(ROOT, tmp_path)
    pages = {path.relative_to(tmp_path / "docs").as_posix() for path in (tmp_path / "docs").rglob("*.md")}
    shown = list(named(json.loads(config.read_text())["nav"]))
    assert sorted(shown) == sorted(pages)


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
    found = {name for path in files for name in re.findall(r"[\"'](DLJOB_[A-Z_]+[A-Z])[\"']", path.read_text())}
    assert sorted(name for name in found if f"`{name}`" not in text) == []
    assert "DLJOB_HOME" in found


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "build.py", tmp_path / "site"], capture_output=True, text=True, check=False
    )
    if "npm did not give" in done.stderr:
        pytest.skip("no npm registry")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "index.html").exists()
    assert len(list((tmp_path / "site" / "adr").glob("*.html"))) > 70
