"""Which of the ranks' lines reach the console, by torchrun's log options."""

from __future__ import annotations

import pytest

from dljob.api import torchrun_line
from dljob.api.torchrun_console import Console, console
from dljob.errors import UsageError


def of(words: str) -> Console:
    return console(torchrun_line.read([*words.split(), "x.py"], {}), 2, hostname="h0")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("", ["a", "a", "a", "a"]),
        ("-r 3", [None] * 4),
        ("--redirects=1:3", ["a", None, "a", None]),
        ("--tee 3", ["[W0]:a", "[W1]:a", "[W0]:a", "[W1]:a"]),
        ("-r 3 --tee 0:3", ["[W0]:a", None, "[W0]:a", None]),
        ("--local-ranks-filter 1", [None, "a", None, "a"]),
        ("-t 1:3,0:0 --log-line-prefix-template ${role_name}/${rank}>$x", ["a", "W/1>$xa", "a", "W/3>$xa"]),
        ("-t 3 --log-line-prefix-template=${hostname}:${rank}:", ["h0:0:a", "h0:1:a", "h0:2:a", "h0:3:a"]),
    ],
)
def test_lines_of_ranks_have_their_prefix_and_are_filtered_as_under_torchrun(
    words: str, shown: list[str | None]
) -> None:
    assert [of(f"--role W {words}").shown("w", rank, "a") for rank in range(4)] == shown


def test_a_role_without_a_name_has_none_before_its_lines() -> None:
    line = torchrun_line.read(["--role=", "--tee=3", "x.py"], {})
    assert console(line, 2, hostname="h0").shown("role", 1, "a") == "[1]:a"


@pytest.mark.parametrize("macro", ["$hostname", "${hostname}"])
def test_a_machine_that_is_not_known_is_not_made_up(macro: str) -> None:
    line = torchrun_line.read(["--log-line-prefix-template", f"{macro}:", "x.py"], {})
    with pytest.raises(UsageError, match="the machine of a line is not known here"):
        console(line, 2, hostname="")
    assert console(torchrun_line.read(["--log-line-prefix-template=$hostnames", "x.py"], {}), 2, hostname="")


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("PET_TEE", "a"),
        ("PET_REDIRECTS", "4"),
        ("PET_LOCAL_RANKS_FILTER", "a"),
        ("PET_LOG_LINE_PREFIX_TEMPLATE", "$hostname"),
        ("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "$hostname"),
    ],
)
def test_an_error_in_a_variable_names_the_variable(variable: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        console(torchrun_line.read(["x.py"], {variable: said}), 2, hostname="")
    assert refused.value.message.startswith(f"{variable}={said}")


@pytest.mark.parametrize("words", ["-r 4", "--tee=a", "-t 0:3,", "--local-ranks-filter=a,1"])
def test_a_console_option_that_makes_no_sense_is_refused(words: str) -> None:
    with pytest.raises(UsageError) as refused:
        of(words)
    assert refused.value.hint.startswith("write --")
