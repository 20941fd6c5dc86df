"""What simulations tell, as JSON-able data, and cases as files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from dljob.testing.simulate.drive import Case, case_of, shrink, simulate
from dljob.testing.world import fault_schedule


def one(case: Case) -> dict[str, Any]:
    """All that happens in one case."""
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
    """How many seeds end how; those that break a law with the least that it takes."""
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
    """A case that breaks a law, made as small as it gets while it breaks the same one."""
    law = _law(case)
    least = shrink(case, lambda tried: _law(tried) == law)
    return {"seed": case.seed, "problems": list(simulate(least).problems), "case": dump(least)}


def _law(case: Case) -> str:
    problems = simulate(case).problems
    return problems[0].partition(":")[0] if problems else ""


def dump(case: Case) -> dict[str, Any]:
    """A case as JSON-able data."""
    return {
        "seed": case.seed,
        "ownNodes": case.own_nodes,
        "manifest": dict(case.manifest),
        "faults": fault_schedule.dump(case.faults),
    }


def load(data: Mapping[str, Any]) -> Case:
    """What `dump` gave."""
    return Case(data["seed"], data["manifest"], fault_schedule.load(data["faults"]), own_nodes=data["ownNodes"])
