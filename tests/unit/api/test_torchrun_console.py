"""Which of the ranks' lines reach the console, by torchrun's log options."""

from __future__ import annotations

import pytest

from dljob.api import torchrun_line
from dljob.api.torchrun_console import Console, console
from dljob.errors import UsageError


def of(words: str) -> Console:
    return console(torchrun_line.read([*words.split(), "x.py"], {}), 2, hostname="h0")


@pytest.mark.parametrize(
    ("words", "prefixes"),
    [
        ("", [""] * 4),
        ("-r 3", [None] * 4),
        ("--redirects=1:3", ["", None, "", None]),
        ("--tee 3", ["[W0]:", "[W1]:", "[W0]:", "[W1]:"]),
        ("-r 3 --tee 0:3", ["[W0]:", None, "[W0]:", None]),
        ("--local-ranks-filter 1", [None, "", None, ""]),
        ("-t 1:3,0:0 --log-line-prefix-template ${role_name}/${rank}>$x", ["", "W/1>$x", "", "W/3>$x"]),
        ("-t 3 --log-line-prefix-template=${hostname}:${rank}:", ["h0:0:", "h0:1:", "h0:2:", "h0:3:"]),
    ],
)
def test_lines_of_ranks_have_their_prefix_and_are_filtered_as_under_torchrun(
    words: str, prefixes: list[str | None]
) -> None:
    assert [of(f"--role W {words}").prefix("w", rank) for rank in range(4)] == prefixes


def test_a_role_without_a_name_has_none_before_its_lines() -> None:
    line = torchrun_line.read(["--role=", "--tee=3", "x.py"], {})
    assert console(line, 2, hostname="h0").prefix("role", 1) == "[1]:"


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
