"""Which of several releases of the operator acts where two serve the same namespaces: the others stand by (ADR 70).

Each release has a Lease of its own with its namespaces, its version, and whether it acts. A release writes that it acts
before its last look at the others: of two that start at once, at least one sees the other. As in `leadership.lease`, a
release is gone when its Lease has not changed for long, by the clock of the observer.

Whoever may write Leases in some namespace can write one that claims to act. So a release stands by only for those in
its own namespace and in namespaces with a release to which an administrator gave rights on the whole cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from dljob.reconcile.state.fields import bounded, items, number, part, text
from dljob.reconcile.state.model import Object
from dljob.reconcile.state.names import MANAGER

LABELS = {"app.kubernetes.io/name": MANAGER}
"""Labels for people: `kubectl get leases -A -l app.kubernetes.io/name=dljob-operator`."""
VERSION = "dljob.io/operator-version"
SERVES = "dljob.io/serves"
ACTS = "dljob.io/acts"
KEY_ID = "dljob.io/token-key-id"
STANDS_BY = "dljob.io/stands-by-for"
EVERYWHERE = "*"
INSTALLED = {"app.kubernetes.io/component": "operator"}
"""A label of the ClusterRoleBinding that the chart makes, in every version of it."""
CHART = "helm.sh/chart"
LONGEST = 60
"""Most seconds that another release's Lease counts without a renewal, whatever duration it tells."""

Key: TypeAlias = tuple[str, str]
"""Namespace and name of a Lease."""


@dataclass(frozen=True, slots=True)
class Installation:
    """A release of the operator, as its Lease describes it."""

    namespace: str
    name: str
    """The name of its Lease, which the chart gives to the Deployment as well."""
    created: str = ""
    version: str = ""
    """The version of dljob; empty: the release is older than this annotation."""
    serves: tuple[str, ...] = ()
    """The namespaces that it serves; empty: all."""
    acts: bool = False
    key: str = ""
    """The id of its token key (`dljob.kube.token_key`); empty: unknown."""

    @property
    def age(self) -> tuple[str, str, str]:
        """The sort key of releases, oldest first."""
        return self.created, self.namespace, self.name

    def overlaps(self, installation: Installation) -> bool:
        """Whether both releases serve some namespace."""
        return not self.serves or not installation.serves or not set(self.serves).isdisjoint(installation.serves)

    def has_another_key(self, installation: Installation) -> bool:
        """Whether neither can reach the RayClusters that the other has made."""
        return bool(self.key and installation.key) and self.key != installation.key

    def notes(self) -> dict[str, str]:
        """Return the annotations that describe the release, apart from whether it acts."""
        return {VERSION: self.version, SERVES: ",".join(self.serves) or EVERYWHERE, KEY_ID: self.key}

    def __str__(self) -> str:
        """Return the release in words, for messages."""
        of = f"version {self.version}" if self.version else "of a version whose Lease does not tell what it serves"
        return f"the release {self.name} in namespace {self.namespace} ({of})"


def release_of(lease: Object) -> Installation | None:
    """Return the release that a Lease belongs to; None: it belongs to no dljob operator.

    A Lease of a version without annotations is recognized by its field manager. Such an operator considers no others,
    acts, and may serve any namespace.
    """
    notes = part(lease, "metadata", "annotations")
    place = text(lease, "metadata", "namespace"), text(lease, "metadata", "name")
    created = text(lease, "metadata", "creationTimestamp")
    if SERVES in notes:
        named = text(notes, SERVES)
        serves = () if named == EVERYWHERE else tuple(named.split(","))
        version = "".join(
            character if character.isprintable() else "?" for character in bounded(text(notes, VERSION), 63)
        )
        key = bounded(text(notes, KEY_ID), 63)
        return Installation(*place, created, version, serves, acts=text(notes, ACTS) == "true", key=key)
    if any(entry.get("manager") == MANAGER for entry in items(lease, "metadata", "managedFields")):
        return Installation(*place, created, acts=True)
    return None


def installed_in(bindings: Iterable[Object]) -> set[str]:
    """Return the namespaces of releases for the whole cluster, by the ClusterRoleBindings of the chart.

    Only an administrator of the cluster can write one.
    """
    chart_bindings = [
        binding for binding in bindings if text(binding, "metadata", "labels", CHART).startswith("dljob-")
    ]
    return {text(subject, "namespace") for binding in chart_bindings for subject in items(binding, "subjects")} - {""}


@dataclass(frozen=True, slots=True)
class LeaseObservations:
    """The Leases of all releases as last seen, each with the time at which its content was first seen."""

    grace: float
    """Seconds that an expired or abandoned Lease is left to the other replicas of its own release."""
    leases: Mapping[Key, tuple[Object, float]] = field(default_factory=dict[Key, tuple[Object, float]])

    def observe(self, leases: Iterable[Object], now: float) -> LeaseObservations:
        """Return the sightings after a list of all Leases. One that is missing ages like one that is not renewed."""
        observed = {key: observation for key, observation in self.leases.items() if self._is_valid(*observation, now)}
        for lease in leases:
            key = text(lease, "metadata", "namespace"), text(lease, "metadata", "name")
            before = self.leases.get(key)
            same = before is not None and part(before[0], "spec") == part(lease, "spec")
            observed[key] = (lease, before[1] if before and same else now)
        return LeaseObservations(self.grace, observed)

    def alive(self, now: float) -> tuple[Installation, ...]:
        """Return the releases that are alive, oldest first."""
        return self._releases(now, alive=True)

    def silent(self, now: float) -> tuple[Installation, ...]:
        """Return the releases whose Lease is there and is not renewed, oldest first: they have no replica now."""
        return self._releases(now, alive=False)

    def _releases(self, now: float, *, alive: bool) -> tuple[Installation, ...]:
        leases = (lease for lease, changed in self.leases.values() if self._is_valid(lease, changed, now) == alive)
        return tuple(
            sorted((release for release in map(release_of, leases) if release), key=lambda release: release.age)
        )

    def _is_valid(self, lease: Object, changed: float, now: float) -> bool:
        # Bounded: whoever may write a Lease in some namespace could write one there that lasts for years.
        return now < changed + min(number(lease, "spec", "leaseDurationSeconds"), LONGEST) + self.grace


ONE_KEY = "give both one tokenKey.existingSecret"


def stands_by_for(
    own_installation: Installation, others: Iterable[Installation], silent: Iterable[Installation] = ()
) -> tuple[Installation, str] | None:
    """Return the release for which this one, which does not act yet, must stand by, with the reason; None: it may act.

    A release that acts continues when others start. Where none acts yet the oldest does; a release that stands by for
    another one is not waited for. One of the `silent` that acted last is waited for where it has another token key: the
    heads of its jobs refuse this one, and the jobs would stand still.
    """
    # An acting release comes first, then an older one: a newcomer never interrupts a release that runs jobs.
    other_installations = tuple(others)
    acting = [installation for installation in other_installations if installation.acts]
    for installation in acting:
        if installation.overlaps(own_installation):
            key = f", with another token key, so this one never takes them over: {ONE_KEY}"
            jobs = _shared(own_installation, installation)
            more = key if installation.has_another_key(own_installation) else ""
            return installation, f"{installation} acts on {jobs}{more}"
    for installation in other_installations:
        if (
            installation.overlaps(own_installation)
            and installation.age < own_installation.age
            and not any(another.overlaps(installation) for another in acting)
        ):
            return (
                installation,
                f"{installation} is older and about to act on {_shared(own_installation, installation)}",
            )
    for release in silent:
        if release.acts and release.overlaps(own_installation) and release.has_another_key(own_installation):
            forget = f"where it is uninstalled, `kubectl delete lease {release.name} -n {release.namespace}`"
            jobs = f"{_shared(own_installation, release)} with another token key, so that their heads refuse this one"
            return release, f"{release} does not run, and acted on {jobs}: start it again, {ONE_KEY}, or, {forget}"
    return None


def acts_too(own_installation: Installation, others: Iterable[Installation]) -> tuple[Installation, str] | None:
    """Return another release that acts on the same jobs as ours, which acts already.

    Such a release considers no others, or cannot see our Lease.
    """
    for installation in others:
        if installation.acts and installation.overlaps(own_installation):
            return installation, f"{installation} acts on {_shared(own_installation, installation)} too"
    return None


def _shared(own_installation: Installation, installation: Installation) -> str:
    if not own_installation.serves or not installation.serves:
        both = own_installation.serves or installation.serves
    else:
        both = tuple(name for name in own_installation.serves if name in installation.serves)
    return f"the DLJobs of {', '.join(both)}" if both else "the DLJobs of all namespaces"
