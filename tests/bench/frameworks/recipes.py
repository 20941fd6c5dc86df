"""What each of eight events costs a framework that people already have: alone, and under dljob.

    .venv/bin/python tests/bench/frameworks/recipes.py                        # all figures that are not there yet
    .venv/bin/python tests/bench/frameworks/recipes.py trl_sft rank [alone]   # one event of one framework, anew
    .venv/bin/python tests/bench/frameworks/recipes.py --table                # write the tables in docs/recipes

For a quiet machine: one to three minutes a figure. Each is written to figures.jsonl at once, so that the command goes
on where it was ended. What happens at an event, and what its seconds and losses are: training_events.py (scripts under
torchrun), server_events.py and ppo_events.py. Where a command ends before it went on (or behind that, with steps
undone), or a limit passes without anything, it is started again at once, as a person could, and the row says so; then
the first new step or answer is that of the second command.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

HERE, TESTS = Path(__file__).parent, Path(__file__).parents[2]
sys.path[:0] = [str(HERE), str(TESTS / "frameworks"), str(TESTS / "kits"), str(TESTS)]

import ppo_events  # noqa: E402 - found by the path above
import server_events  # noqa: E402
import training_events  # noqa: E402
from environment import NAMES, make  # noqa: E402
from recipe_figures import Figure, known, note  # noqa: E402
from run_processes import adopt, end  # noqa: E402
from scenes import Scene  # noqa: E402

from tiers import isolated  # noqa: E402

PAGES = TESTS.parent / "docs" / "recipes"
WHO = ("alone", "here")
EVENTS = {
    "rank": "one rank killed",
    "two": "two ranks killed",
    "hang": "a rank stopped by SIGSTOP",
    "node": "a node lost",
    "master": "the master killed",
    "head": "the head killed",
    "sigterm": "SIGTERM to the command, and the same command again",
    "error": "the same error twice",
}
"""Event -> how all tables name it."""
NOT_ONE_SERVER = "a server of one rank has no second one"
NO_END = "a request that a server cannot answer is its caller's error, and ends no server"
NO_GPU = "not run: needs a GPU"
FAILURES = (AssertionError, OSError, RuntimeError, StopIteration, ValueError, psutil.Error, subprocess.SubprocessError)
"""What may become of one run on a machine that is in full use; the others are measured all the same."""


@dataclass(frozen=True)
class Recipe:
    """A framework of which a page has a table."""

    page: str
    measure: Callable[[Scene, str, Figure], Figure]
    alone: str = "torchrun alone"
    here: str = "`dljob torchrun`"
    environment: str = "environment"
    how: str = f"Measured with {training_events.RANKS} ranks"
    absent: dict[str, tuple[str, str]] = field(
        default_factory=lambda: {"master": ("torchrun's only master is its agent: the head", "")}
    )
    """Event -> why it does not exist alone, and here; empty where it does."""
    never: str = ""
    """What each row says of a framework that cannot be measured."""

    def why_not(self, event: str, who: str) -> str:
        """Return what a cell says of an event without a figure, or of a framework without figures."""
        why = self.absent.get(event, ("", ""))[WHO.index(who)]
        return self.never or (f"n/a, because {why}" if why else "")


SERVER_ABSENT = {
    "two": (NOT_ONE_SERVER, NOT_ONE_SERVER),
    "master": ("a server alone has no master", ""),
    "head": ("a server alone has no head", ""),
    "error": (NO_END, NO_END),
}
BEHIND = "a group goes on behind the step that its peers have done"
RECIPES = {
    "trl_sft": Recipe("torchrun", training_events.measure),
    "transformers_trainer": Recipe("torchrun", training_events.measure),
    "accelerate_loop": Recipe("torchrun", training_events.measure),
    "lightning_fit": Recipe("torchrun", training_events.measure),
    "deepspeed_loop": Recipe("torchrun", training_events.measure, environment="deepspeed"),
    "torchft_loop": Recipe(
        "torchft",
        training_events.measure,
        here="`dljob run`",
        absent={"master": ("torchrun's only master is its agent: the head", ""), "error": (BEHIND, BEHIND)},
    ),
    "transformers_serve": Recipe(
        "transformers-serve",
        server_events.measure,
        "`transformers serve` alone",
        "`dljob run`",
        how="Measured with one server",
        absent=SERVER_ABSENT,
    ),
    "vllm_serve": Recipe(
        "vllm",
        server_events.measure,
        "vLLM's server alone",
        "`dljob run`",
        environment="vllm",
        how="Measured with one server",
        absent=SERVER_ABSENT,
    ),
    "verl_ppo": Recipe(
        "verl",
        ppo_events.measure,
        "`main_ppo` alone",
        "`dljob run`",
        environment="verl",
        how="Measured with two ranks of the trainer and one rollout server",
        absent={"master": ("main_ppo alone has no master beside its Ray", "")},
    ),
    "sglang_serve": Recipe("sglang", server_events.measure, "SGLang's server alone", "`dljob run`", never=NO_GPU),
}
"""Framework, by the name of its script -> its recipe."""


def measure(framework: str, event: str, who: str) -> Figure:
    """Run a framework through one event."""
    recipe, load = RECIPES[framework], round(os.getloadavg()[0], 1)
    figure = Figure(framework, event, who, cpus=os.cpu_count() or 0, load=load)
    python = make(recipe.environment)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        scene, side = Scene(python, Path(folder), training_events.RANKS), "theirs" if who == "alone" else "ours"
        try:
            return recipe.measure(scene, side, figure)
        finally:
            end(scene)


def table(framework: str) -> str:
    """Return the table of a framework's page; what was not measured says so."""
    there, recipe = known(), RECIPES[framework]

    def cell(event: str, who: str) -> str:
        figure = there.get((framework, event, who))
        return recipe.why_not(event, who) or (figure.cell() if figure else "not measured yet")

    rows = [f"| {title} | {cell(name, 'alone')} | {cell(name, 'here')} |" for name, title in EVENTS.items()]
    made = [figure for figure in there.values() if figure.framework == framework]
    if made:
        cpus, loads = sorted({str(one.cpus) for one in made}), [one.load for one in made]
        load = f"a load of {min(loads):.1f} to {max(loads):.1f} before it"
        rows += ["", f"{recipe.how} on {' or '.join(cpus)} processors, {load}."]
        if better := better_alone(made):
            rows.append(f"Better alone, in seconds or in what is lost: {', '.join(better)}.")
    return "\n".join([f"| event | {recipe.alone} | {recipe.here} |", "| --- | --- | --- |", *rows])


def better_alone(made: list[Figure]) -> list[str]:
    """Return the events that cost less alone, in seconds or in steps or requests; those that end a run cost neither."""
    cost = {(one.event, one.who): (one.seconds, one.steps or 0) for one in made if one.seconds is not None}
    pairs = {name: (cost.get((name, "alone")), cost.get((name, "here"))) for name in EVENTS}
    return [
        EVENTS[name]
        for name, (there, here) in pairs.items()
        if there and here and (there[0] < here[0] or there[1] < here[1])
    ]


def rendered(page: str) -> str:
    """Return a page with the tables of its frameworks as the figures have them."""
    for framework in RECIPES:
        begin = f"<!-- events of {framework} -->"
        before, found, rest = page.partition(begin)
        if found:
            _, end_mark, after = rest.partition("<!-- end -->")
            page = f"{before}{begin}\n\n{table(framework)}\n\n{end_mark}{after}"
    return page


def chosen(words: list[str]) -> list[tuple[str, str, str]]:
    """Return what is to be measured: all that has these words, or without words what is not there yet."""
    possible = [
        (framework, event, who)
        for framework, recipe in RECIPES.items()
        for event in EVENTS
        for who in WHO
        if not recipe.why_not(event, who)
    ]
    there = known()
    return [one for one in possible if (set(words) <= set(one) if words else one not in there)]


def main(words: list[str]) -> int:
    """Measure what was asked for, or what is not there yet; and write the tables. Return the exit code."""
    if unknown := set(words) - {"--table", *RECIPES, *EVENTS, *WHO}:
        known_words = ", ".join([*RECIPES, *EVENTS, *WHO, "--table"])
        print(f"unknown: {', '.join(sorted(unknown))}; there are: {known_words}", file=sys.stderr)
        return 2
    failed = 0
    adopt()
    for one in [] if "--table" in words else chosen(words):
        try:
            figure = measure(*one)
        except FAILURES as error:
            print(*one, f"could not be measured: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            failed = 1
            continue
        print(*one, figure.cell(), file=sys.stderr, flush=True)
        note(figure)
    for name in sorted({recipe.page for recipe in RECIPES.values()}):
        page = PAGES / f"{name}.md"
        page.write_text(rendered(page.read_text()))
    return failed


if __name__ == "__main__":
    if sys.argv[1:2] == ["inside"]:
        sys.exit(main(sys.argv[2:]))
    else:
        for each in [] if "--table" in sys.argv else NAMES:
            make(each)  # Ray runs in a network namespace of its own, where nothing can be fetched.
        sys.exit(
            subprocess.run([*isolated(), sys.executable, __file__, "inside", *sys.argv[1:]], check=False).returncode
        )
