"""The command line of torchrun is read as torchrun reads it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dljob.api import torchrun_line as ours
from dljob.errors import UsageError

run = pytest.importorskip("torch.distributed.run")


@pytest.fixture(scope="module", autouse=True)
def no_variables() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        import os

        for name in [name for name in os.environ if name.startswith("PET_")]:
            patch.delenv(name)
        yield


def actions(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {action.dest: action for action in parser._actions}


def test_every_argument_of_torchrun_is_there_with_its_default_type_and_choices() -> None:
    theirs, mine = actions(run.get_args_parser()), actions(ours.parser())
    own = {each.dest for each in ours.OURS}
    assert set(theirs) - {"print_completion"} == set(mine) - own
    for dest, action in theirs.items():
        if dest in ("print_completion", "help"):
            continue
        found = mine[dest]
        assert set(found.option_strings) == set(action.option_strings), dest
        assert (found.default, found.nargs) == (action.default, action.nargs), dest
        assert list(found.choices or ()) == list(action.choices or ()), dest
        if action.type in (int, float):
            assert found.type is action.type, dest


def test_no_argument_of_ours_is_one_of_torchruns() -> None:
    taken = {option for action in run.get_args_parser()._actions for option in action.option_strings}
    assert not taken & {option for each in ours.OURS for option in each.options}


VALUES: Mapping[Any, st.SearchStrategy[str]] = {
    int: st.integers(0, 99).map(str),
    float: st.floats(0, 9).map(str),
    str: st.sampled_from(["2", "1:4", "auto", "a=b,c=d", "host:29500", "0:3,1:3"]),
}


def prefixes(arguments: Sequence[ours.Argument]) -> list[str]:
    """Abbreviations of options, some of which stand for several of them."""
    options = [option for each in arguments for option in each.options]
    return sorted({option[:size] for option in options for size in range(3, len(option) + 1)})


SCRIPT_WORDS = st.lists(
    st.sampled_from([*prefixes((*ours.ARGUMENTS, *ours.OURS)), "-t", "-mx", "--", "-", "", "-1", "--help", "--a b"])
    | st.text(alphabet="-=antx ", max_size=5),
    max_size=5,
)


@st.composite
def lines(draw: st.DrawFn, *, abbreviated: bool = False) -> list[str]:
    words: list[str] = []
    for each in draw(st.lists(st.sampled_from(ours.ARGUMENTS), max_size=6)):
        spelling = draw(st.sampled_from(prefixes((each,)) if abbreviated else each.options))
        if each.flag:
            words.append(spelling)
            continue
        value = draw(st.sampled_from(each.choices)) if each.choices else draw(VALUES[each.kind])
        glued = spelling.startswith("--") and draw(st.booleans())
        words += [f"{spelling}={value}"] if glued else [spelling, value]
    script = draw(st.sampled_from(["train.py", "pkg.mod", "/abs/x.py"]))
    if abbreviated:
        return [*words, *draw(st.sampled_from([[], ["--"]])), script, *draw(SCRIPT_WORDS)]
    tail = draw(st.lists(st.sampled_from(["--nnodes", "7", "--debug", "-m", "--help", "--", "x y"]), max_size=4))
    return [*words, script, *tail]


@given(lines())
@settings(max_examples=200)
def test_a_line_is_read_as_torchrun_reads_it(words: list[str]) -> None:
    theirs = vars(run.get_args_parser().parse_args(words))
    theirs.pop("print_completion", None)
    mine = vars(ours.read(words, {}))
    for dest in ("duplicate_stdout_filters", "duplicate_stderr_filters"):
        theirs.pop(dest), mine.pop(dest)  # lists there; nobody reads them here
    assert {dest: mine[dest] for dest in theirs} == theirs


@given(lines(abbreviated=True))
@settings(max_examples=300, deadline=None)
def test_the_scripts_words_are_those_that_torchrun_gives_it(words: list[str]) -> None:
    """Whatever they look like, also behind options that torchrun lets a user abbreviate."""
    try:
        theirs = run.parse_args(words)
    except SystemExit:
        assume(False)
    mine = ours.read(words, {})
    assert (mine.training_script, mine.training_script_args) == (theirs.training_script, theirs.training_script_args)
    assert words[ours.count_own_words(words) - 1] == mine.training_script


@given(SCRIPT_WORDS)
@settings(deadline=None)
def test_no_word_behind_the_script_is_refused(words: list[str]) -> None:
    """Where torchrun's parser refuses one, such as --n, because it may stand for several options."""
    assert ours.read(["--nnodes=2", "x.py", "x", *words], {}).training_script_args == ["x", *words]


def test_an_abbreviation_of_several_options_is_refused_with_their_names() -> None:
    with pytest.raises(UsageError, match="unrecognized arguments: --no") as refused:
        ours.read(["--no", "x.py"], {})
    assert refused.value.hint.startswith("Did you mean --no-python, --node-rank, --no-upload? ")


def test_variables_are_defaults_as_they_are_torchruns(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"PET_NNODES": "2:4", "PET_MAX_RESTARTS": "3", "PET_STANDALONE": "1", "PET_MODULE": "0"}
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    theirs, mine = run.get_args_parser().parse_args(["x.py"]), ours.read(["x.py"], said)
    for dest in ("nnodes", "max_restarts", "standalone", "module"):
        assert getattr(mine, dest) == getattr(theirs, dest), dest
    assert ours.read(["--nnodes", "5", "x.py"], said).nnodes == "5"


@pytest.mark.parametrize("value", ["2", "01", "true", ""])
def test_the_variable_of_a_flag_is_a_number(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_STANDALONE", value)
    try:
        theirs = run.get_args_parser().parse_args(["x.py"]).standalone
    except ValueError:
        with pytest.raises(UsageError, match=f"PET_STANDALONE={value} is no number"):
            ours.read(["x.py"], {"PET_STANDALONE": value})
    else:
        assert ours.read(["x.py"], {"PET_STANDALONE": value}).standalone == theirs


@pytest.mark.parametrize("variable", ["PET_MAX_RESTARTS", "PET_NODE_RANK", "PET_MONITOR_INTERVAL"])
def test_a_variable_that_is_no_number_is_named(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "x")
    with pytest.raises(SystemExit):
        run.get_args_parser().parse_args(["x.py"])
    with pytest.raises(UsageError, match=f"{variable}=x is no number"):
        ours.read(["x.py"], {variable: "x"})
    dest = variable.removeprefix("PET_").lower()
    words = [f"--{dest}=3", "x.py"]
    theirs = run.get_args_parser().parse_args(words)
    assert getattr(ours.read(words, {variable: "x"}), dest) == getattr(theirs, dest), "the variable is not asked then"


def test_an_argument_is_spelled_as_it_was_said() -> None:
    line = ours.read(["--nnodes=2", "x.py"], {"PET_NNODES": "4", "PET_NPROC_PER_NODE": "8"})
    assert [ours.spelled(line, name) for name in ("nnodes", "nproc-per-node", "role")] == (
        ["--nnodes", "PET_NPROC_PER_NODE", "--role"]
    )


def test_the_prefix_of_lines_may_come_from_torchs_own_variable() -> None:
    said = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "a"}
    assert ours.read(["x.py"], said).log_line_prefix_template == "a"
    assert ours.read(["x.py"], {**said, "PET_LOG_LINE_PREFIX_TEMPLATE": "b"}).log_line_prefix_template == "b"


@pytest.mark.parametrize("words", [[], ["--nproc-per-node"], ["--no-such", "x.py"], ["--max-restarts", "a", "x.py"]])
def test_a_line_refused_by_torchrun_is_refused_with_a_link_to_the_help(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        run.get_args_parser().parse_args(words)
    with pytest.raises(UsageError) as refused:
        ours.read(words, {})
    assert refused.value.hint.endswith("see dljob torchrun --help")


def test_only_options_that_differ_from_their_defaults_count_as_given() -> None:
    assert ours.given_arguments(ours.read(["--nnodes", "1:1", "--rdzv-backend=c10d", "-m", "x"], {})) == (
        "rdzv-backend",
        "module",
    )
