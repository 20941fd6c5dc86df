"""One version in all that a release holds: pyproject.toml's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import versions

WHEELS = ("dljob", "dljob-operator", "dljob-tools")
FOUND = {"pyproject.toml": "1.2.0", "uv.lock": "1.2.0", "Chart.yaml version": "1.2.0"}


def test_every_place_has_the_version_of_the_project(root: Path) -> None:
    found = versions.places(root)
    wheels = {"operator/pyproject.toml", "workers/tools/pyproject.toml", *(f"uv.lock {name}" for name in WHEELS)}
    pins = {place for place in found if place.partition(" ")[2].startswith("dljob") and "uv.lock" not in place}
    assert {*found} - pins == {"pyproject.toml", "Chart.yaml version", "Chart.yaml appVersion", "CHANGELOG.md", *wheels}
    assert {place.rpartition(" ")[2].partition("[")[0] for place in pins} == {*WHEELS}
    assert versions.differences(found) == []


def prose(page: Path) -> str:
    """The text of a page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def test_no_page_and_no_template_repeats_the_version(root: Path) -> None:
    """It would be wrong after the next release. "From dljob 0.1.0 on" stays right, and so does what a block shows."""
    repeated = re.compile(rf"(?<![\d.])(?<!From dljob ){re.escape(versions.version(root))}(?![\d.])")
    pages = [
        root / "README.md",
        root / "Dockerfile",
        root / "SECURITY.md",
        *(root / "charts/dljob/templates").iterdir(),
    ]
    pages += [page for page in (root / "docs").rglob("*.md") if page.parent.name != "adr"]
    found = [page.name for page in pages if page.is_file() and repeated.search(prose(page))]
    assert found == []


def test_a_place_with_another_version_is_named() -> None:
    wrong = versions.differences({**FOUND, "uv.lock": "1.1.0"})
    assert wrong == ["uv.lock says 1.1.0, pyproject.toml says 1.2.0"]


@pytest.mark.parametrize(("tag", "wrong"), [("v1.2.0", 0), ("", 0), ("1.2.0", 1), ("v1.3.0", 1)])
def test_the_tag_of_a_release_names_its_version(tag: str, wrong: int) -> None:
    assert len(versions.differences(FOUND, tag)) == wrong


def test_a_release_needs_a_dated_section_of_the_changelog() -> None:
    assert versions.unreleased("# Changelog\n\n## 1.2.0, 2027-01-31\n\n## 1.1.0, not released\n") == []
    assert len(versions.unreleased("# Changelog\n\n## 1.2.0, not released yet\n")) == 1
    assert len(versions.unreleased("# Changelog\n")) == 1


def test_the_script_fails_for_a_tag_of_another_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert versions.main([]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == (f"{versions.version()}\n", "")
    assert versions.main(["--tag", "v0.0.1"]) == 1
    assert f"the tag is v0.0.1, pyproject.toml asks for v{versions.version()}" in capsys.readouterr().err
    assert versions.main(["--taq", "v0.0.1"]) == 2


def test_a_line_that_is_missing_is_told_as_a_difference() -> None:
    assert versions._line("name: dljob\n", "version") == "no line"


def test_the_notes_of_a_release_are_its_section_of_the_changelog(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        versions.notes("# Changelog\n\n## 1.2.0, 2027-01-31\n\n- One.\n\n## 1.1.0, 2026-01-31\n\n- Two.\n")
        == "- One.\n"
    )
    assert versions.main(["--notes"]) == 0
    assert "### Added" in capsys.readouterr().out
