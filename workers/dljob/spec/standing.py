"""Placement, lease and standby of PrimeMaster, computed from plain values: the launcher imports no models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

LEASE_SECONDS = 30
"""Default of faultTolerance.leaseSeconds."""
LEASE_SECONDS_WITHOUT_HEAD = 120
"""Default with gcsFaultTolerance: KubeRay replaces a head pod in 10 to 20 s on a node that has the image, and a
PrimeMaster lost together with the head restarts only after that."""
MACHINES = 2
"""Machines from which a job has a standby with Auto: on one alone, the job ends with the machine in any case."""

StandbyMode = Literal["Auto", "Always", "Never"]


def on_worker(placement: str, *, survives: bool, journal: str) -> bool:
    """Return whether PrimeMaster runs on a worker rather than on the head.

    Args:
        placement: spec.master.placement.
        survives: Whether Ray's state survives its head (spec.gcsFaultTolerance).
        journal: spec.master.journal.path, a volume that only the head mounts; "" where it is left out.
    """
    # A journal on a volume pins PrimeMaster to the head: the claim is mounted in no worker pod.
    return placement == "Worker" or (placement == "Auto" and survives and not journal)


def lease_seconds(declared: int | None, *, survives: bool) -> int:
    """Return faultTolerance.leaseSeconds, or its default in seconds where it is left out."""
    return declared or (LEASE_SECONDS_WITHOUT_HEAD if survives else LEASE_SECONDS)


@dataclass(frozen=True, slots=True)
class StandbyChoice:
    """Whether a job has a standby, and why."""

    is_wanted: bool
    reason: str


def choose_standby(mode: StandbyMode, machines: int) -> StandbyChoice:
    """Return whether a job whose Ray has so many machines gets a standby."""
    if mode == "Always":
        return StandbyChoice(True, "master.standby is Always")
    if mode == "Never":
        return StandbyChoice(False, "master.standby is Never: Ray alone restarts PrimeMaster")
    if machines < MACHINES:
        return StandbyChoice(False, "the Ray has one machine, and master.standby is Auto")
    return StandbyChoice(True, f"the Ray has {machines} machines, and master.standby is Auto")


def preview_standby(mode: StandbyMode) -> str:
    """Return the words of `dljob plan`, which knows no Ray."""
    if mode == "Auto":
        return "Auto (one on a Ray of two machines or more, none with `dljob run` on this machine)"
    return mode


def standby_node(master_node: str, others: Sequence[str], *, shared: bool) -> str:
    """Return the node of a standby: another one if it can read the journal there (`shared`), else that of the master.

    Args:
        master_node: The node of the commanding PrimeMaster.
        others: The other nodes that may hold a PrimeMaster, best first.
        shared: Whether the journal is in Ray's store or on a volume that all these nodes mount.
    """
    return others[0] if shared and others else master_node
