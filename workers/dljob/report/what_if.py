"""A job's recorded faults under another rule: the difference in goodput, and how sure it is."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from math import exp
from pathlib import Path
from statistics import NormalDist, mean, stdev
from typing import Any, NamedTuple, cast

from dljob.errors import PlacementError, Problem, SpecError, UsageError
from dljob.report.record import Recorded, record_of
from dljob.report.replay import Past
from dljob.runtime.journal.code_version import code_version
from dljob.spec.loading.load import parse
from dljob.spec.model import DLJobManifest
from dljob.spec.text import tree
from dljob.spec.text.words import did_you_mean
from dljob.testing.simulate.forecast import End, Forecast

SEEDS, FEW = 20, 5
"""Runs of a rule that was asked for, and of each that is tried for the best ones."""
ROOTS = ("faultTolerance", "restartPolicy", "checkpoint", "roles")
SPREAD = 8
"""Runs of them, at most, that tell how much the time of starts matters."""
BEST = 3


class WhatIf(NamedTuple):
    """The prediction for a rule; goodput as a share of 1."""

    rule: str
    measured: float
    """Of the record."""
    unchanged: float
    """Predicted for the record's own rule: its distance from `measured` is the simulation's own error."""
    difference: float
    """Predicted for the other rule, less `unchanged`."""
    uncertainty: float
    """Twice the deviation of goodput over runs whose durations are drawn, and the simulation's own error."""
    seconds: float
    """Predicted length of the job."""
    phase: str
    """How most of the runs end."""

    @property
    def goodput(self) -> float:
        """The measured goodput with the predicted difference."""
        return min(1.0, max(0.0, self.measured + self.difference))

    def shown(self) -> dict[str, Any]:
        """Return it as data for JSON; docs/adr/0075-report-page.md has the format."""
        return {
            "rule": self.rule,
            "goodput": round(self.goodput, 4),
            "difference": round(self.difference, 4),
            "uncertainty": round(self.uncertainty, 4),
            "measured": round(self.measured, 4),
            "unchanged": round(self.unchanged, 4),
            "seconds": round(self.seconds, 1),
            "phase": self.phase,
        }


class Predictor:
    """Predictions for one job's record."""

    def __init__(self, past: Past) -> None:
        if past.foreign:
            versions = ", ".join(past.cores)
            message = f"the job ran with dljob {versions}, this is {code_version()}: its rules may decide otherwise"
            raise UsageError(message, hint=f"use dljob {versions.split()[0]} for --what-if; replay itself works")
        if past.cut:
            raise UsageError("the journal's first parts were dropped, so that some of the job's faults are not known")
        self.record: Recorded = record_of(past)
        if not self.record.over:
            hint = "the work that a job needs is known once it has succeeded"
            raise UsageError("--what-if is for a job that succeeded", hint=hint)
        self.manifest = past.manifest.model_dump(mode="json", by_alias=True, exclude_none=True)
        self._unchanged: dict[int, list[End]] = {}

    def predict(self, rule: str, manifest: DLJobManifest, seeds: int) -> WhatIf:
        """Predict the goodput under the rules of another manifest of the same job."""
        base = self._unchanged.setdefault(seeds, self._play(self.manifest, seeds))
        changed_ends = self._play(manifest.model_dump(mode="json", by_alias=True, exclude_none=True), seeds)
        # A job that is run again starts faster or slower than its record: that moves the goodput, not the difference.
        again = self._spread(manifest, seeds)
        # By pairs: the same seed draws the same durations, as far as the rule leaves them.
        differences = [new_end.goodput - old_end.goodput for new_end, old_end in zip(changed_ends, base, strict=True)]
        unchanged = mean(end.goodput for end in base)
        phases = [end.phase for end in changed_ends]
        return WhatIf(
            rule,
            self.record.goodput,
            unchanged,
            mean(differences),
            2 * max(stdev(differences), stdev(again)) + abs(unchanged - self.record.goodput),
            mean(end.seconds for end in changed_ends),
            max(phases, key=phases.count),
        )

    def _spread(self, manifest: DLJobManifest, seeds: int) -> list[float]:
        """Return the goodput of runs whose starts take more or less time than in the record."""
        record, count = self.record, min(seeds, SPREAD)
        data = manifest.model_dump(mode="json", by_alias=True, exclude_none=True)
        # Quantiles: a few runs stand for many draws.
        shares = [NormalDist().inv_cdf((number + 0.5) / count) for number in range(count)]
        paces = [record.pace.with_starts(exp(record.pace.start_spread * share)) for share in shares]
        return [Forecast(data, pace, record.strikes, seed).play().goodput for seed, pace in enumerate(paces)]

    def _play(self, manifest: Mapping[str, Any], seeds: int) -> list[End]:
        record = self.record
        return [Forecast(manifest, record.pace, record.strikes, seed).play() for seed in range(seeds)]


def predict(folder: Path, rules: Sequence[str]) -> WhatIf:
    """Predict the goodput of a finished job under changed rules, all of them together.

    Args:
        folder: The job's folder.
        rules: Such as "faultTolerance.spares.processesPerNode=1", "roles.trainer.restartPolicy.level=Process"; without
            a role, restartPolicy is that of all roles.

    Raises:
        SpecError: A rule is wrong; the error has every problem.
        UsageError: Another version of dljob ran the job, or it did not succeed.
    """
    past = Past(folder)
    # Wrong rules first: that takes no time.
    manifest = changed(past.manifest, rules)
    return Predictor(past).predict(" ".join(rules), manifest, SEEDS)


def best_what_ifs(folder: Path) -> list[dict[str, Any]]:
    """Return the rules that would have helped a job most, best first, at most three: `WhatIf.shown` of each.

    Raises:
        UsageError: As of `predict`.
    """
    _, _, predictions = rules_tried(folder)
    return [prediction.shown() for prediction in predictions[:BEST] if prediction.difference > 0]


def rules_tried(folder: Path) -> tuple[Past, Predictor, list[WhatIf]]:
    """Predict the goodput of a finished job under each rule that may have helped it; best first.

    Raises:
        UsageError: As of `predict`.
    """
    past = Past(folder)
    predictor = Predictor(past)
    predictions: list[WhatIf] = []
    for rule in _candidates(past.manifest, predictor.record):
        try:
            predictions.append(predictor.predict(rule, changed(past.manifest, [rule]), FEW))
        except (SpecError, PlacementError):
            continue  # a rule that this job cannot have
    predictions.sort(key=lambda prediction: -prediction.difference)
    return past, predictor, predictions


def _candidates(manifest: DLJobManifest, record: Recorded) -> Iterable[str]:
    """Yield rules that may help, by the faults that there were."""
    policy, kinds = manifest.spec.fault_tolerance, {strike.kind for strike in record.strikes}
    if policy.spares.processes_per_node == 0:
        yield "faultTolerance.spares.processesPerNode=1"
    if policy.backoff.initial_seconds:
        yield "faultTolerance.backoff.initialSeconds=0"
    if "node" in kinds and policy.spares.nodes == 0:
        yield "faultTolerance.spares.nodes=1"
    failed = {strike.role for strike in record.strikes if strike.role}
    for role in manifest.spec.roles:
        if role.name in failed:
            for level in ("InProcess", "Process", "RoleGroup"):
                if role.restart_policy.level != level:
                    yield f"roles.{role.name}.restartPolicy.level={level}"


def changed(manifest: DLJobManifest, rules: Sequence[str]) -> DLJobManifest:
    """Return a job with changed rules.

    Raises:
        SpecError: With every problem of every rule.
    """
    data = manifest.model_dump(mode="json", by_alias=True, exclude_none=True)
    problems: list[Problem] = []
    for rule in rules:
        problems += _change(data["spec"], rule)
    try:
        parsed = parse(data)
    except SpecError as error:
        raise SpecError((*problems, *error.problems)) from error
    if problems:
        raise SpecError(tuple(problems))
    return parsed


def _change(spec: dict[str, Any], rule: str) -> list[Problem]:
    """Set one value in a spec; return what is wrong with the rule itself."""
    path, sign, text = rule.partition("=")
    root, *rest = path.removeprefix("spec.").split(".")
    if not sign or not rest:
        return [Problem(rule, "is no rule", hint="write faultTolerance.spares.processesPerNode=1")]
    if root not in ROOTS:
        known = ", ".join(ROOTS[:-1])
        return [Problem(path, f"a what-if changes {known}", hint=did_you_mean(root, ROOTS))]
    (document,) = tree.read(f"value: {text}") or (None,)
    if document is None or document.faults or not isinstance(document.data, dict):
        return [Problem(path, f"{text!r} is no YAML value")]
    value = document.data["value"]
    if root == "restartPolicy":
        for role in spec["roles"]:
            _set(role, [root, *rest], value)
        return []
    if root != "roles":
        _set(spec, [root, *rest], value)
        return []
    names = [str(role["name"]) for role in spec["roles"]]
    if rest[0] not in names:
        return [Problem(path, f"there is no role {rest[0]}", hint=did_you_mean(rest[0], names) or ", ".join(names))]
    if len(rest) < 3 or rest[1] != "restartPolicy":
        hint = did_you_mean(rest[1] if len(rest) > 1 else "", ["restartPolicy"])
        return [Problem(path, "of a role a what-if changes restartPolicy.FIELD", hint=hint)]
    _set(spec["roles"][names.index(rest[0])], rest[1:], value)
    return []


def _set(place: dict[str, Any], path: Sequence[str], value: object) -> None:
    *parents, last = path
    for name in parents:
        inner = place.get(name)
        # What is no object is replaced by one: the check of the whole spec then names the unknown field.
        place[name] = inner if isinstance(inner, dict) else {}
        place = cast("dict[str, Any]", place[name])
    place[last] = copy.deepcopy(value)
