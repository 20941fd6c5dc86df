"""Users' questions are answered on the first screen of one of the first results of the site's search.

The site is built and searched as it is served, without a browser; only the Python API is left out, which takes long to
read.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType

import pytest
import site_search

ROOT = Path(__file__).parents[3]
QUESTIONS = site_search.questions()


@pytest.fixture(scope="module")
def unanswered(site: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    config = site.stage(ROOT, tmp_path_factory.mktemp("search"))
    settings = json.loads(config.read_text())
    del settings["plugins"]["mkdocstrings"]
    config.write_text(json.dumps(settings))
    api = config.parent / "docs" / "reference" / "python.md"
    api.write_text(re.sub(r"^::: .*\n(?:    .*\n)*", "", api.read_text(), flags=re.M))
    process = site.generate(config)  # it may miss links to names of the Python API
    assert (config.parent / "built").is_dir(), process.stdout + process.stderr
    return site_search.unanswered(config.parent / "built")


@pytest.mark.parametrize("question", QUESTIONS, ids=[question.asked for question in QUESTIONS])
def test_one_of_the_first_results_answers(question: site_search.Question, unanswered: dict[str, list[str]]) -> None:
    assert question.asked not in unanswered, f"{question.page} should answer, found: {unanswered[question.asked]}"


def test_the_search_leaves_out_words_that_every_question_has(site: ModuleType) -> None:
    words = re.split(site.separator(), "How do I get a worker's logs in Perfetto 1.5?")
    assert [word for word in words if word.strip()] == ["get", "worker", "s", "logs", "Perfetto", "1.5"]
