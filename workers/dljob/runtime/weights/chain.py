"""Decisions about the chain of nodes that a large version takes; nothing here does any input or output."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

LEAST_BYTES = 16 << 20
"""A smaller version goes by the store alone: it takes about as long as the requests that set up a chain."""
LEAST_NODES = 2
"""Nodes besides the publisher's from which a chain is worth it: to one of them the store sends the bytes once, too."""
PRESENT_S = 60.0
"""Seconds for which a node counts as one with readers, after one of them asked for a version."""
APART_S = 60.0
"""Seconds for which a node that broke a chain is in none."""
START_S = 10.0
"""Seconds that a new relay has to start; the version's readers on other nodes wait for it."""
STALL_S = 5.0
"""Seconds without a byte, or without an answer, after which a node counts as lost."""
LEAST_RATE = 10 << 20
"""Bytes per second below which a transfer is given up: from there on the store is not much slower."""
ALIGN = 64


@dataclass(frozen=True, slots=True)
class Hop:
    """What became of a version at one node of the chain."""

    received: bool
    forwarded: bool = True


def places(sizes: Sequence[Sequence[int]]) -> tuple[list[list[int]], int]:
    """Return where each buffer of each bucket begins in a node's memory, aligned, and the bytes of it all."""
    at, begins = 0, list[list[int]]()
    for bucket in sizes:
        begins.append([])
        for size in bucket:
            begins[-1].append(at)
            at += -(-size // ALIGN) * ALIGN
    return begins, at


def cut(memory: memoryview, sizes: Sequence[Sequence[int]]) -> list[list[memoryview]]:
    """Return the buckets in a node's memory."""
    begins, _ = places(sizes)
    return [
        [memory[at : at + size] for at, size in zip(starts, bucket, strict=True)]
        for starts, bucket in zip(begins, sizes, strict=True)
    ]


def reader_nodes(publisher: str, asked_at: Mapping[str, float], apart: Mapping[str, float], now: float) -> list[str]:
    """Return the nodes that a chain should reach, in the order in which their readers first asked.

    Args:
        publisher: The publisher's node, which is the chain's begin and not in the result.
        asked_at: Node -> when a reader of it asked last.
        apart: Node -> until when it is left out, because it broke a chain.
        now: The time, by the same clock.
    """
    present_nodes = [node for node, at in asked_at.items() if now - at <= PRESENT_S and apart.get(node, now) <= now]
    return [node for node in present_nodes if node and node != publisher]


def chain(publisher: str, nodes: Sequence[str], answering: Collection[str], broke: Collection[str]) -> list[str]:
    """Return the nodes in the order that the bytes take, the publisher's first; empty if a chain is not worth it.

    Nodes that broke a chain before come last: whatever they do, no other node waits for them.
    """
    answering_readers = [node for node in nodes if node in answering]
    if publisher not in answering or len(answering_readers) < LEAST_NODES:
        return []
    return [
        publisher,
        *(node for node in answering_readers if node not in broke),
        *(node for node in answering_readers if node in broke),
    ]


def breaker(order: Sequence[str], hops: Mapping[str, Hop | None]) -> str | None:
    """Return the node that broke a chain; None if none did.

    That is the first one that has not received everything: those before it have, and those after it got nothing more
    because of it. Whether it could not be reached or the node before could not send is not known: either way the next
    chain goes another way.

    Args:
        order: The nodes, the publisher's first.
        hops: What became of the version at each; None for a node that gave no answer.
    """
    for node in order:
        hop = hops.get(node)
        if hop is None or not hop.received:
            return node
    return None


def seconds_for(size: int, took: float | None = None) -> float:
    """Return the seconds after its begin until which a transfer may last.

    Args:
        size: Its bytes.
        took: The seconds in which the sending node got the bytes itself: the next link may take twice as long.
    """
    most = STALL_S + size / LEAST_RATE
    return most if took is None else min(most, STALL_S + 2 * took)
