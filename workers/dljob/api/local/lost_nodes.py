"""Raylets of an embedded Ray that were lost, and others in their place for a job that needs them.

A job that goes on without the node (a hot spare takes over, an Elastic role shrinks) needs none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dljob.api.views import entries
from dljob.errors import UnreachableError
from dljob.master.state.state import UnitPhase
from dljob.telemetry.wording import counted

if TYPE_CHECKING:
    from dljob.runtime.backend.embedded import EmbeddedRay

WAIT_S = 1.0
"""Seconds for which ranks must have needed a machine: another node may take them."""
_HOMELESS = (UnitPhase.UNPLACED, UnitPhase.LOST)


class LostNodes:
    """Starts a raylet in place of a lost one once ranks need a machine."""

    def __init__(self, ray: EmbeddedRay, say: Callable[[str], None]) -> None:
        self._ray = ray
        self._say = say
        self._needed_since: float | None = None

    def patience(self) -> float:
        """Return for how many seconds nothing has to be looked at."""
        return WAIT_S if self._ray.lost_nodes else float("inf")

    def __call__(self, status: Mapping[str, Any], notes: Sequence[Mapping[str, Any]]) -> None:
        """Take part in the watch of one job, whose notes tell nothing about machines."""
        del notes
        self.look([status])

    def look(self, statuses: Iterable[Mapping[str, Any]]) -> None:
        """Replace the lost raylets if ranks of these jobs have waited for a machine for WAIT_S."""
        lost = self._ray.lost_nodes
        if not lost or not any(
            unit.get("phase") in _HOMELESS for status in statuses for unit in entries(status, "units")
        ):
            self._needed_since = None
            return
        now = time.monotonic()
        if self._needed_since is None:
            self._needed_since = now
        if now - self._needed_since < WAIT_S:
            return
        self._say(f"{counted(len(lost), 'raylet')} of this Ray ended; starting as many, as ranks need a machine")
        try:
            self._ray.replace_lost_nodes()
        except UnreachableError as error:
            self._say(f"{error.message}; it is tried again")
            self._needed_since = None
