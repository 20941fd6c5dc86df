"""Invariants of blame: who only lost a peer is no first cause where the rank that it waited for is known."""

from __future__ import annotations

from collections.abc import Iterator

from dljob.master.state import limits
from dljob.master.state.faults import FaultRecord
from dljob.master.state.state import JobState


def check_blame(state: JobState, now: float) -> Iterator[str]:
    """A rank that ended with code 0 is the cause where others of its world then lost a peer; and nobody waits longer.

    `now` is PrimeMaster's time.
    """
    for role, inquiry in state.inquiries.items():
        held_count = sum(key[0] == role for key in state.held_ends)
        if held_count != inquiry.held_end_count:
            yield f"blame: {role} counts {inquiry.held_end_count} held ends, and has {held_count}"
        if now > inquiry.ends_at and state.verdict is None:
            yield f"blame: the ends of {role} are held beyond their time"
    for fault in state.faults:
        role = fault.rank.rpartition("/")[0]
        is_torch_world = role in state.job.roles and state.job.roles[role].is_torch_world
        if fault.reports_lost_peer and not fault.root_number and is_torch_world:
            yield from _waited_for(state, role, fault)


def _waited_for(state: JobState, role: str, fault: FaultRecord) -> Iterator[str]:
    """Name a rank that had ended with code 0 in the same generation, shortly before its peers lost it."""
    restarts = [f.detected_at for f in state.faults if f.id != fault.id and f.rank.startswith(f"{role}/")]
    for rank in state.job.roles[role].ranks:
        ended_at = state.ranks[role, rank].ended_at
        shortly = ended_at > 0.0 and 0.0 < fault.detected_at - ended_at <= limits.PEER_WAIT_S
        if shortly and not any(ended_at <= at <= fault.detected_at for at in restarts):
            yield f"blame: {fault.rank} only lost a peer, and {role}/{rank} had ended with code 0 before"
