"""How long a node that failed is excluded, and the Ticks that its exclusion needs."""

from __future__ import annotations

from collections.abc import Iterator

from dljob.master.placement import failure_domains
from dljob.master.start import relaunch
from dljob.master.state import limits
from dljob.master.state.state import Exclusion
from dljob.master.state.transaction import StateTransaction
from dljob.telemetry import reasons


def exclude(tx: StateTransaction, name: str, reason: str, cause: str, *, silent: bool = False, check: str = "") -> None:
    """Exclude a node that failed, and ask for its replacement.

    The spec's time, a silent one at least for the lease, one that failed a check for a day. A node that failed fewer
    times than `maxFailures` gets ranks again as soon as it answers, and is not replaced.
    """
    policy = tx.job.fault_tolerance
    # The processes of a node that answers are ended by order, so there is no lease to wait for.
    fence = tx.now + policy.lease if silent else None
    old = tx.exclusions.get(name)
    # A node that failed a check before it froze is still bad when it answers again.
    check = check or (old.check if old else "")
    check_until = limits.BAD_NODE_S if check else 0.0
    bad = bool(check) or failure_domains.count_failure(tx, name) >= policy.node.max_failures
    until = max(fence or tx.now, tx.now + (policy.node.exclude_seconds if bad else 0), tx.now + check_until)
    set_exclusion(
        tx,
        name,
        Exclusion(reason, tx.now, until, fence, silent, check, cause if bad else "", tx.shown_target(f"node/{name}")),
    )
    if bad:
        relaunch.request_replacement(tx, name, reason, cause)


def set_exclusion(tx: StateTransaction, name: str, exclusion: Exclusion) -> None:
    """Replace an exclusion, and ask for the Ticks that it needs."""
    tx.exclusions = tx.exclusions.set(name, exclusion)
    for at in exclusion_times(exclusion):
        tx.wake_at(at)


def exclusion_times(exclusion: Exclusion) -> Iterator[float]:
    """Yield when an exclusion needs a Tick: at the end of its fence, and of its time unless the node is silent."""
    if exclusion.fence is not None:
        yield exclusion.fence
    if not exclusion.silent:
        yield exclusion.until


def with_domains(tx: StateTransaction, failed: frozenset[str], labels: failure_domains.Labels) -> frozenset[str]:
    """Return failed nodes with those of their failure domains that are left with them, which are excluded here."""
    domain_mates = failure_domains.domain_mates_to_leave(tx, failed, labels)
    for name, reason in sorted(domain_mates.items()):
        exclude(tx, name, reasons.DOMAIN_REPLACED, reason)
    return failed.union(domain_mates)
