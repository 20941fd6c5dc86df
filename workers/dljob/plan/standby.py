"""The standby of PrimeMaster: whether a job has one, and on which node it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

MACHINES = 2
"""Machines from which a job has a standby by default: on one alone, the job ends with the machine in any case."""

Mode = Literal["Auto", "Always", "Never"]


@dataclass(frozen=True, slots=True)
class StandbyChoice:
    """Whether a job has a standby, and why."""

    wanted: bool
    reason: str


def choose_standby(mode: Mode, machines: int) -> StandbyChoice:
    """Return whether a job whose Ray has so many machines gets a standby."""
    if mode == "Always":
        return StandbyChoice(True, "master.standby is Always")
    if mode == "Never":
        return StandbyChoice(False, "master.standby is Never: Ray alone restarts PrimeMaster")
    if machines < MACHINES:
        return StandbyChoice(False, "the Ray has one machine, and master.standby is Auto")
    return StandbyChoice(True, f"the Ray has {machines} machines, and master.standby is Auto")


def preview_standby(mode: Mode) -> str:
    """Return the words of `dljob plan`, which knows no Ray."""
    if mode == "Auto":
        return "Auto (one on a Ray of two machines or more, none with `dljob run` on this machine)"
    return mode


def standby_node(here: str, others: Sequence[str], *, shared: bool) -> str:
    """Return the node of a standby: another one if it can read the journal there (`shared`), else that of the master.

    Args:
        here: The node of the commanding PrimeMaster.
        others: The other nodes that may hold a PrimeMaster, best first.
        shared: Whether the journal is in Ray's store or on a volume that all these nodes mount.
    """
    return others[0] if shared and others else here
