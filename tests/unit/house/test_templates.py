"""Forms for issues and changes: a bug report asks for what a maintainer would ask for next."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from dljob.cli.main import COMMANDS

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / ".github/ISSUE_TEMPLATE"
FORMS = [file for file in sorted(FOLDER.glob("*.yml")) if file.stem != "config"]


def data(file: Path) -> Any:
    return YAML(typ="safe").load(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", FORMS, ids=lambda file: file.stem)
def test_a_form_has_what_its_page_is_drawn_from(file: Path) -> None:
    form = data(file)
    assert {"name", "description", "body"} <= set(form)
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)


def test_a_bug_report_asks_for_the_checks_and_the_cause() -> None:
    asked = {field["id"]: field for field in data(FOLDER / "bug.yml")["body"] if "id" in field}
    assert asked["doctor"]["validations"]["required"]
    assert asked["why"]["validations"]["required"]
    assert "`dljob why JOB -o json`" in asked["why"]["attributes"]["description"]


@pytest.mark.parametrize("file", FORMS, ids=lambda file: file.stem)
def test_the_commands_that_a_form_names_are_commands(file: Path) -> None:
    named = set(re.findall(r"`dljob (\w+)", file.read_text(encoding="utf-8")))
    assert named <= set(COMMANDS)


def test_vulnerabilities_are_sent_elsewhere_and_in_private() -> None:
    config = data(FOLDER / "config.yml")
    assert config["blank_issues_enabled"] is False
    assert [link["url"] for link in config["contact_links"]] == [
        "https://github.com/dljob/dljob/security/advisories/new",
    ]
    assert "private" in (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def test_the_form_of_a_change_leads_to_files_that_are_there() -> None:
    page = ROOT / ".github/PULL_REQUEST_TEMPLATE.md"
    links = re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (page.parent / link).exists()] == []
