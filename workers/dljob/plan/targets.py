"""Targets of faults: `master`, `operator`, a role, `role/rank`, `queue/name`, `node/index`, `node/id...`, `pod/...`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dljob.plan.model import JobPlan
from dljob.spec.loading import faults
from dljob.spec.loading.faults import FileFault
from dljob.spec.rules.findings import Finding, listed
from dljob.spec.text.tree import Loc
from dljob.spec.text.words import one_of

MASTER, NODE, QUEUE = "master", "node", "queue"
POD, OPERATOR = "pod", "operator"
POD_DELETED = "Deleted: somebody deleted it"
"""What the operator tells of a pod that somebody deletes; outside of Kubernetes nobody else would."""
_NODE_TAKES = ("kill", "stop", "leave", "cut")
# Faults that a target other than ranks can have, and those of ranks.
_TAKES: Mapping[str, tuple[str, ...]] = {
    MASTER: ("kill",), NODE: _NODE_TAKES, POD: _NODE_TAKES, QUEUE: ("kill",), OPERATOR: ("kill",),
}  # fmt: skip
_RANKS = ("kill", "stop", "oom", "slow")


@dataclass(frozen=True, slots=True)
class Target:
    """Ranks of a role, the master, the keeper of a queue, or a node by its index in `ranked` or its id's beginning."""

    role: str
    """The role, or `master`, `operator`, `node` or `queue`."""
    ranks: tuple[int, ...] = ()
    node: str = ""
    pod: bool = False
    """Whether the pod of the node is meant, not the machine under it; outside of Kubernetes they are one."""
    queue: str = ""


def target_of(text: str, plan: JobPlan) -> Target:
    """Parse a target that `load_faults` has checked."""
    head, _, tail = text.partition("/")
    if head in (MASTER, NODE):
        return Target(head, node=tail)
    # A role may be called queue, pod or operator.
    if head == QUEUE and head not in plan.roles:
        return Target(head, queue=tail)
    if head == POD and head not in plan.roles:
        return Target(NODE, node=tail, pod=True)
    if head == OPERATOR and head not in plan.roles:
        return Target(head)
    return Target(head, (int(tail),) if tail else tuple(range(plan.roles[head].replicas)))


def load_faults(
    path: str | os.PathLike[str], plan: JobPlan, nodes: Sequence[str] | None = None
) -> tuple[FileFault, ...]:
    """Load the faults of a file for a job; `nodes` are the ids of the nodes of a running job.

    Raises:
        UsageError: The file cannot be read.
        SpecError: With every problem at file:line:column, including targets that the job does not have.
    """
    return faults.load_file(path, lambda loc, item: _wrong(loc, item, plan, nodes))


def ranked(assigned: Sequence[str], nodes: Sequence[str]) -> tuple[str, ...]:
    """Return all nodes in the order of node/<index>.

    `assigned`, the nodes of the plan's units in order, come first. Then the others, by Ray's ids, which differ in each
    run.
    """
    # The node of the plan's first unit is node/0 in each run, though Ray draws other ids (docs/adr/0026).
    first = dict.fromkeys(node for node in assigned if node)
    return (*first, *sorted(set(nodes) - first.keys()))


def chosen(node: str, order: Sequence[str]) -> str | None:
    """Return the node that a target names; None without one, or with several."""
    # Ray's ids may begin with digits: only a number of a known node is an index.
    if node.isdigit() and int(node) < len(order):
        return order[int(node)]
    # Ray's ids have 56 hex digits: the beginning is enough where it fits one node.
    fits = [name for name in order if name.startswith(node)]
    return fits[0] if len(fits) == 1 else None


def _wrong(loc: Loc, item: Mapping[str, Any], plan: JobPlan, nodes: Sequence[str] | None) -> Iterator[Finding]:
    text, kind = item["target"], item.get("fault")
    head, slash, tail = text.partition("/")
    at = (*loc, "target")
    names = [*plan.roles, MASTER, OPERATOR, "node/0", "pod/0"]
    if head == NODE or (head == POD and head not in plan.roles):
        yield from _wrong_node(at, tail, plan, nodes)
    elif head == OPERATOR and head not in plan.roles:
        if slash:
            yield Finding(at, "all replicas of the operator are meant", "write operator")
    elif head == QUEUE and head not in plan.roles:
        # Queues come into being with their first use: nobody knows their names before.
        if not tail:
            yield Finding(at, "the queue has no name", "write queue/NAME, with the name that DataQueue gets")
    elif head == MASTER and slash:
        yield Finding(at, "there is one master", "write master")
    elif head != MASTER:
        yield from _wrong_rank(at, text, plan, names)
    takes = _RANKS if head in plan.roles else _TAKES.get(head, _RANKS)
    # The schema reports an unknown kind of fault.
    if isinstance(kind, str) and kind not in takes and kind in (*_RANKS, "leave", "cut"):
        noun = "a rank" if takes is _RANKS else f"{'an' if head == OPERATOR else 'a'} {head}"
        yield Finding((*loc, "fault"), f"{noun} takes {listed(takes)}, not {kind}", "")


def _wrong_rank(at: Loc, text: str, plan: JobPlan, names: Sequence[str]) -> Iterator[Finding]:
    role, slash, rank = text.partition("/")
    if role not in plan.roles:
        yield Finding(at, f"there is no role {role!r} in job {plan.name}", one_of(role, names))
        return
    # A fault waits for a rank that its role does not have yet.
    last = max(plan.roles[role].replicas, plan.roles[role].max_replicas) - 1
    # `isdigit` alone would take digits of other scripts.
    if slash and (not (rank.isascii() and rank.isdigit()) or int(rank) > last):
        yield Finding(at, f"{text!r} is no rank of the job", f"{role}/0 to {role}/{last}")


def _wrong_node(at: Loc, node: str, plan: JobPlan, nodes: Sequence[str] | None) -> Iterator[Finding]:
    count = sum(group.replicas for group in plan.node_groups.values()) if nodes is None else len(nodes)
    if node.isascii() and node.isdigit() and int(node) < count:
        return
    if nodes is None:
        last = f"node/0 to node/{count - 1}" if count > 1 else "node/0"
        yield Finding(at, f"node {node!r} is not one of {count}; before a job runs, nodes have numbers only", last)
    elif chosen(node, nodes) is None:
        yield Finding(at, f"{node!r} is not one node of the job", f"node/0 to node/{count - 1}, or {', '.join(nodes)}")
