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

    def __init__(self, manifest: DLJobManifest, failures: int, predictions: Sequence[WhatIf]) -> None:
        self.manifest = manifest.model_dump(mode="json", by_alias=True, exclude_none=True)
        self.failures = failures
        self.predictions = predictions


def tried(folder: Path) -> TriedRules | str:
    """Try the rules that may help the job in a folder; a text says why that cannot be."""
    try:
        past, predictor, predictions = rules_tried(folder)
    except DLJobError as error:
        return error.message
    return TriedRules(past.manifest, len(predictor.record.strikes), predictions)


def advise(folder: Path, run: Callable[[Path], TriedRules | str] = tried) -> Advice:
    """Return the one rule that helps most: gains of several do not add up."""
    tried_rules = run(folder)
    if isinstance(tried_rules, str):
        return Advice.no(_WHAT, tried_rules)
    if tried_rules.failures < FAILURES:
        return Advice.no(
            _WHAT, f"too little history: {counted(tried_rules.failures, 'failure')}, wanted are {FAILURES}"
        )
    worth = [
        prediction
        for prediction in tried_rules.predictions
        if prediction.difference >= max(LEAST_POINTS, prediction.uncertainty)
    ]
    if not worth:
        best = max(tried_rules.predictions, key=lambda prediction: prediction.difference, default=None)
        best_text = "no rule that was tried" if best is None else f"the best rule tried, {best.rule}, {_points(best)},"
        return Advice.no(_WHAT, f"{best_text} brings more than its uncertainty and half a point")
    first, *others = worth
    rest = tuple(f"{prediction.rule} {_points(prediction)}" for prediction in others)
    beside = f"; alone, and not beside it: {', '.join(rest)}" if rest else ""
    name, _, text = first.rule.partition("=")
    field, value = tuple(name.split(".")), int(text) if text.isdigit() else text
    reason = (
        f"{counted(tried_rules.failures, 'failure')} of the last run, simulated: goodput {first.measured:.1%} then, "
        f"{first.goodput:.1%} with it{beside}"
    )
    gain = Gain("goodput", first.difference, first.uncertainty)
    return Advice((Proposal(field, name, _now(tried_rules.manifest, field), text, value, reason, gain),))


def _points(prediction: WhatIf) -> str:
    return f"{100 * prediction.difference:+.1f} +/- {100 * prediction.uncertainty:.1f} points"


def _now(manifest: Mapping[str, Any], field: tuple[str, ...]) -> str:
    place, names = mapping(manifest["spec"]), field
    if field[0] == "roles":
        place = next((role for role in rows(place["roles"]) if role["name"] == field[1]), mapping(None))
        names = field[2:]
    for name in names[:-1]:
        place = mapping(place.get(name))
    return str(place.get(names[-1], "-"))
