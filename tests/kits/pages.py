"""The code blocks of README and the how-tos, with the HTML comment before each that says how it is checked.

`<!-- checked: needs a GPU -->`: no test can run it; it is validated, planned, parsed or type-checked. The comment may
go on in YAML: the Python `before` it.
`<!-- run by: tests/kube/test_x.py::test_y -->`: that test runs it.
`<!-- in a job: ... -->`: it runs as a job on Ray. Its comment is YAML: `roles` (without them the block is a script),
other fields of the spec, the `phase` it ends in, and Python to run `before` and `after` it, which the page leaves out.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
GUIDES = ("docs/getting-started.md", "docs/tutorial.md", "tests/kube/README.md")
PAGES = (ROOT / "README.md", *(ROOT / guide for guide in GUIDES), *sorted((ROOT / "docs" / "howto").glob("*.md")))
BLOCK = re.compile(
    r"(?:^<!-- (?P<key>[a-z ]+): ?(?P<value>(?:(?!-->).)*?)-->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.M | re.S,
)


@dataclass(frozen=True, slots=True)
class Block:
    """A code block of a page."""

    page: str
    line: int
    language: str
    text: str
    key: str = ""
    value: str = ""

    @property
    def id(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def marked(self) -> bool:
        """Return whether its comment says that no test can run it."""
        return self.key == "checked"

    @property
    def kind(self) -> str:
        """Return its kind: text (of a program), commands, manifest, part (of a spec), faults, python, toml or lua."""
        if self.language == "yaml":
            if "kind: DLJob" in self.text:
                return "manifest"
            return "faults" if "fault:" in self.text else "part"
        return "commands" if self.language in ("console", "sh") else self.language

    @property
    def commands(self) -> list[list[str]]:
        """Return the words of each command, without comments and without printed output."""
        text = self.text.replace("\\\n", " ")
        lines = [line[2:] for line in text.splitlines() if line.startswith("$ ")] or text.splitlines()
        return [words for line in lines if (words := shlex.split(line, comments=True))]

    @property
    def needs(self) -> str:
        """Return what tests lack to run it, from its comment."""
        return self.value.partition("\n")[0] if self.marked else ""

    @property
    def job(self) -> dict[str, Any]:
        """Return the parsed `in a job` comment: fields of the job, and the Python around the block."""
        return yaml.safe_load(self.value.partition("\n")[2] if self.marked else self.value) or {}


def _blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page.name,
            text.count("\n", 0, match.start("text")),
            match["language"],
            match["text"],
            match["key"] or "",
            (match["value"] or "").strip(),
        )
        for match in BLOCK.finditer(text)
    ]


BLOCKS = [block for page in PAGES for block in _blocks(page)]
