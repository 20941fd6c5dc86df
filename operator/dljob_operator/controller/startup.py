"""Durations of the stages of a job's start, for jobs that this process saw from the beginning to the end."""

from __future__ import annotations

import time
from collections.abc import Callable

from dljob.reconcile.state.fields import items, text
from dljob.reconcile.state.model import Create, Object, ReconcileResult, Submit
from dljob.telemetry.catalog import STARTUP_STAGES
from dljob_operator.watch.workqueue import Key


class Startup:
    """Remembers for each starting job when it passed its last stage."""

    def __init__(self, report: Callable[[str, float], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._report = report
        self._clock = clock
        self._last: dict[Key, tuple[int, float]] = {}
        """Index of the next stage, and the time of the one before."""

    def begin(self, key: Key, job: Object) -> None:
        """Begin the measurement of a new DLJob; one with a phase was created earlier."""
        # The API server itself gives a new one a status: the observedGeneration 0, for kstatus.
        if not text(job, "status", "phase") and key not in self._last:
            self._last[key] = (0, self._clock())

    def passed(self, key: Key, cluster: Object | None, outcome: ReconcileResult) -> None:
        """Record the stages that a successful pass reached."""
        if key not in self._last:
            return
        kinds = {action.kind for action in outcome.actions if isinstance(action, Create)}
        # Observed, or created by this very pass, which observed none yet.
        if cluster is not None or "RayCluster" in kinds:
            self._reach(key, "cluster")
        if _head_ready(cluster):
            self._reach(key, "head")
        if any(isinstance(action, Submit) for action in outcome.actions):
            self._reach(key, "submit")
        if text(outcome.status, "phase") == "Running":
            self._reach(key, "run")
        # A second attempt is no ordinary start, and its times would spoil the histogram.
        if outcome.status is not None and (outcome.status.get("attempt") or 1) > 1:
            self.forget(key)

    def forget(self, key: Key) -> None:
        """Stop measuring a job, whose start is over or not ordinary."""
        self._last.pop(key, None)

    def _reach(self, key: Key, stage: str) -> None:
        following, since = self._last.get(key, (len(STARTUP_STAGES), 0.0))
        # Each stage is timed once, and in order.
        if STARTUP_STAGES.index(stage) != following:
            return
        now = self._clock()
        self._report(stage, now - since)
        self._last[key] = (following + 1, now)
        if following + 1 == len(STARTUP_STAGES):
            self.forget(key)


def _head_ready(cluster: Object | None) -> bool:
    conditions = items(cluster, "status", "conditions")
    return any(condition["type"] == "HeadPodReady" and condition["status"] == "True" for condition in conditions)
