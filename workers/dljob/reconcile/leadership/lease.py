"""Who of several operators acts: one of them holds a Lease, and the others wait until it is given up or runs out.

Nobody's wall clock is compared with anybody's: a Lease has run out when it has not changed for as long as it says, by
the clock of who looks. Its holder stops earlier, by its own: counted from before it sent the last renewal that was
taken. A write is only taken from who has seen the Lease as it is (resourceVersion), so two never take it at once.
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
"""Seconds that a Lease lasts without being renewed. With it another operator acts within 10 s."""
RETRY = 2.0
"""Seconds between two renewals; who waits looks four times as often, so that a Lease given up is taken within 2 s."""


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """How long a Lease lasts, and how often it is renewed, in seconds."""

    duration: int = DURATION
    retry: float = RETRY

    @property
    def look(self) -> float:
        """Who waits looks so often."""
        return self.retry / 4

    @property
    def deadline(self) -> float:
        """The holder acts for so long after its last renewal: the last third is for what is on its way."""
        return self.duration * 2 / 3


@dataclass(frozen=True, slots=True)
class LeaseAction:
    """What a candidate does next."""

    write: Object | None
    """The Lease to be written, if it still is as it was seen; None: none."""
    wait: float
    """Seconds until it looks again, if nothing is written or the writing fails."""
    reason: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """What one operator knows of the Lease. Its clock is monotonic and counts on while the machine sleeps."""

    identity: str
    name: str
    namespace: str
    pace: LeaseTiming = LeaseTiming()
    lease: Object | None = None
    """As it was last seen; None: there is none, or nobody has looked."""
    changed: float = -math.inf
    """When it was first seen to say what it says."""
    renewed: float = -math.inf
    """When the last of our writes that was taken had been sent; long ago: somebody else holds it."""
    notes: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the Lease tells of the release; empty: nothing, and no other release is asked after."""

    @property
    def holder(self) -> str:
        """Who holds the Lease, or held it last; empty: nobody."""
        return text(part(self.lease, "spec"), "holderIdentity")

    @property
    def acts(self) -> bool:
        """Whether the Lease says that its release acts; who takes it from another replica goes on with it."""
        return text(self.lease, "metadata", "annotations", ACTS) == "true"

    @property
    def stands_by(self) -> str:
        """For what the Lease says that its release stands by; empty: for nothing."""
        return text(self.lease, "metadata", "annotations", STANDS_BY)

    @property
    def until(self) -> float:
        """When this candidate has to stop, if it leads."""
        return self.renewed + self.pace.deadline

    def leads(self, now: float) -> bool:
        """Whether it may act."""
        return now < self.until

    def saw(self, lease: Object | None, now: float) -> Candidate:
        """The Lease was read, at this time; None: there is none."""
        same = lease is not None and part(lease, "spec") == part(self.lease, "spec")
        found = replace(self, lease=lease, changed=self.changed if same else now)
        return found if found.holder == self.identity else replace(found, renewed=-math.inf)

    def wrote(self, lease: Object, sent: float) -> Candidate:
        """Our write was taken, and this is the Lease now."""
        return replace(self, lease=lease, changed=sent, renewed=sent)

    def released(self) -> Candidate:
        """It gives up what it has, whatever the Lease says."""
        return replace(self, renewed=-math.inf)

    def next(self, now: float, wall: float) -> LeaseAction:
        """What to do now; `wall` is only told to people."""
        if self.lease is None:
            return LeaseAction(self._body({}, wall), self.pace.look, "there is no Lease")
        spec = part(self.lease, "spec")
        if self.holder == self.identity:
            return LeaseAction(self._body(spec, wall), self.pace.retry, "it is ours")
        if not self.holder:
            return LeaseAction(self._body(spec, wall), self.pace.look, "nobody holds it")
        left = self.changed + (number(spec, "leaseDurationSeconds") or self.pace.duration) - now
        if left > 0:
            return LeaseAction(None, min(left, self.pace.look), f"{self.holder} holds it")
        return LeaseAction(self._body(spec, wall), self.pace.look, f"{self.holder} has not renewed it")

    def claim(self, wall: float, *, stands_by: str) -> Object:
        """The Lease as it is to be written where it is ours: its release stands by for another, or acts (empty)."""
        body = self._body(part(self.lease, "spec"), wall)
        told = {ACTS: "false", STANDS_BY: stands_by} if stands_by else {ACTS: "true"}
        body["metadata"]["annotations"] = {**self.notes, **told}
        return body

    def release(self, wall: float) -> Object | None:
        """The Lease as it is to be written at a good end: free for who comes first; None: it is not ours."""
        if self.holder != self.identity:
            return None
        body = self._body(part(self.lease, "spec"), wall)
        body["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
        return body

    def _body(self, spec: Object, wall: float) -> dict[str, Any]:
        now = datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        ours = self.lease is not None and self.holder == self.identity
        turns = number(spec, "leaseTransitions")
        meta: dict[str, Any] = {"name": self.name, "namespace": self.namespace}
        if self.notes:
            told = part(self.lease, "metadata", "annotations")
            claims = {key: told[key] for key in (ACTS, STANDS_BY) if key in told}
            meta |= {"labels": dict(LABELS), "annotations": {**self.notes, **claims}}
        if self.lease is not None:
            meta["resourceVersion"] = text(self.lease, "metadata", "resourceVersion")
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": meta,
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": self.pace.duration,
                "acquireTime": spec.get("acquireTime") if ours else now,
                "renewTime": now,
                "leaseTransitions": turns if ours else turns + (self.lease is not None),
            },
        }
