"""When silence means that a node is frozen, and when it rather means that nobody hears."""

from __future__ import annotations

from collections.abc import Mapping

from dljob.spec.policy import NodePolicy


def frozen(silences: Mapping[str, float], policy: NodePolicy, pause_s: float = 0.0) -> tuple[dict[str, float], str]:
    """The nodes that count as frozen, with the seconds of their silence; and in words why others do not yet.

    Args:
        silences: Node -> seconds since it was heard last, while who listens was listening; nodes known to be frozen
            are not among them.
        policy: How long is too long.
        pause_s: How often a node is asked; it is asked twice before its silence counts, however many there are.
    """
    least = max(policy.freeze_seconds, 2 * pause_s)
    late = {node: seconds for node, seconds in sorted(silences.items()) if seconds >= least}
    if len(late) < min(2, len(silences)) or 2 * len(late) <= len(silences):
        return late, ""
    # Machines do not stop together: most of them silent at once is a network, or a listener, that is in trouble. Where
    # only one is heard nobody can tell, and mostly there is none to go to.
    limit = max(least, policy.unreachable_seconds)
    gone = {node: seconds for node, seconds in late.items() if seconds >= limit}
    waits = len(late) - len(gone)
    return gone, f"{len(late)} of {len(silences)} nodes are silent; {waits} wait for {limit:g} s" if waits else ""
