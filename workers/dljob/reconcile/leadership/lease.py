"""Leader election: one of several operators holds a Lease and acts; the others wait until it is given up or expires.

No wall clock is compared with another. A Lease has expired when it has not changed for its duration by the clock of the
observer. Its holder stops earlier by its own clock, counted from before it sent the last accepted renewal. The API
server accepts a write only with the current resourceVersion, so two candidates never take the Lease at once (ADR 37).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from dljob.reconcile.leadership.releases import ACTS, LABELS, STANDS_BY
from dljob.reconcile.state.fields import number, part, text
from dljob.reconcile.state.model import Object

DURATION = 8
"""Seconds that a Lease lasts without renewal. With it another operator acts within 10 s of a leader's death."""
RETRY = 2.6
"""Seconds between renewals, of which three fit into the duration: each is a write to etcd, also where no job runs."""


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """The duration of a Lease and the time between renewals, in seconds."""

    duration: int = DURATION
    retry: float = RETRY

    @property
    def poll_seconds(self) -> float:
        """Seconds between two looks of a candidate that no watch tells of changes, and between failed attempts."""
        return self.retry / 4

    @property
    def deadline(self) -> float:
        """Seconds that the holder may act after its last renewal: the last third is left for requests under way."""
        return self.duration * 2 / 3


@dataclass(frozen=True, slots=True)
class LeaseAction:
    """The next step of a candidate."""

    write: Object | None
    """The Lease to write, if it still has the resourceVersion that was seen; None: write nothing."""
    wait: float
    """Seconds until the next look, if nothing is written or the write fails; a change of the Lease comes before it."""
    reason: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """One operator's knowledge of the Lease. Its clock is monotonic and includes time in which the machine slept."""

    identity: str
    name: str
    namespace: str
    pace: LeaseTiming = LeaseTiming()
    lease: Object | None = None
    """The Lease as last seen; None: there is none, or it was not read yet."""
    changed: float = -math.inf
    """When this content of the Lease was first seen."""
    renewed: float = -math.inf
    """When the last accepted write was sent; minus infinity while somebody else holds the Lease."""
    notes: Mapping[str, str] = field(default_factory=dict[str, str])
    """Annotations about the release; empty: none, and other releases are not considered."""
    owner: Mapping[str, str] = field(default_factory=dict[str, str])
    """The operator's service account: Kubernetes deletes the Lease with it. Empty: nobody does."""

    @property
    def holder(self) -> str:
        """The holder of the Lease, or the last one; empty: nobody."""
        return text(part(self.lease, "spec"), "holderIdentity")

    @property
    def acts(self) -> bool:
        """Whether the Lease says that its release acts. A replica that takes it over goes on acting."""
        return text(self.lease, "metadata", "annotations", ACTS) == "true"

    @property
    def stands_by(self) -> str:
        """The release for which this one stands by, according to the Lease; empty: none."""
        return text(self.lease, "metadata", "annotations", STANDS_BY)

    @property
    def until(self) -> float:
        """When this candidate must stop acting, if it leads."""
        return self.renewed + self.pace.deadline

    def leads(self, now: float) -> bool:
        """Whether this candidate may act."""
        return now < self.until

    def saw(self, lease: Object | None, now: float) -> Candidate:
        """Return the candidate after it read the Lease at `now`; None: there is no Lease."""
        # Only a change of the content counts as life: a resourceVersion also moves with labels and annotations.
        same = lease is not None and part(lease, "spec") == part(self.lease, "spec")
        candidate = replace(self, lease=lease, changed=self.changed if same else now)
        return candidate if candidate.holder == self.identity else replace(candidate, renewed=-math.inf)

    def wrote(self, lease: Object, sent: float) -> Candidate:
        """Return the candidate after its write, sent at `sent`, was accepted as `lease`."""
        return replace(self, lease=lease, changed=sent, renewed=sent)

    def released(self) -> Candidate:
        """Return the candidate after it gave up the leadership, whatever the Lease says."""
        return replace(self, renewed=-math.inf)

    def next(self, now: float, wall: float) -> LeaseAction:
        """Return the next step. `wall`, in unix seconds, is written for people and decides nothing."""
        if self.lease is None:
            return LeaseAction(self._body({}, wall), self.pace.poll_seconds, "there is no Lease")
        spec = part(self.lease, "spec")
        if self.holder == self.identity:
            return LeaseAction(self._body(spec, wall), self.pace.retry, "it is ours")
        if not self.holder:
            return LeaseAction(self._body(spec, wall), self.pace.poll_seconds, "nobody holds it")
        seconds_left = self.changed + (number(spec, "leaseDurationSeconds") or self.pace.duration) - now
        if seconds_left > 0:
            return LeaseAction(None, seconds_left, f"{self.holder} holds it")
        return LeaseAction(self._body(spec, wall), self.pace.poll_seconds, f"{self.holder} has not renewed it")

    def claim(self, wall: float, *, stands_by: str) -> Object:
        """Return our Lease with what its release does: it stands by for `stands_by`, or it acts (empty)."""
        body = self._body(part(self.lease, "spec"), wall)
        claims = {ACTS: "false", STANDS_BY: stands_by} if stands_by else {ACTS: "true"}
        body["metadata"]["annotations"] = {**self.notes, **claims}
        return body

    def release(self, wall: float) -> Object | None:
        """Return the Lease to write at an orderly end, free for the next candidate; None: it is not ours."""
        if self.holder != self.identity:
            return None
        body = self._body(part(self.lease, "spec"), wall)
        # One second, the least that the API server accepts: who ignores the empty holder waits no longer than that.
        body["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
        return body

    def _body(self, spec: Object, wall: float) -> dict[str, Any]:
        # Wall-clock times are part of the Lease's schema and shown by kubectl; no candidate reads them.
        now = datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_own = self.lease is not None and self.holder == self.identity
        turns = number(spec, "leaseTransitions")
        meta: dict[str, Any] = {"name": self.name, "namespace": self.namespace}
        if self.notes:
            annotations = part(self.lease, "metadata", "annotations")
            claims = {key: annotations[key] for key in (ACTS, STANDS_BY) if key in annotations}
            meta |= {"labels": dict(LABELS), "annotations": {**self.notes, **claims}}
        if self.owner:
            meta["ownerReferences"] = [dict(self.owner)]
        if self.lease is not None:
            meta["resourceVersion"] = text(self.lease, "metadata", "resourceVersion")
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": meta,
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": self.pace.duration,
                "acquireTime": spec.get("acquireTime") if is_own else now,
                "renewTime": now,
                "leaseTransitions": turns if is_own else turns + (self.lease is not None),
            },
        }
