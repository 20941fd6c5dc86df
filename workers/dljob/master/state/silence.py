"""Judgement of silent nodes: frozen, or only unheard because the network or the listener is in trouble."""

from __future__ import annotations

from collections.abc import Mapping

from dljob.spec.policy import NodePolicy
from dljob.telemetry.wording import counted, is_or_are


def frozen_nodes(
    silences: Mapping[str, float], policy: NodePolicy, pause_s: float = 0.0
) -> tuple[dict[str, float], str]:
    """Return frozen node -> seconds of silence, and the reason why other silent nodes do not count yet.

    Args:
        silences: Node -> seconds since its last answer, on a clock that stands still while PrimeMaster does not listen.
            Nodes known to be frozen are left out.
        policy: `freezeSeconds` and `unreachableSeconds`.
        pause_s: Seconds between two heartbeat requests to a node. Silence counts only after two of them.
    """
    freeze_s = max(policy.freeze_seconds, 2 * pause_s)
    silent_nodes = {node: seconds for node, seconds in sorted(silences.items()) if seconds >= freeze_s}
    if len(silent_nodes) < min(2, len(silences)) or 2 * len(silent_nodes) <= len(silences):
        return silent_nodes, ""
    # Machines do not stop together: if most are silent at once, the network or the listener is in trouble. With only
    # one node nobody can tell which it is, and mostly there is no other node to move to.
    limit = max(freeze_s, policy.unreachable_seconds)
    long_silent = {node: seconds for node, seconds in silent_nodes.items() if seconds >= limit}
    wait_count = len(silent_nodes) - len(long_silent)
    silent = f"{len(silent_nodes)} of {counted(len(silences), 'node')} {is_or_are(len(silent_nodes))} silent"
    return long_silent, f"{silent}; {wait_count} may be for {limit:g} s" if wait_count else ""
