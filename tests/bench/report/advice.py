"""Three jobs, each with another mistake, run again with the advice applied whole: predicted against measured gain.

`python tests/bench/report/advice.py [rollouts|memory|saves]`: these cases, else all. The prediction of each is written
to `advice-<case>.json` in the present folder before the second run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Row, folder, say

from dljob.report.advice import past_jobs
from dljob.report.advice.file_changes import with_proposals
from dljob.report.advice.job_use import JobUse
from dljob.report.advice.proposals import Proposal

JOB = Path(__file__).parent / "advised"
POINTS = 5.0
"""Most points between the predicted and the measured gain."""
GOODPUT, SHARE = 10.0, 25.0
"""Least gain: points of time, and percent of a resource."""


class Case(NamedTuple):
    """A job with a mistake: the field that the advice corrects, and the figure that it is about, in percent."""

    field: str
    least: float
    figure: Callable[[JobUse], float]
    faults: bool = False


def at_work(use: JobUse) -> float:
    """Return the share of its time for which the driver does not wait for rollouts."""
    calls = use.calls["driver", "rollout"]
    return 100 * (1 - calls.waited_s / calls.seconds)


def memory(use: JobUse) -> float:
    """Return how much less memory the job asks for than with the mistake, which is 1Gi a rank."""
    from dljob.spec.quantity import parse_memory

    (role,) = (role for role in use.spec["roles"] if role["name"] == "driver")
    return 100 * (1 - parse_memory(role["resources"]["memory"]) / parse_memory("1Gi"))


def goodput(use: JobUse) -> float:
    """Return the job's goodput without the time in which its driver saved."""
    own = use.roles["driver"]
    saving = own.saves.seconds / use.seconds if own.saves else 0.0
    return 100 * ((use.goodput or 0.0) - saving)


CASES = {
    "rollouts": Case("roles.rollout.replicas", GOODPUT, at_work),
    "memory": Case("roles.driver.resources.memory", SHARE, memory),
    "saves": Case("roles.driver: interval of checkpoint.save()", GOODPUT, goodput, faults=True),
}


def ran(home: Path, file: Path, case: Case, *words: str) -> Path:
    """Return the folder of the job, run to its end."""
    faults = ("--faults", str(JOB / "faults.yaml")) if case.faults else ()
    command = [sys.executable, "-m", "dljob.cli", "run", str(file), "--quiet", *faults, *words]
    environment = {**os.environ, "DLJOB_HOME": str(home)}
    subprocess.run(command, cwd=file.parent, env=environment, check=True, stdout=sys.stderr)
    return next(home.glob("jobs/*/"))


def use_of(job: Path) -> JobUse:
    """Return what a job used."""
    (use,) = past_jobs.measured([job])
    return use


def advised(name: str, case: Case, job: Path, where: Path) -> tuple[Proposal, float, tuple[str, ...]]:
    """Write the prediction, apply all advice to the job's file; return that on the mistake, all gain, and flags.

    What a rule of recovery and the interval of saves bring is added: one shortens recoveries, one what they repeat.
    """
    _, advice = past_jobs.advise([job])
    for none in advice.none:
        say(f"  no advice on {none.subject}: {none.reason}")
    found = [one for one in advice.proposals if one.subject == case.field]
    if not found:
        raise SystemExit(f"{name}: nothing was proposed for {case.field}")
    prediction: dict[str, Any] = {"case": name, "proposals": [one.data() for one in advice.proposals]}
    Path(f"advice-{name}.json").write_text(json.dumps(prediction, indent=2) + "\n")
    file = where / f"{name}.yaml"
    file.write_text(with_proposals(file.read_text(), str(file), advice.proposals))
    code = [one for one in advice.proposals if one.value is None and "checkpoint.save" in one.subject]
    steps = tuple(f"--set=config.everySteps={one.proposed.split()[0]}" for one in code)
    gain = sum(one.gain.share for one in advice.proposals if one.gain.of == found[0].gain.of)
    return found[0], 100 * gain, steps


def tried(name: str, where: Path) -> None:
    """Run one case twice and print its row."""
    case = CASES[name]
    for source in (JOB / f"{name}.yaml", JOB / "advised.py"):
        shutil.copy(source, where)
    file = where / f"{name}.yaml"
    job = ran(where / "first", file, case)
    before = case.figure(use_of(job))
    proposal, predicted, flags = advised(name, case, job, where)
    after = case.figure(use_of(ran(where / "again", file, case, *flags)))
    measured = after - before
    say(f"{name}: {proposal.now} -> {proposal.proposed}; predicted {predicted:+.1f}, measured {measured:+.1f} points")
    Row(
        f"advice {name}",
        f"gain of `{proposal.subject}` as advised, and of the job run again",
        f"<= {POINTS:g} points apart, gain >= {case.least:g}",
        abs(predicted - measured),
        POINTS,
        unit="points",
        facts={
            "predicted": round(predicted, 1),
            "uncertainty": round(100 * proposal.gain.uncertainty, 1),
            "before": round(before, 1),
            "after": round(after, 1),
            "is enough": measured >= case.least,
        },
    ).emit()


def main() -> None:
    """Try the cases that are named, or all."""
    for name in sys.argv[1:] or CASES:
        with folder() as where:
            tried(name, where)


if __name__ == "__main__":
    main()
