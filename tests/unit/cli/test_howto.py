"""The user's page about Kubernetes: each command on it is one that there is, with flags that it takes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from dljob.cli import main
from dljob.control import names

PAGES = Path(__file__).parents[3] / "docs" / "howto"
PAGE = (PAGES / "kubernetes.md").read_text()
LINES = [*PAGE.splitlines(), *(PAGES / "suspend.md").read_text().splitlines()]
COMMANDS = [line.strip() for line in LINES if line.startswith("    dljob ")]


def test_there_are_some() -> None:
    assert {line.split()[1] for line in COMMANDS} >= {
        "submit",
        "run",
        "status",
        "logs",
        "events",
        "restart",
        "suspend",
        "resume",
        "stop",
    }


@pytest.mark.parametrize("line", COMMANDS)
def test_the_command_is_taken(line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    main.build(words[0]).parse_args(words, exit_on_error=False, print_error=False)


def test_the_annotations_are_those_that_the_operator_reads() -> None:
    for name in (names.RESTART, names.RESTART_TARGET, names.STOP):
        assert f" {name}=" in PAGE
