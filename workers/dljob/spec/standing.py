"""Placement and lease of PrimeMaster, computed from plain values: the launcher imports no models."""

from __future__ import annotations

LEASE_SECONDS = 30
"""Default of faultTolerance.leaseSeconds."""
LEASE_SECONDS_WITHOUT_HEAD = 120
"""Default with gcsFaultTolerance: KubeRay replaces a head pod in 10 to 20 s on a node that has the image, and a
PrimeMaster lost together with the head restarts only after that."""


def on_worker(placement: str, *, survives: bool, journal: str) -> bool:
    """Return whether PrimeMaster runs on a worker rather than on the head.

    Args:
        placement: spec.master.placement.
        survives: Whether Ray's state survives its head (spec.gcsFaultTolerance).
        journal: spec.master.journal.path, a volume that only the head mounts; "" where it is left out.
    """
    # A journal on a volume pins PrimeMaster to the head: the claim is mounted in no worker pod.
    return placement == "Worker" or (placement == "Auto" and survives and not journal)


def lease_seconds(said: int | None, *, survives: bool) -> int:
    """Return faultTolerance.leaseSeconds, or its default in seconds where it is left out."""
    return said or (LEASE_SECONDS_WITHOUT_HEAD if survives else LEASE_SECONDS)
