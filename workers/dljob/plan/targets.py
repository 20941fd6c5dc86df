"""Who a fault is done to: `master`, `<role>`, `<role>/<rank>`, `node/<index>` or `node/<the beginning of its id>`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dljob.plan.model import JobPlan
from dljob.spec.loading import faults
from dljob.spec.loading.faults import FileFault
from dljob.spec.rules.findings import Finding
from dljob.spec.text.tree import Loc
from dljob.spec.text.words import one_of

MASTER, NODE = "master", "node"
_TAKES: Mapping[str, tuple[str, ...]] = {MASTER: ("kill",), NODE: ("kill", "stop")}


@dataclass(frozen=True, slots=True)
class Target:
    """`ranks` of a role, or the master, or a node: by its place in `ranked`, or by the beginning of its id."""

    role: str
    """`master` and `node` for those."""
    ranks: tuple[int, ...] = ()
    node: str = ""


def target_of(text: str, plan: JobPlan) -> Target:
    """The target that a text means, which `load_faults` has found right."""
    head, _, tail = text.partition("/")
    if head in (MASTER, NODE):
        return Target(head, node=tail)
    return Target(head, (int(tail),) if tail else tuple(range(plan.roles[head].replicas)))


def load_faults(
    path: str | os.PathLike[str], plan: JobPlan, nodes: Sequence[str] | None = None
) -> tuple[FileFault, ...]:
    """The faults of a file for a job; `nodes` are the ids of a job's nodes that runs already.

    Raises:
        UsageError: the file cannot be read.
        SpecError: with every problem, at file:line:column; targets that the job does not have among them.
    """
    return faults.load_file(path, lambda loc, item: _wrong(loc, item, plan, nodes))


def ranked(held: Sequence[str], nodes: Sequence[str]) -> tuple[str, ...]:
    """The order that node/<index> counts by: `held` are the nodes of the plan's units in order, `nodes` are all."""
    first = dict.fromkeys(node for node in held if node)
    return (*first, *sorted(set(nodes) - first.keys()))


def chosen(node: str, order: Sequence[str]) -> str | None:
    """The node that a target means; None when there is none."""
    if node.isdigit() and int(node) < len(order):
        return order[int(node)]
    fits = [name for name in order if name.startswith(node)]
    return fits[0] if len(fits) == 1 else None


def _wrong(loc: Loc, item: Mapping[str, Any], plan: JobPlan, nodes: Sequence[str] | None) -> Iterator[Finding]:
    text, kind = item["target"], item.get("fault")
    head, slash, tail = text.partition("/")
    at = (*loc, "target")
    names = [*plan.roles, MASTER, "node/0"]
    if head == NODE:
        yield from _wrong_node(at, tail, plan, nodes)
    elif head == MASTER and slash:
        yield Finding(at, "there is one master", "write master")
    elif head != MASTER:
        yield from _wrong_rank(at, text, plan, names)
    takes = _TAKES.get(head)
    if takes and isinstance(kind, str) and kind not in takes and kind in ("kill", "stop", "oom", "slow"):
        yield Finding((*loc, "fault"), f"a {head} takes {' and '.join(takes)}, not {kind}", "")


def _wrong_rank(at: Loc, text: str, plan: JobPlan, names: Sequence[str]) -> Iterator[Finding]:
    role, slash, rank = text.partition("/")
    if role not in plan.roles:
        yield Finding(at, f"there is no role {role!r} in job {plan.name}", one_of(role, names))
    elif slash and (not (rank.isascii() and rank.isdigit()) or int(rank) >= plan.roles[role].replicas):
        last = plan.roles[role].replicas - 1
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
