"""Other releases of the operator, known by their Leases: listed, remembered, and logged when they change.

`dljob.reconcile.leadership.releases` decides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from dljob.kube.api import LEASES, ApiError, Json, Kube
from dljob.reconcile.leadership import releases
from dljob.reconcile.leadership.lease import LeaseTiming
from dljob.reconcile.leadership.releases import Installation, LeaseObservations
from dljob.reconcile.state.fields import text
from dljob.reconcile.state.model import Object

log = logging.getLogger(__package__)

Show: TypeAlias = Callable[[Installation | None, Literal["StandsBy", "BothAct"]], None]
"""Shows the other release and the effect in the metrics; None: there is none."""
_NO_NODES = "metadata.namespace!=kube-node-lease"
"""Field selector that leaves out the Leases of the kubelets, one for each node."""
ONE_OF_THEM = "one of the two is to be uninstalled, or its rbac.scope and watchNamespaces narrowed (helm list -A)"


class Releases:
    """Knowledge of this release, `ours`, about the others."""

    def __init__(
        self, kube: Kube, ours: Installation, pace: LeaseTiming, show: Show, *, clock: Callable[[], float]
    ) -> None:
        self._kube = kube
        self._ours = ours
        self._pace = pace
        self._show = show
        self._clock = clock
        self._observations = LeaseObservations(pace.duration / 2)
        self._listed_at: float | None = None
        self._logged = ""
        self._refused = False
        self.stands_by = ""
        """Why this release stands by; empty: it does not."""
        self.acts_too = ""
        """The other release that acts on the same jobs, although this one acts."""

    @property
    def due(self) -> bool:
        """Whether a standby should look again."""
        return self._listed_at is None or self._clock() >= self._listed_at + self._pace.duration

    async def refresh(self) -> None:
        """List the Leases that this account may read. Without the right it acts as if alone, and logs that once.

        Raises:
            ApiError: the list failed this time.
        """
        found: list[Json] = []
        try:
            for namespace in self._namespaces():
                fields = "" if namespace else _NO_NODES
                found += await self._kube.list(LEASES, namespace, fields=fields)
        except ApiError as error:
            if error.status != 403:
                raise
            if not self._refused:
                log.warning("other releases of the operator cannot be seen: %s; `helm upgrade` grants the right", error)
            # An older chart's role lacks the right: the release then acts as before it was asked for (ADR 70).
            self._refused = True
        now = self._listed_at = self._clock()
        # Replicas of this release share one Lease, which is not another release.
        own = (self._ours.namespace, self._ours.name)
        others = [lease for lease in found if releases.release_of(lease) and _key(lease) != own]
        self._observations = self._observations.observe(others, now)

    def ask(self, lease: Object) -> str:
        """Return why this release, with this Lease, must stand by; empty: it may act."""
        there = releases.stands_by_for(self._of(lease), self._observations.alive(self._clock()))
        self.stands_by = there[1] if there else ""
        self._tell("StandsBy", there, "standing by")
        return self.stands_by

    def warn(self, lease: Object, *, acts: bool) -> None:
        """Log another release that acts although this one does."""
        there = releases.acts_too(self._of(lease), self._observations.alive(self._clock())) if acts else None
        self.acts_too = there[1] if there else ""
        self._tell("BothAct", there, "two releases act")

    def forget_logged(self) -> None:
        """Forget what was shown: another replica holds the Lease, and reports other releases."""
        self.stands_by = self.acts_too = self._logged = ""
        self._show(None, "StandsBy")

    def _namespaces(self) -> Sequence[str | None]:
        """Return the namespaces whose Leases are listed; the one entry None stands for all."""
        return sorted({*self._ours.serves, self._ours.namespace}) if self._ours.serves else (None,)

    def _of(self, lease: Object) -> Installation:
        created = text(lease, "metadata", "creationTimestamp")
        ours = self._ours
        return Installation(ours.namespace, ours.name, created, ours.version, ours.serves)

    def _tell(self, effect: Literal["StandsBy", "BothAct"], there: tuple[Installation, str] | None, what: str) -> None:
        words = f"{what}: {there[1]}" if there else ""
        if words != self._logged:
            self._show(there[0] if there else None, effect)
            if there:
                log.error("%s; this is %s: %s", words, self._ours, ONE_OF_THEM)
            else:
                log.info("no other release acts on this one's namespaces")
        self._logged = words


def _key(lease: Object) -> tuple[str, str]:
    return text(lease, "metadata", "namespace"), text(lease, "metadata", "name")
