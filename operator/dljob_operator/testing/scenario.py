"""Stories of a job on Kubernetes: drawn from a seed, run, judged, and reduced to the faults that a violation needs."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any

from dljob.reconcile.state import accept, reasons
from dljob.reconcile.state.context import seconds
from dljob.reconcile.state.fields import number, part, text
from dljob.testing.simulate.shrink import fewest
from dljob.testing.world.fault_schedule import chance
from dljob_operator.testing import invariants as laws
from dljob_operator.testing.checked_story import CheckedStory
from dljob_operator.testing.faults import HARMLESS, RESUMING, SLOW, Mishap, draw, happen, harmless, mend
from dljob_operator.testing.world import EPOCH_S, StoryState

HORIZON_S = 300.0
PATIENCE_S = 4000.0
"""Seconds after the last fault within which a job must end, and everything of it be removed."""
REST_S = 800.0
"""Seconds after that in which nothing may be written."""


@dataclass(frozen=True, slots=True)
class Story:
    """A DLJob, the seconds that it works, its faults, and the seed of all else."""

    seed: int
    manifest: Mapping[str, Any]
    work: float
    fails: bool
    mishaps: tuple[Mishap, ...]


@dataclass(slots=True)
class Ended:
    """Result of a story."""

    problems: tuple[str, ...]
    phase: str
    reason: str
    attempts: int
    writes: int
    most: int
    """The most writes in a row without an event from outside."""
    seconds: float
    trace: list[str] = field(default_factory=list[str])


def story_of(seed: int, of: Collection[str] = ()) -> Story:
    """Return the story of a seed, with faults of the kinds in `of` alone, if any are named.

    In a third of the stories faults come close to what the operator does in the same story without them: an order and
    its submission are 20 ms apart, which chance alone hardly ever hits.
    """
    rng = chance(f"operator {seed}")
    shared = rng.random() < 0.25
    kinds = of or (HARMLESS if rng.random() < 0.3 else ())
    most, horizon = rng.choice((1, 4, 10, 25)), rng.choice((20.0, 60.0, HORIZON_S))
    manifest = _manifest(rng, shared=shared)
    # Chance of its own, so that this draw shifts none of the others.
    if not shared and chance(f"operator head {seed}").random() < 0.3:
        manifest["spec"]["gcsFaultTolerance"] = {"backend": "RocksDB", "claimName": "gcs"}
    # The same: a chance of its own.
    going_on = chance(f"operator resume {seed}")
    if resumes := "resume" in of or (not of and going_on.random() < 0.2):
        manifest["spec"]["checkpoint"] = {"path": "/ckpt"}
    story = Story(seed, manifest, rng.choice((3.0, 30.0, 120.0)), rng.random() < 0.2, ())
    aims = _play(story)[0].acted if of or rng.random() < 0.33 else ()
    mishaps = draw(rng, most, horizon, kinds, aims)
    if not of and resumes:
        mishaps += draw(going_on, 6, horizon, RESUMING, aims)
    # The same: a chance of its own.
    slow = chance(f"operator slow {seed}")
    if not of and slow.random() < 0.15:
        mishaps += draw(slow, 4, horizon, SLOW, aims)
    return replace(story, mishaps=tuple(sorted(mishaps, key=lambda mishap: mishap.at)))


def _manifest(rng: Random, *, shared: bool) -> dict[str, Any]:
    role = {"name": "worker", "replicas": 2, "entrypoint": {"class": "hello.main"}, "resources": {"cpu": "500m"}}
    spec: dict[str, Any] = {"roles": [role], "faultTolerance": {"maxClusterRestarts": rng.choice((0, 1, 3))}}
    labels: dict[str, str] = {}
    if shared:
        spec["rayClusterRef"] = {"name": "shared"}
    else:
        spec["cleanupPolicy"] = rng.choice(("DeleteCluster", "DeleteCluster", "Retain"))
        labels = {"kueue.x-k8s.io/queue-name": "team"} if rng.random() < 0.2 else {}
    if rng.random() < 0.3:
        spec["ttlSecondsAfterFinished"] = rng.choice((0, 30, 600))
    if rng.random() < 0.2:
        spec["activeDeadlineSeconds"] = rng.choice((20, 200))
    if rng.random() < 0.2:
        spec["preRunningDeadlineSeconds"] = rng.choice((5, 60))
    return {"metadata": {"labels": labels}, "spec": spec}


def tell(story: Story, *, trace: bool = False) -> Ended:
    """Run a story: first its faults, then none until the job has ended, then a time in which nothing may be written."""
    w, problems = _play(story, trace=trace)
    return Ended(
        problems=tuple(problems),
        phase=w.phase,
        reason=text(w.last, "status", "reason"),
        attempts=number(w.last, "status", "attempt") or 1,
        writes=w.writes,
        most=w.most,
        seconds=w.agenda.now - EPOCH_S,
        trace=w.trace or [],
    )


def _play(story: Story, *, trace: bool = False) -> tuple[StoryState, list[str]]:
    w = CheckedStory(story.manifest, story.work, chance(f"delays {story.seed}"))
    w.fails = story.fails
    w.trace = [] if trace else None
    with _listening(w):
        try:
            return w, _problems(story, w)
        finally:
            w.close()


def _problems(story: Story, w: StoryState) -> list[str]:
    for mishap in story.mishaps:
        w.agenda.at(EPOCH_S + mishap.at, lambda mishap=mishap: happen(w, mishap))
    calm = max((mishap.at for mishap in story.mishaps), default=0.0) + 30.0
    w.agenda.run(EPOCH_S + calm, lambda: bool(w.problems))
    mend(w)
    w.agenda.run(w.agenda.now + PATIENCE_S, lambda: bool(w.problems))
    problems = [*w.problems] or [*laws.at_the_end(w), *_harmless(story, w)]
    if not problems:
        before = w.writes
        w.agenda.run(w.agenda.now + REST_S, lambda: bool(w.problems))
        if w.writes != before:
            problems.append(f"unrest: {w.writes - before} writes about a job at rest")
        problems += w.problems
    return problems


class _ShellLog(logging.Handler):
    """Handler of the operators' log, in which an error is a violation: the shell survives its bugs, and logs them."""

    def __init__(self, w: StoryState) -> None:
        super().__init__()
        self._w = w

    def emit(self, record: logging.LogRecord) -> None:
        """Report an error, or a warning with a traceback."""
        if record.exc_info and (error := record.exc_info[1]):
            self._w.broken(f"raised: {type(error).__name__}: {error}")
        elif record.levelno >= logging.ERROR:
            self._w.broken(f"{'restless' if 'without end' in record.msg else 'logged'}: {record.getMessage()}")


@contextlib.contextmanager
def _listening(w: StoryState) -> Generator[None]:
    """Handle the operators' log here, and keep it from the terminal."""
    shell, handler = logging.getLogger("dljob_operator"), _ShellLog(w)
    before = shell.level, shell.propagate
    shell.addHandler(handler)
    shell.setLevel(logging.WARNING)
    shell.propagate = False
    try:
        yield
    finally:
        shell.removeHandler(handler)
        shell.setLevel(before[0])
        shell.propagate = before[1]


def _harmless(story: Story, w: StoryState) -> list[str]:
    """Return the violation of a story whose faults hit only operators and their calls: they cost no attempt."""
    if not all(harmless(mishap) for mishap in story.mishaps):
        return []
    status = part(w.last, "status")
    if number(status, "attempt") > 1:
        return [f"cost: attempt {status['attempt']}, and nothing befell the job: {status.get('lastFault')}"]
    if text(status, "reason") == reasons.CLUSTER_RESTARTS_EXHAUSTED:
        return [f"cost: the last attempt, and nothing befell the job: {text(status, 'message')}"]
    masters = [m.phase for head in w.nature.heads for m in head.masters.values()]
    if w.phase in ("Failed", "Stopped") and "Succeeded" in masters and not _came_too_late(w):
        return [f"verdict: {w.phase}, and PrimeMaster said otherwise: {text(status, 'reason')}"]
    return []


def _came_too_late(w: StoryState) -> bool:
    """Whether no rank had begun when preRunningDeadlineSeconds had passed, whoever saw that.

    Then Failed is the true end, as reconcile/policies/stopping.py, `_never_ran`, has it: also of a job that an operator
    cannot reach to stop it, and that ends well while its RayCluster is being deleted.
    """
    status = part(w.last, "status")
    limit, start = accept.live(accept.source(w.last)).pre_running_deadline, seconds(text(status, "startTime"))
    if text(status, "reason") != reasons.PRE_RUNNING_DEADLINE or limit is None or start is None:
        return False
    began = [m.ran for head in w.nature.heads for m in head.masters.values() if m.ran]
    return min(began) > start + limit


# -- many


def run_story(story: Story) -> dict[str, Any]:
    """Run one story, and return its result and trace."""
    ended = tell(story, trace=True)
    return {
        "seed": story.seed,
        "phase": ended.phase,
        "reason": ended.reason,
        "seconds": round(ended.seconds, 3),
        "attempts": ended.attempts,
        "writes": ended.writes,
        "problems": list(ended.problems),
        "trace": ended.trace,
        "case": dump(story),
    }


def many(seeds: Iterable[int]) -> dict[str, Any]:
    """Run seeds; return counts of how they end, and each failure with the fewest faults that it needs."""
    ends: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    attempts: Counter[int] = Counter()
    count = writes = most = 0
    failures: list[dict[str, Any]] = []
    for seed in seeds:
        story = story_of(seed)
        ended = tell(story)
        count, writes, most = count + 1, writes + ended.writes, max(most, ended.most)
        ends[f"{ended.phase} {ended.reason}".strip() or "gone"] += 1
        attempts[ended.attempts] += 1
        kinds.update(mishap.kind for mishap in story.mishaps)
        if ended.problems:
            failures.append(failure(story))
    return {
        "seeds": count,
        "writes": writes,
        "mostWritesUnprovoked": most,
        "attempts": dict(sorted(attempts.items())),
        "ends": dict(sorted(ends.items())),
        "faults": dict(sorted(kinds.items())),
        "failures": failures,
    }


def failure(story: Story) -> dict[str, Any]:
    """Reduce a story to the fewest faults that violate the same invariant."""
    law = _law(story)
    # By the same invariant: fewer faults may violate another one, which is another bug.
    mishaps = fewest(story.mishaps, lambda tried: _law(replace(story, mishaps=tried)) == law)
    least = replace(story, mishaps=mishaps)
    return {"seed": story.seed, "problems": list(tell(least).problems), "case": dump(least)}


def _law(story: Story) -> str:
    problems = tell(story).problems
    return problems[0].partition(":")[0] if problems else ""


def dump(story: Story) -> dict[str, Any]:
    """Return a story as JSON data."""
    return {
        "operator": True,
        "seed": story.seed,
        "manifest": dict(story.manifest),
        "work": story.work,
        "fails": story.fails,
        "faults": [asdict(mishap) for mishap in story.mishaps],
    }


def load(data: Mapping[str, Any]) -> Story:
    """Return the story of data that `dump` made."""
    mishaps: Sequence[Mapping[str, Any]] = data["faults"]
    return Story(
        data["seed"], data["manifest"], data["work"], data["fails"], tuple(Mishap(**mishap) for mishap in mishaps)
    )
