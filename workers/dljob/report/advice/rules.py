"""Advice on rules of recovery: spares, backoff and levels, each tried in the simulator on the last job's own faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dljob.errors import DLJobError
from dljob.report.advice.checkpoints import FAILURES
from dljob.report.advice.proposals import LEAST_POINTS, Advice, Gain, Proposal
from dljob.report.advice.values import mapping, rows
from dljob.report.what_if import WhatIf, rules_tried
from dljob.spec.model import DLJobManifest
from dljob.telemetry.wording import counted

_WHAT = "faultTolerance, restartPolicy"


class TriedRules:
    """What the simulator predicted for a job."""

    def __init__(self, manifest: DLJobManifest, failures: int, found: Sequence[WhatIf]) -> None:
        self.manifest = manifest.model_dump(mode="json", by_alias=True, exclude_none=True)
        self.failures = failures
        self.found = found


def tried(folder: Path) -> TriedRules | str:
    """Try the rules that may help the job in a folder; a text says why that cannot be."""
    try:
        past, predictor, found = rules_tried(folder)
    except DLJobError as error:
        return error.message
    return TriedRules(past.manifest, len(predictor.record.strikes), found)


def advise(folder: Path, run: Callable[[Path], TriedRules | str] = tried) -> Advice:
    """Return the one rule that helps most: gains of several do not add up."""
    made = run(folder)
    if isinstance(made, str):
        return Advice.no(_WHAT, made)
    if made.failures < FAILURES:
        return Advice.no(_WHAT, f"too little history: {counted(made.failures, 'failure')}, wanted are {FAILURES}")
    worth = [one for one in made.found if one.difference >= max(LEAST_POINTS, one.uncertainty)]
    if not worth:
        best = max(made.found, key=lambda one: one.difference, default=None)
        told = "no rule that was tried" if best is None else f"the best rule tried, {best.rule}, {_points(best)},"
        return Advice.no(_WHAT, f"{told} brings more than its uncertainty and half a point")
    first, *others = worth
    rest = tuple(f"{one.rule} {_points(one)}" for one in others)
    beside = f"; alone, and not beside it: {', '.join(rest)}" if rest else ""
    name, _, text = first.rule.partition("=")
    field, value = tuple(name.split(".")), int(text) if text.isdigit() else text
    why = (
        f"{counted(made.failures, 'failure')} of the last run, simulated: goodput {first.measured:.1%} then, "
        f"{first.goodput:.1%} with it{beside}"
    )
    gain = Gain("goodput", first.difference, first.uncertainty)
    return Advice((Proposal(field, name, _now(made.manifest, field), text, value, why, gain),))


def _points(one: WhatIf) -> str:
    return f"{100 * one.difference:+.1f} +/- {100 * one.uncertainty:.1f} points"


def _now(manifest: Mapping[str, Any], field: tuple[str, ...]) -> str:
    place, names = mapping(manifest["spec"]), field
    if field[0] == "roles":
        place = next((role for role in rows(place["roles"]) if role["name"] == field[1]), mapping(None))
        names = field[2:]
    for name in names[:-1]:
        place = mapping(place.get(name))
    return str(place.get(names[-1], "-"))
