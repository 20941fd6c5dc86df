"""`dljob validate`: every problem of a spec, without a cluster."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from dljob.cli import output
from dljob.errors import ExitCode, PlacementError, Problem, SpecError, UsageError

Form = Literal["text", "json", "yaml"]


def validate(
    file: Path, /, *more: Path, form: Annotated[Form, Parameter(name=("--output", "-o"))] = "text"
) -> ExitCode:
    """Check job files: unknown fields, wrong values, roles or a plan that do not fit together.

    All problems are shown at once, as file:line:column. Exits with 2 when there are any.

    Args:
        file: YAML or JSON file.
        more: further files.
        form: text, json or yaml.
    """
    problems: list[Problem] = []
    jobs = 0
    for path in (file, *more):
        found, count = _check(path)
        problems += found
        jobs += count
    if form != "text":
        answer: dict[str, Any] = {"valid": not problems, "jobs": jobs, "problems": [asdict(p) for p in problems]}
        output.structured(answer, form)
    elif problems:
        output.data("\n".join(str(p) for p in problems))
        output.say(f"{len(problems)} problem{'s' if len(problems) > 1 else ''}")
    else:
        output.data(f"{jobs} job{'s' if jobs > 1 else ''}: valid")
    return ExitCode.USAGE if problems else ExitCode.OK


def _check(path: Path) -> tuple[list[Problem], int]:
    """The problems of one file, and how many jobs are in it."""
    from dljob.plan.plan import plan
    from dljob.spec.load import load_file_all

    try:
        manifests = load_file_all(path)
    except SpecError as error:
        return list(error.problems), 0
    except UsageError as error:
        said = error.message.replace(f"cannot read {path}", "cannot be read")  # the file is said beside it
        return [Problem("", said, file=str(path), hint=error.hint)], 0
    problems: list[Problem] = []
    for manifest in manifests:
        try:
            plan(manifest)
        except PlacementError as error:
            problems.append(Problem("", error.message, file=str(path), hint=error.hint))
    return problems, len(manifests)
