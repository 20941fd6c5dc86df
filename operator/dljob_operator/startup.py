"""How long each stage of a job's start takes, for the jobs that this process saw from its beginning to its end."""

from __future__ import annotations

import time
from collections.abc import Callable

from dljob.control.fields import items, text
from dljob.control.model import Create, Object, Outcome, Submit
from dljob.telemetry.catalog import STARTUP_STAGES
from dljob_operator.workqueue import Key


class Startup:
    """Remembers of each job that is starting when it came through its last stage."""

    def __init__(self, report: Callable[[str, float], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._report = report
        self._clock = clock
        self._last: dict[Key, tuple[int, float]] = {}
        """The index of the next stage, and when the one before was through."""

    def seen(self, key: Key, job: Object) -> None:
        """A DLJob was told of; one without a status has just been made."""
        if not job.get("status") and key not in self._last:
            self._last[key] = (0, self._clock())

    def passed(self, key: Key, cluster: Object | None, outcome: Outcome) -> None:
        """A pass was carried out."""
        if key not in self._last:
            return
        kinds = {action.kind for action in outcome.actions if isinstance(action, Create)}
        if cluster is not None or "RayCluster" in kinds:
            self._reach(key, "cluster")
        if _head_ready(cluster):
            self._reach(key, "head")
        if any(isinstance(action, Submit) for action in outcome.actions):
            self._reach(key, "submit")
        if text(outcome.status, "phase") == "Running":
            self._reach(key, "run")
        if outcome.status is not None and (outcome.status.get("attempt") or 1) > 1:
            self.forget(key)

    def forget(self, key: Key) -> None:
        """Its start is over, or is no ordinary one."""
        self._last.pop(key, None)

    def _reach(self, key: Key, stage: str) -> None:
        following, since = self._last.get(key, (len(STARTUP_STAGES), 0.0))
        if STARTUP_STAGES.index(stage) != following:
            return
        now = self._clock()
        self._report(stage, now - since)
        self._last[key] = (following + 1, now)
        if following + 1 == len(STARTUP_STAGES):
            self.forget(key)


def _head_ready(cluster: Object | None) -> bool:
    conditions = items(cluster, "status", "conditions")
    return any(one["type"] == "HeadPodReady" and one["status"] == "True" for one in conditions)
