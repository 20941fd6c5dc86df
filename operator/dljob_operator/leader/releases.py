"""Other releases of the operator, known by their Leases: listed, remembered, and logged when they change.

`dljob.reconcile.leadership.releases` decides.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Literal, TypeAlias

from dljob.kube.api import LEASES, ApiError, Json, Kube
from dljob.kube.resources import CLUSTER_ROLE_BINDINGS
from dljob.reconcile.leadership import releases
from dljob.reconcile.leadership.lease import LeaseTiming
from dljob.reconcile.leadership.releases import Installation, LeaseObservations
from dljob.reconcile.state.fields import text
from dljob.reconcile.state.model import Object

log = logging.getLogger(__package__)

Show: TypeAlias = Callable[[Installation | None, Literal["StandsBy", "BothAct"]], None]
"""Shows the other release and the effect in the metrics; None: there is none."""
_INSTALLED, _LABELLED = (
    ",".join(f"{key}={value}" for key, value in labels.items()) for labels in (releases.INSTALLED, releases.LABELS)
)
FEW = 10
"""Leases of tenants that one look reads, in each place: anybody may have written thousands, of 256 KiB each."""
LONGEST_PAUSE = 120.0
"""Most seconds between two looks. The pause doubles with each: an idle operator asks for little."""
ONE_OF_THEM = "one of the two is to be uninstalled, or its rbac.scope and watchNamespaces narrowed (helm list -A)"


class Releases:
    """Knowledge of this release, `ours`, about the others."""

    def __init__(
        self, kube: Kube, own_installation: Installation, pace: LeaseTiming, show: Show, *, clock: Callable[[], float]
    ) -> None:
        self._kube = kube
        self._ours = own_installation
        self._pace = pace
        self._show = show
        self._clock = clock
        self._observations = LeaseObservations(pace.duration / 2)
        self._trusted = {own_installation.namespace}
        """Namespaces whose Leases can make this release stand by."""
        self._listed_at: float | None = None
        self._pause = 0.0
        self._logged = ""
        self._refused = False
        self.stands_by = ""
        """Why this release stands by; empty: it does not."""
        self.acts_too = ""
        """The other release that acts on the same jobs, although this one acts."""

    @property
    def is_due(self) -> bool:
        """Whether to look again: a replica that does not decide now needs only to know roughly who else is there."""
        return self._listed_at is None or self._clock() >= self._listed_at + self._pause

    async def refresh(self, *, everywhere: bool = False) -> None:
        """List the Leases of releases for which this one may stand by; without the right it acts as if alone.

        Args:
            everywhere: also look at some Leases that count for nothing, so that a conflict can be reported.

        Raises:
            ApiError: a list failed this time.
        """
        # Before the lists: one that fails is not repeated at once.
        self._listed_at = self._clock()
        self._pause = min(LONGEST_PAUSE, max(2 * self._pause, self._pace.duration))
        await self._find_trusted()
        leases: list[Json] = []
        for namespace in sorted(self._trusted):
            leases += await self._granted(self._kube.list(LEASES, namespace))
        if everywhere:
            for served in self._ours.serves or (None,):
                leases += await self._granted(self._some_leases(served))
        # Replicas of this release share one Lease, which is not another release.
        own_key = (self._ours.namespace, self._ours.name)
        others = [lease for lease in leases if releases.release_of(lease) and _key(lease) != own_key]
        self._observations = self._observations.observe(others, self._clock())

    def ask(self, lease: Object) -> str:
        """Return why this release, with this Lease, must stand by; empty: it may act."""
        self._pause = self._pace.duration  # the next look is soon: another release may begin at the same time
        now = self._clock()
        alive, silent = (
            [release for release in known if release.namespace in self._trusted]
            for known in (self._observations.alive(now), self._observations.silent(now))
        )
        blocking = releases.stands_by_for(self._of(lease), alive, silent)
        self.stands_by = blocking[1] if blocking else ""
        self._tell("StandsBy", blocking, "standing by")
        return self.stands_by

    def warn(self, lease: Object, *, acts: bool) -> None:
        """Log another release that acts although this one does."""
        acting = releases.acts_too(self._of(lease), self._observations.alive(self._clock())) if acts else None
        self.acts_too = acting[1] if acting else ""
        self._tell("BothAct", acting, "two releases act")

    def forget_logged(self) -> None:
        """Forget what was shown: another replica holds the Lease, and reports other releases."""
        self.stands_by = self.acts_too = self._logged = ""
        self._show(None, "StandsBy")

    async def _find_trusted(self) -> None:
        """Find the namespaces whose Leases count: a tenant can write Leases elsewhere, and claim anything in them."""
        # A release for some namespaces may not list ClusterRoleBindings: it believes its own namespace alone.
        if not self._ours.serves:
            bindings = await self._granted(self._kube.list(CLUSTER_ROLE_BINDINGS, labels=_INSTALLED))
            self._trusted = {self._ours.namespace, *releases.installed_in(bindings)}

    async def _some_leases(self, namespace: str | None) -> list[Json]:
        async for page in self._kube.pages(LEASES, namespace, labels=_LABELLED, limit=FEW):
            return page["items"]
        return []

    async def _granted(self, listed: Awaitable[list[Json]]) -> list[Json]:
        """Return what is listed; nothing, and a warning once, without the right to list it."""
        try:
            return await listed
        except ApiError as error:
            if error.status != 403:
                raise
            if not self._refused:
                log.warning("other releases of the operator cannot be seen: %s; `helm upgrade` grants the right", error)
            # An older chart's role lacks the right: the release then acts as before it was asked for (ADR 70).
            self._refused = True
            return []

    def _of(self, lease: Object) -> Installation:
        created = text(lease, "metadata", "creationTimestamp")
        return replace(self._ours, created=created)

    def _tell(
        self, effect: Literal["StandsBy", "BothAct"], other_release: tuple[Installation, str] | None, headline: str
    ) -> None:
        words = f"{headline}: {other_release[1]}" if other_release else ""
        if words != self._logged:
            self._show(other_release[0] if other_release else None, effect)
            if other_release:
                log.error("%s; this is %s: %s", words, self._ours, ONE_OF_THEM)
            else:
                log.info("no other release acts on this one's namespaces")
        self._logged = words


def _key(lease: Object) -> tuple[str, str]:
    return text(lease, "metadata", "namespace"), text(lease, "metadata", "name")
