"""Where PrimeMaster stands, and what it outlives there; from plain values, since the launcher reads no models."""

from __future__ import annotations

LEASE_SECONDS = 30
"""faultTolerance.leaseSeconds, where it is left out."""
LEASE_SECONDS_WITHOUT_HEAD = 120
"""The same with gcsFaultTolerance: a head pod is replaced in 10 to 20 s where its image lies, and PrimeMaster, should
it be lost with it, comes back only then."""


def on_worker(placement: str, *, survives: bool, journal: str) -> bool:
    """Whether PrimeMaster lives on a worker rather than on the head.

    Args:
        placement: spec.master.placement.
        survives: Whether what Ray knows outlives its head (spec.gcsFaultTolerance).
        journal: spec.master.journal.path: it is on the head alone.
    """
    return placement == "Worker" or (placement == "Auto" and survives and not journal)


def lease_seconds(said: int | None, *, survives: bool) -> int:
    """faultTolerance.leaseSeconds, or what holds without it."""
    return said or (LEASE_SECONDS_WITHOUT_HEAD if survives else LEASE_SECONDS)
