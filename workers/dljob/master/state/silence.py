"""Judgement of silent nodes: frozen, or only unheard because the network or the listener is in trouble."""

from __future__ import annotations

from collections.abc import Mapping

from dljob.spec.policy import NodePolicy
from dljob.telemetry.wording import counted, is_or_are


def frozen(silences: Mapping[str, float], policy: NodePolicy, pause_s: float = 0.0) -> tuple[dict[str, float], str]:
    """Return frozen node -> seconds of silence, and the reason why other silent nodes do not count yet.

    Args:
        silences: Node -> seconds since its last answer, on a clock that stands still while PrimeMaster does not listen.
            Nodes known to be frozen are left out.
        policy: `freezeSeconds` and `unreachableSeconds`.
        pause_s: Seconds between two heartbeat requests to a node. Silence counts only after two of them.
    """
    least = max(policy.freeze_seconds, 2 * pause_s)
    late = {node: seconds for node, seconds in sorted(silences.items()) if seconds >= least}
    if len(late) < min(2, len(silences)) or 2 * len(late) <= len(silences):
        return late, ""
    # Machines do not stop together: if most are silent at once, the network or the listener is in trouble. With only
    # one node nobody can tell which it is, and mostly there is no other node to move to.
    limit = max(least, policy.unreachable_seconds)
    gone = {node: seconds for node, seconds in late.items() if seconds >= limit}
    waits = len(late) - len(gone)
    silent = f"{len(late)} of {counted(len(silences), 'node')} {is_or_are(len(late))} silent"
    return gone, f"{silent}; {waits} may be for {limit:g} s" if waits else ""
