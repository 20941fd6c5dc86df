"""`dljob sim`: simulation of PrimeMaster's core in virtual time, with seeded faults."""

from __future__ import annotations

import json
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from dljob.cli import output, output_file
from dljob.errors import ExitCode, UsageError, not_installed

if TYPE_CHECKING:
    from dljob.testing.simulate.drive import Case


def sim(
    file: Path | None = None,
    /,
    *,
    seeds: int | None = None,
    first: Annotated[int | None, Parameter(name="--from")] = None,
    seed: int | None = None,
    replay: Path | None = None,
    save: Path | None = None,
    nodes: int | None = None,
    days: float | None = None,
    world: int | None = None,
    workers: int | None = None,
    ps: int | None = None,
    explore: bool = False,
    operator: bool = False,
    cuts: bool = False,
    most: int | None = None,
    faults: Path | None = None,
    form: Annotated[output.TableFormat, Parameter(name=("--output", "-o"))] = "table",
) -> ExitCode:
    """Test PrimeMaster's decisions against faults: crashes, kills, lost nodes, late and duplicated events.

    Neither Ray nor a cluster is needed: nodes, processes and time are simulated. Each seed is a job with its faults. A
    seed that violates an invariant is reduced to the faults that are needed for it. Exits with 1 if any seed does.

    Args:
        file: the job to test; default: each seed generates a small one.
        seeds: number of seeds; default: 100.
        first: first seed; default: 0.
        seed: run only this seed, and print everything that happens.
        replay: run a case written by `--save`, and print everything that happens.
        save: folder for the cases that violate an invariant.
        nodes: simulate one large job with eight devices on each of so many nodes, which fail at published rates.
        days: simulated days of the large job, or of that of `--workers`; default: 30.
        world: nodes of the large job that form one torch world; each other node serves alone. Default: 128.
        workers: simulate one job of so many CPU workers and of parameter servers, a quarter of whose machines is
            preempted at published rates.
        ps: number of its parameter servers; default: one for each 25 workers.
        explore: explore small worlds exhaustively instead: every order of events, every fault at every moment.
        operator: test the operator instead: with a failing API server, other operators, KubeRay and users.
        cuts: test consistent cuts instead: jobs whose prompts are to be trained once each, whatever is lost or damaged.
        most: maximum number of faults per world; default: as many as take a few seconds.
        faults: inject the faults of this file, as `dljob run --faults` does, and report the reaction to each.
        form: table, json or yaml.
    """
    options = {
        "seeds": seeds,
        "from": first,
        "seed": seed,
        "replay": replay,
        "save": save,
        "nodes": nodes,
        "days": days,
    }
    options |= {"world": world, "workers": workers, "ps": ps, "explore": explore, "operator": operator, "cuts": cuts}
    options |= {"most": most, "faults": faults}
    # Not by truth: `--seed 0` is given.
    _all_used(file, [name for name, value in options.items() if value is not None and value is not False])
    if explore:
        return _explore(most, form)
    if cuts:
        return _cuts(_range(first or 0, 200 if seeds is None else seeds), form)
    if faults is not None:
        return _scenario(file, faults, form)
    # Only here: a default in the signature would count as given, and `_all_used` would refuse other modes.
    days = 30.0 if days is None else days
    if nodes is not None:
        return _large(nodes, days, 128 if world is None else world, seed or 0, form)
    if workers is not None:
        return _servers(workers, -(-workers // 25) if ps is None else ps, days, seed or 0, form)
    if replay is not None:
        return _show_story(_replayed(replay), form)
    chosen = _range(first or 0, 100 if seeds is None else seeds)
    return _seeds(file, chosen, seed, save, operator=operator, form=form)


_USES = {
    "explore": {"most"},
    "cuts": {"seeds", "from"},
    "faults": {"FILE"},
    "nodes": {"days", "world", "seed"},
    "workers": {"ps", "days", "seed"},
    "replay": set[str](),
    "seed": {"FILE", "operator"},
    "operator": {"seeds", "from", "save"},
    "seeds": {"FILE", "from", "save"},
}
"""Mode -> options that it uses; the first mode whose option is given is chosen."""


def _all_used(file: Path | None, option_names: list[str]) -> None:
    """Refuse options that the mode would ignore."""
    # An ignored option would look as if it had been tested.
    mode = next((name for name in _USES if name in option_names), "seeds")
    unused = [f"--{name}" for name in option_names if name != mode and name not in _USES[mode]]
    if file is not None and ("FILE" not in _USES[mode] or "operator" in option_names):
        unused.insert(0, str(file))
    if unused:
        mode = "operator" if unused == [str(file)] and "operator" in option_names else mode
        raise UsageError(f"--{mode} does not use {', '.join(unused)}", hint="leave out one or the other")


def _range(first: int, count: int) -> range:
    if count < 1:
        raise UsageError(f"--seeds {count}", hint="write 1 or more")
    if first < 0:
        raise UsageError(f"--from {first}", hint="write 0 or more")
    return range(first, first + count)


def _seeds(
    file: Path | None, seeds: range, seed: int | None, save: Path | None, *, operator: bool, form: output.TableFormat
) -> ExitCode:
    if save is not None:
        _save(save, [])  # before the simulation: an unwritable folder must not cost minutes of work
    report = _of_operator(seeds, seed) if operator else _of_master(file, seeds, seed)
    if seed is not None:
        return _show_story(report, form)
    if save is not None:
        _save(save, report["failures"])
    _many(report, form)
    return ExitCode.JOB_FAILED if report["failures"] else ExitCode.OK


def _of_master(file: Path | None, seeds: range, seed: int | None) -> dict[str, Any]:
    from dljob.cli.job_file import manifest_of
    from dljob.testing.simulate import report
    from dljob.testing.simulate.drive import case_of

    manifest = manifest_of(file).model_dump(mode="json", by_alias=True, exclude_none=True) if file else None
    return report.many(seeds, manifest) if seed is None else report.report_case(case_of(seed, manifest))


def _of_operator(seeds: range, seed: int | None) -> dict[str, Any]:
    stories = _operator_simulator()
    return stories.many(seeds) if seed is None else stories.run_story(stories.story_of(seed))


def _operator_simulator() -> Any:  # noqa: ANN401 - a module
    """Return the module that simulates the operator. Raises UsageError where the operator is not installed."""
    # By name: it runs the operator's own code, which this package must not depend on.
    try:
        return import_module("dljob_operator.testing.scenario")
    except ModuleNotFoundError as error:
        raise (not_installed(error, "operator") or error) from None


def _replayed(path: Path) -> dict[str, Any]:
    from dljob.testing.simulate import report

    data = _read(path)
    try:
        # Loaded here, run below: an error of the simulation itself must not be reported as a bad file.
        stories = _operator_simulator() if data.get("operator") else None
        run_story = (
            partial(stories.run_story, stories.load(data)) if stories else partial(report.report_case, _case(data))
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UsageError(f"{path} is no case that --save wrote") from None
    return run_story()


def _case(data: dict[str, Any]) -> Case:
    from dljob.spec.model import DLJobManifest
    from dljob.testing.simulate import report

    # Validated for its error: the file may be of another version, or written by hand.
    DLJobManifest.model_validate(data["manifest"])
    return report.load(data)


def _large(nodes: int, days: float, world: int, seed: int, form: output.TableFormat) -> ExitCode:
    from dljob.testing.simulate.large import Size, run

    if nodes < 1 or not 0 <= world <= nodes or days <= 0:
        raise UsageError(
            f"{world} of {nodes} nodes for {days:g} days", hint="nodes and days are above 0, world <= nodes"
        )
    return _show_values(run(Size(nodes, days, world, seed)), form)


def _servers(workers: int, ps: int, days: float, seed: int, form: output.TableFormat) -> ExitCode:
    from dljob.testing.simulate.parameter_servers import Servers, run

    if workers < 1 or ps < 1 or days <= 0:
        raise UsageError(f"{workers} workers and {ps} ps for {days:g} days", hint="all three are above 0")
    return _show_values(run(Servers(workers, ps, days, seed)), form)


def _show_values(report: dict[str, Any], form: output.TableFormat) -> ExitCode:
    if form == "table":
        output.table([(name, str(value)) for name, value in report.items()])
    else:
        output.structured(report, form)
    return ExitCode.JOB_FAILED if report["problems"] else ExitCode.OK


def _scenario(file: Path | None, faults: Path, form: output.TableFormat) -> ExitCode:
    from dljob.cli import chaos
    from dljob.cli.job_file import manifest_of
    from dljob.plan.plan import plan
    from dljob.plan.targets import load_faults
    from dljob.testing.simulate.scenario import Scenario

    if file is None:
        raise UsageError("--faults is for a job", hint="dljob sim FILE --faults FAULTS")
    manifest = manifest_of(file)
    file_faults = load_faults(faults, plan(manifest))
    report = Scenario(manifest.model_dump(mode="json", by_alias=True, exclude_none=True), file_faults).play()
    if form == "table":
        chaos.show(report)
    else:
        output.structured(report, form)
    return ExitCode.JOB_FAILED if report["problems"] else chaos.verdict(report)


def _cuts(seeds: range, form: output.TableFormat) -> ExitCode:
    from dljob.testing.simulate.cuts import many

    reports = many(seeds)
    if form == "table":
        names = [name for name in reports[0] if name != "problems"]
        output.table([tuple(names), *(tuple(str(report[name]) for name in names) for report in reports)])
        for report in reports:
            for line in report["problems"]:
                output.data(f"broken: prompts from {report['prompts from']}, {line}")
    else:
        output.structured(reports, form)
    return ExitCode.JOB_FAILED if any(report["problems"] for report in reports) else ExitCode.OK


def _explore(most: int | None, form: output.TableFormat) -> ExitCode:
    from dljob.testing.explore.worlds import WORLDS, explored

    if most is not None and most < 0:
        raise UsageError(f"--most {most}", hint="write 0 or more")
    reports = [explored(report.small.name, most) for report in WORLDS]
    if form == "table":
        names = ("world", "ranks", "faults", "states", "moves", "seconds")
        output.table([names, *(tuple(str(report[name]) for name in names) for report in reports)])
        for report in reports:
            for line in (*report["trace"], *(f"broken: {problem}" for problem in report["problems"])):
                output.data(f"{report['world']}: {line}")
    else:
        output.structured(reports, form)
    return ExitCode.JOB_FAILED if any(report["problems"] for report in reports) else ExitCode.OK


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {error}") from None


def _save(folder: Path, failures: list[dict[str, Any]]) -> None:
    """Create the folder, and write a file for each case."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for case in failures:
            text = json.dumps(case["case"], indent=1) + "\n"
            output_file.write(folder / f"seed-{case['seed']}.json", (text,), force=True, hint="name another folder")
    except OSError as error:
        raise UsageError(f"cannot write into {folder}: {error.strerror}") from None


def _show_story(report: dict[str, Any], form: output.TableFormat) -> ExitCode:
    if form == "table":
        output.data("\n".join(report["trace"]))
        output.data(f"{report['phase']} {report['reason']} after {report['seconds']:.3f} s")
        for problem in report["problems"]:
            output.data(f"broken: {problem}")
    else:
        output.structured(report, form)
    return ExitCode.JOB_FAILED if report["problems"] else ExitCode.OK


def _many(report: dict[str, Any], form: output.TableFormat) -> None:
    if form != "table":
        output.structured(report, form)
        return
    size = f"{report['events']} events" if "events" in report else f"{report['writes']} writes"
    output.data(f"{report['seeds']} seeds, {size}: {len(report['failures'])} violated an invariant")
    for end, count in report["ends"].items():
        output.data(f"  {count} {end}")
    for failure in report["failures"]:
        output.data(f"seed {failure['seed']}, with {len(failure['case']['faults'])} faults: {failure['problems'][0]}")
