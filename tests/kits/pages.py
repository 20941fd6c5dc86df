"""The code blocks of README and the how-tos, and what a page's source says of each in an HTML comment before it.

`<!-- checked: needs a GPU -->`: no test can run it; it is validated, planned, parsed or type-checked. The comment may
go on in YAML: the Python `before` it.
`<!-- run by: tests/kube/test_x.py::test_y -->`: that test runs it.
`<!-- in a job: ... -->`: it runs as a job on a Ray. The comment is YAML: its `roles` (without, the block is a script),
other fields of the spec, the `phase` it ends in, and the Python `before` and `after` it that it leaves to its reader.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs" / "howto").glob("*.md")))
BLOCK = re.compile(
    r"(?:^<!-- (?P<key>[a-z ]+): ?(?P<value>(?:(?!-->).)*?)-->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.M | re.S,
)


@dataclass(frozen=True, slots=True)
class Block:
    """One code block."""

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
        """Whether no test runs it."""
        return self.key == "checked"

    @property
    def kind(self) -> str:
        """What it is: text (what a program says), commands, manifest, part (of a spec), faults, python, toml."""
        if self.language == "yaml":
            if "kind: DLJob" in self.text:
                return "manifest"
            return "faults" if "fault:" in self.text else "part"
        return "commands" if self.language in ("console", "sh") else self.language

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command, without comments; what it prints is left out."""
        text = self.text.replace("\\\n", " ")
        lines = [line[2:] for line in text.splitlines() if line.startswith("$ ")] or text.splitlines()
        return [words for line in lines if (words := shlex.split(line, comments=True))]

    @property
    def needs(self) -> str:
        """What tests lack to run it."""
        return self.value.partition("\n")[0] if self.marked else ""

    @property
    def job(self) -> dict[str, Any]:
        """What its comment says of the job that it runs in, and of the Python around it."""
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
