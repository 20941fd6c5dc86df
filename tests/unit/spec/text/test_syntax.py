"""What is said of a text that is no YAML: what was found and what is wanted, in words that users know."""

from __future__ import annotations

import re

import pytest

from dljob.errors import SpecError
from dljob.spec.loading.load import load
from dljob.spec.text import syntax

GRAMMAR = re.compile(r"<\w|\bscalar|\bflow |\bblock (node|collection|mapping)|\('|mapping values|while ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('"abc" def\n', "1:7: not YAML: found a text behind the end of the document"),
        ("hello world\nfoo: bar\n", "2:4: not YAML: found ': ' where no key can be (put a text with"),
        ("%a\n", "2:1: not YAML: found the end of the file behind a directive"),
        ("a: 1\n- b\n", "2:1: not YAML: in the mapping of line 1: found '-' where the next line of the block"),
        ("- b\na: 1\n", "2:1: not YAML: in the list of line 1: found a key where the next line of the block"),
        ("a: [1, 2\nb: 3\n", "2:2: not YAML: in the list [ of line 1: found ':', wanted is ',' or ']'"),
        ("a: }\n", "1:4: not YAML: found '}' where a value is wanted"),
        ('a: "x\n', "2:1: not YAML: in the quotes of line 1: found the end of the file within quotes (close"),
        ("a: 1\nb\nc: 2\n", "3:1: not YAML: in the key of line 2: found a line that is no `key: value`"),
        ("{a: 1}}\n", "1:7: not YAML: found '}' behind the end of the document"),
        ("a: *x\n", "1:4: not YAML: found undefined alias 'x'"),
        ("a: 1\n{b\n: 2\n", "not YAML: in the key of line 2: found a line that is no `key: value`"),
        ("a text\n", "1:1: is a text: a DLJob is a mapping"),
        ("[a]\n", "1:1: is a list: a DLJob is a mapping"),
        ("7\n", "1:1: is 7: a DLJob is a mapping"),
    ],
)
def test_a_file_that_is_no_yaml_is_told_without_words_of_the_grammar(text: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        load(text, file="job.yaml")
    words = "\n".join(map(str, caught.value.problems))
    assert said in words
    assert "job.yaml:" in words
    assert not GRAMMAR.search(words)


def test_an_expectation_of_the_scanner_is_told_as_it_is() -> None:
    problem = "expected a digit, but found 'x'"
    assert syntax.plain(problem) == (problem, "")
