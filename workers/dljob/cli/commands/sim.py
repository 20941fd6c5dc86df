"""`dljob sim`: PrimeMaster's core under virtual time and seeded faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from dljob.cli import output
from dljob.errors import ExitCode, UsageError


def sim(
    file: Path | None = None,
    /,
    *,
    seeds: int = 100,
    seed: int | None = None,
    replay: Path | None = None,
    save: Path | None = None,
    nodes: int | None = None,
    days: float = 30.0,
    world: int = 128,
    explore: bool = False,
    operator: bool = False,
    most: int | None = None,
    faults: Path | None = None,
    form: Annotated[output.TableFormat, Parameter(name=("--output", "-o"))] = "table",
) -> ExitCode:
    """Try PrimeMaster's decisions against faults: crashes, kills, lost nodes, late and doubled events.

    Neither Ray nor a cluster is needed: nodes, processes and time are modelled. Each seed is a job and what goes wrong
    with it. A seed that breaks a law is cut down to the faults that it takes. Exits with 1 when any does.

    Args:
        file: the job to try; left out, each seed makes a small one of its own.
        seeds: how many seeds, from 0.
        seed: this one alone, with all that happens, line by line.
        replay: a case as `--save` wrote it, with all that happens.
        save: a folder for the cases that broke a law.
        nodes: simulate one large job of eight devices on each of so many nodes, which fail as often as published.
        days: for so many days.
        world: so many of its nodes train together, as one torch world; each of the others serves alone.
        explore: explore small worlds completely instead: every order of what can happen, every fault at every moment.
        operator: try the operator instead: against a failing API server, other operators, KubeRay and its users.
        most: with at most so many faults each; left out: with as many as take a few seconds.
        faults: do the faults of this file to the job, as `dljob run --faults` does, and tell what it did about each.
        form: table, json or yaml.
    """
    if explore:
        return _explore(most, form)
    if faults is not None:
        return _scenario(file, faults, form)
    if nodes is not None:
        return _large(nodes, days, world, seed or 0, form)
    case = _read(replay) if replay is not None else None
    if operator and file is not None:
        raise UsageError(f"--operator makes jobs of its own, and {file} is given", hint="leave one of them out")
    if operator or (case is not None and case.get("operator")):
        found = _of_operator(seeds, seed, case)
    else:
        found = _of_master(file, seeds, seed, case)
    if case is not None or seed is not None:
        return _one(found, form)
    if save is not None:
        save.mkdir(parents=True, exist_ok=True)
        for case in found["failures"]:
            (save / f"seed-{case['seed']}.json").write_text(json.dumps(case["case"], indent=1) + "\n", encoding="utf-8")
    _many(found, form)
    return ExitCode.JOB_FAILED if found["failures"] else ExitCode.OK


def _of_master(file: Path | None, seeds: int, seed: int | None, case: dict[str, Any] | None) -> dict[str, Any]:
    from dljob.cli.given import manifest_of
    from dljob.sim import report
    from dljob.sim.drive import case_of

    if case is not None:
        return report.one(report.load(case))
    manifest = manifest_of(file).model_dump(mode="json", by_alias=True, exclude_none=True) if file else None
    return report.many(range(seeds), manifest) if seed is None else report.one(case_of(seed, manifest))


def _of_operator(seeds: int, seed: int | None, case: dict[str, Any] | None) -> dict[str, Any]:
    from dljob.sim import operator_story as stories

    if case is not None:
        return stories.one(stories.load(case))
    return stories.many(range(seeds)) if seed is None else stories.one(stories.story_of(seed))


def _large(nodes: int, days: float, world: int, seed: int, form: output.TableFormat) -> ExitCode:
    from dljob.sim.large import Size, run

    if nodes < 1 or not 0 <= world <= nodes or days <= 0:
        raise UsageError(
            f"{world} of {nodes} nodes for {days:g} days", hint="nodes and days are above 0, world <= nodes"
        )
    found = run(Size(nodes, days, world, seed))
    if form == "table":
        output.table([(name, str(value)) for name, value in found.items()])
    else:
        output.structured(found, form)
    return ExitCode.JOB_FAILED if found["problems"] else ExitCode.OK


def _scenario(file: Path | None, faults: Path, form: output.TableFormat) -> ExitCode:
    from dljob.cli import chaos
    from dljob.cli.given import manifest_of
    from dljob.plan.plan import plan
    from dljob.plan.targets import load_faults
    from dljob.sim.scenario import Scenario

    if file is None:
        raise UsageError("--faults is for a job", hint="dljob sim FILE --faults FAULTS")
    manifest = manifest_of(file)
    wanted = load_faults(faults, plan(manifest))
    found = Scenario(manifest.model_dump(mode="json", by_alias=True, exclude_none=True), wanted).play()
    if form == "table":
        chaos.show(found)
    else:
        output.structured(found, form)
    return ExitCode.JOB_FAILED if found["problems"] else chaos.verdict(found)


def _explore(most: int | None, form: output.TableFormat) -> ExitCode:
    from dljob.sim.explore_worlds import WORLDS, explored

    if most is not None and most < 0:
        raise UsageError(f"{most} faults", hint="there are none, or some")
    found = [explored(each.small.name, most) for each in WORLDS]
    if form == "table":
        names = ("world", "ranks", "faults", "states", "moves", "seconds")
        output.table([names, *(tuple(str(each[name]) for name in names) for each in found)])
        for each in found:
            for line in (*each["trace"], *(f"broken: {problem}" for problem in each["problems"])):
                output.data(f"{each['world']}: {line}")
    else:
        output.structured(found, form)
    return ExitCode.JOB_FAILED if any(each["problems"] for each in found) else ExitCode.OK


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {error}") from None


def _one(found: dict[str, Any], form: output.TableFormat) -> ExitCode:
    if form == "table":
        output.data("\n".join(found["trace"]))
        output.data(f"{found['phase']} {found['reason']} after {found['seconds']:.3f} s")
        for problem in found["problems"]:
            output.data(f"broken: {problem}")
    else:
        output.structured(found, form)
    return ExitCode.JOB_FAILED if found["problems"] else ExitCode.OK


def _many(found: dict[str, Any], form: output.TableFormat) -> None:
    if form != "table":
        output.structured(found, form)
        return
    size = f"{found['events']} events" if "events" in found else f"{found['writes']} writes"
    output.data(f"{found['seeds']} seeds, {size}: {len(found['failures'])} broke a law")
    for end, count in found["ends"].items():
        output.data(f"  {count} {end}")
    for failure in found["failures"]:
        output.data(f"seed {failure['seed']}, with {len(failure['case']['faults'])} faults: {failure['problems'][0]}")
