"""Which of the ranks' lines reach the console, by torchrun's log options."""

from __future__ import annotations

import pytest

from dljob.api import torchrun_line
from dljob.api.torchrun_console import Console, console
from dljob.errors import UsageError


def of(words: str) -> Console:
    return console(torchrun_line.read([*words.split(), "x.py"], {}), 2)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("", ["a", "a", "a", "a"]),
        ("-r 3", [None] * 4),
        ("--redirects=1:3", ["a", None, "a", None]),
        ("--tee 3", ["[w0]:a", "[w1]:a", "[w0]:a", "[w1]:a"]),
        ("-r 3 --tee 0:3", ["[w0]:a", None, "[w0]:a", None]),
        ("--local-ranks-filter 1", [None, "a", None, "a"]),
        ("-t 1:3,0:0 --log-line-prefix-template ${role_name}/${rank}>$x", ["a", "w/1>$xa", "a", "w/3>$xa"]),
    ],
)
def test_lines_of_four_ranks_on_two_machines(words: str, shown: list[str | None]) -> None:
    assert [of(words).shown("w", rank, "a") for rank in range(4)] == shown


@pytest.mark.parametrize("words", ["-r 4", "--tee=a", "-t 0:3,", "--local-ranks-filter=a,1"])
def test_what_makes_no_sense_is_refused(words: str) -> None:
    with pytest.raises(UsageError) as refused:
        of(words)
    assert refused.value.hint.startswith("write --")
