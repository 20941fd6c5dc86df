"""`dljob sim`: PrimeMaster's core under virtual time and seeded faults."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from dljob.cli import output
from dljob.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from dljob.sim.drive import Case


def sim(
    file: Path | None = None,
    /,
    *,
    seeds: int | None = None,
    seed: int | None = None,
    replay: Path | None = None,
    save: Path | None = None,
    nodes: int | None = None,
    days: float | None = None,
    world: int | None = None,
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
        seeds: how many seeds, from 0; left out: 100.
        seed: this one alone, with all that happens, line by line.
        replay: a case as `--save` wrote it, with all that happens.
        save: a folder for the cases that broke a law.
        nodes: simulate one large job of eight devices on each of so many nodes, which fail as often as published.
        days: for so many days; left out: 30.
        world: so many of its nodes train together, as one torch world; each of the others serves alone. Left out: 128.
        explore: explore small worlds completely instead: every order of what can happen, every fault at every moment.
        operator: try the operator instead: against a failing API server, other operators, KubeRay and its users.
        most: with at most so many faults each; left out: with as many as take a few seconds.
        faults: do the faults of this file to the job, as `dljob run --faults` does, and tell what it did about each.
        form: table, json or yaml.
    """
    given = {"seeds": seeds, "seed": seed, "replay": replay, "save": save, "nodes": nodes, "days": days}
    given |= {"world": world, "explore": explore, "operator": operator, "most": most, "faults": faults}
    _all_used(file, [name for name, value in given.items() if value is not None and value is not False])
    if explore:
        return _explore(most, form)
    if faults is not None:
        return _scenario(file, faults, form)
    if nodes is not None:
        days, world = 30.0 if days is None else days, 128 if world is None else world
        return _large(nodes, days, world, seed or 0, form)
    if replay is not None:
        return _one(_replayed(replay), form)
    return _seeds(file, 100 if seeds is None else seeds, seed, save, operator=operator, form=form)


_USES = {
    "explore": {"most"},
    "faults": {"FILE"},
    "nodes": {"days", "world", "seed"},
    "replay": set[str](),
    "seed": {"FILE", "operator"},
    "operator": {"seeds", "save"},
    "seeds": {"FILE", "save"},
}
"""What is tried, as it is told from the first of these that is given, and what is said of it beside."""


def _all_used(file: Path | None, given: list[str]) -> None:
    """Refuse what would be ignored."""
    mode = next((name for name in _USES if name in given), "seeds")
    unused = [f"--{name}" for name in given if name != mode and name not in _USES[mode]]
    if file is not None and ("FILE" not in _USES[mode] or "operator" in given):
        unused.insert(0, str(file))
    if unused:
        mode = "operator" if unused == [str(file)] and "operator" in given else mode
        raise UsageError(f"--{mode} does not use {', '.join(unused)}", hint="leave out one or the other")


def _seeds(
    file: Path | None, seeds: int, seed: int | None, save: Path | None, *, operator: bool, form: output.TableFormat
) -> ExitCode:
    if seeds < 1:
        raise UsageError(f"--seeds {seeds}", hint="there is at least one")
    if save is not None:
        _save(save, [])  # before the work: minutes of it may be lost
    found = _of_operator(seeds, seed) if operator else _of_master(file, seeds, seed)
    if seed is not None:
        return _one(found, form)
    if save is not None:
        _save(save, found["failures"])
    _many(found, form)
    return ExitCode.JOB_FAILED if found["failures"] else ExitCode.OK


def _of_master(file: Path | None, seeds: int, seed: int | None) -> dict[str, Any]:
    from dljob.cli.given import manifest_of
    from dljob.sim import report
    from dljob.sim.drive import case_of

    manifest = manifest_of(file).model_dump(mode="json", by_alias=True, exclude_none=True) if file else None
    return report.many(range(seeds), manifest) if seed is None else report.one(case_of(seed, manifest))


def _of_operator(seeds: int, seed: int | None) -> dict[str, Any]:
    from dljob.sim import operator_story as stories

    return stories.many(range(seeds)) if seed is None else stories.one(stories.story_of(seed))


def _replayed(path: Path) -> dict[str, Any]:
    from dljob.sim import operator_story as stories
    from dljob.sim import report

    data = _read(path)
    try:
        told = partial(stories.one, stories.load(data)) if data.get("operator") else partial(report.one, _case(data))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UsageError(f"{path} is no case that --save wrote") from None
    return told()


def _case(data: dict[str, Any]) -> Case:
    from dljob.sim import report
    from dljob.spec.model import DLJobManifest

    DLJobManifest.model_validate(data["manifest"])
    return report.load(data)


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


def _save(folder: Path, failures: list[dict[str, Any]]) -> None:
    """Make the folder, and a file of each case in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for case in failures:
            text = json.dumps(case["case"], indent=1) + "\n"
            (folder / f"seed-{case['seed']}.json").write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write into {folder}: {error.strerror}") from None


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
