"""How long a node that failed is excluded, and the Ticks that its exclusion needs."""

from __future__ import annotations

from collections.abc import Iterator

from dljob.master.placement import failure_domains
from dljob.master.start import relaunch
from dljob.master.state import limits
from dljob.master.state.state import Exclusion
from dljob.master.state.transaction import StateTransaction
from dljob.telemetry import reasons


def exclude(d: StateTransaction, name: str, reason: str, why: str, *, silent: bool = False, check: str = "") -> None:
    """Exclude a node that failed, and ask for its replacement.

    The spec's time, a silent one at least for the lease, one that failed a check for a day. A node that failed fewer
    times than `maxFailures` gets ranks again as soon as it answers, and is not replaced.
    """
    policy = d.job.fault_tolerance
    # The processes of a node that answers are ended by order, so there is no lease to wait for.
    fence = d.now + policy.lease if silent else None
    old = d.exclusions.get(name)
    # A node that failed a check before it froze is still bad when it answers again.
    check = check or (old.check if old else "")
    least = limits.BAD_NODE_S if check else 0.0
    bad = bool(check) or failure_domains.count(d, name) >= policy.node.max_failures
    until = max(fence or d.now, d.now + (policy.node.exclude_seconds if bad else 0), d.now + least)
    set_exclusion(
        d,
        name,
        Exclusion(reason, d.now, until, fence, silent, check, why if bad else "", d.shown_target(f"node/{name}")),
    )
    if bad:
        relaunch.ask(d, name, reason, why)


def set_exclusion(d: StateTransaction, name: str, own: Exclusion) -> None:
    """Replace an exclusion, and ask for the Ticks that it needs."""
    d.exclusions = d.exclusions.set(name, own)
    for at in exclusion_times(own):
        d.wake_at(at)


def exclusion_times(own: Exclusion) -> Iterator[float]:
    """Yield when an exclusion needs a Tick: at the end of its fence, and of its time unless the node is silent."""
    if own.fence is not None:
        yield own.fence
    if not own.silent:
        yield own.until


def with_domains(d: StateTransaction, failed: frozenset[str], labels: failure_domains.Labels) -> frozenset[str]:
    """Return failed nodes with those of their failure domains that are left with them, which are excluded here."""
    found = failure_domains.others(d, failed, labels)
    for name, why in sorted(found.items()):
        exclude(d, name, reasons.DOMAIN_REPLACED, why)
    return failed.union(found)
