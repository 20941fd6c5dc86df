"""Reports of simulations as JSON-able data, and cases as files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from dljob.testing.simulate.drive import Case, case_of, shrink, simulate
from dljob.testing.world import fault_schedule


def report_case(case: Case) -> dict[str, Any]:
    """Return the report of one case, with its trace."""
    result = simulate(case, trace=True)
    return {
        "seed": result.seed,
        "phase": result.phase,
        "reason": result.reason,
        "seconds": round(result.seconds, 3),
        "events": result.events,
        "restarts": dict(result.restarts),
        "problems": list(result.problems),
        "trace": result.trace,
        "case": dump(case),
    }


def many(seeds: Iterable[int], manifest: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return how many seeds end in which way, and for those that break an invariant a minimal case."""
    ends: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    events = count = 0
    failures: list[dict[str, Any]] = []
    for seed in seeds:
        case = case_of(seed, manifest)
        result = simulate(case)
        count, events = count + 1, events + result.events
        ends[f"{result.phase} {result.reason}".strip()] += 1
        kinds.update(timed.fault.kind for timed in case.faults)
        if result.problems:
            failures.append(failure(case))
    return {
        "seeds": count,
        "events": events,
        "ends": dict(sorted(ends.items())),
        "faults": dict(sorted(kinds.items())),
        "failures": failures,
    }


def failure(case: Case) -> dict[str, Any]:
    """Return the report of a failing case, shrunk as far as it still breaks the same invariant."""
    # By the same invariant: fewer faults may break another one, which is another bug.
    law = _law(case)
    least = shrink(case, lambda tried: _law(tried) == law)
    return {"seed": case.seed, "problems": list(simulate(least).problems), "case": dump(least)}


def _law(case: Case) -> str:
    problems = simulate(case).problems
    # A message begins with the name of its invariant.
    return problems[0].partition(":")[0] if problems else ""


def dump(case: Case) -> dict[str, Any]:
    """Return a case as JSON-able data."""
    return {
        "seed": case.seed,
        "ownNodes": case.own_nodes,
        "manifest": dict(case.manifest),
        "faults": fault_schedule.dump(case.faults),
    }


def load(data: Mapping[str, Any]) -> Case:
    """Return the case from the data of `dump`."""
    return Case(data["seed"], data["manifest"], fault_schedule.load(data["faults"]), own_nodes=data["ownNodes"])
