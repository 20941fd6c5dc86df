"""How users know nodes: by pods on Kubernetes, by the names of `dljob plan` on an embedded Ray, else by Ray's ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress, groupby
from operator import attrgetter

from dljob.master.state.state import Exclusion, JobState
from dljob.master.state.views import NodeView

_ID = attrgetter("id")


def node_targets(
    nodes: Iterable[str], views: Sequence[NodeView], exclusions: Mapping[str, Exclusion]
) -> dict[str, str]:
    """Return Ray's id -> the node as the target of an event: `pod/<name>` or `node/<name>`.

    Args:
        nodes: Ray's ids.
        views: The nodes that are there or were there just now.
        exclusions: The excluded nodes, which may be gone for long.
    """
    node_ids = frozenset(nodes)
    # No code of Python's runs for each of thousands of nodes.
    targets = {view.id: view.target for view in compress(views, map(node_ids.__contains__, map(_ID, views)))}
    for node in node_ids - targets.keys():
        exclusion = exclusions.get(node)
        targets[node] = (exclusion.target if exclusion else "") or f"node/{node}"
    return targets


def in_words(targets: Iterable[str]) -> str:
    """Return nodes in words: `pod train-a, train-b`."""
    pairs = sorted(target.split("/", maxsplit=1) for target in targets)
    kinds = groupby(pairs, key=lambda pair: pair[0])
    return ", ".join(f"{kind} {', '.join(name for _, name in members)}" for kind, members in kinds)


def node_title(state: JobState, node: str) -> str:
    """Return a node of Ray's in words: `pod train-a`."""
    return in_words(node_targets((node,), state.nodes, state.exclusions).values())
