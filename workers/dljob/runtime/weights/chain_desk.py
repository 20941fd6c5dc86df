"""The keeper's part of chains: it knows which nodes read, has a relay on each, and starts a chain for a new version."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import ray
from ray.exceptions import ActorUnschedulableError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dljob.runtime.rpc.storage_actor import ChangeSignal
from dljob.runtime.weights.buckets import checksum
from dljob.runtime.weights.chain import (
    APART_S,
    LEAST_BYTES,
    LEAST_NODES,
    STALL_S,
    START_S,
    Hop,
    breaker,
    chain,
    cut,
    places,
    reader_nodes,
    seconds_for,
)
from dljob.runtime.weights.chain_transfer import mapped
from dljob.runtime.weights.model import Version
from dljob.runtime.weights.relay import Address, WeightRelay
from dljob.runtime.weights.transport import Buckets

ANSWER_S = STALL_S
"""Seconds that a relay which has started has to answer."""

log = logging.getLogger(__package__)


def encrypted() -> bool:
    """Return whether Ray's connections are encrypted here; those of a chain are not, so there is none then."""
    return os.environ.get("RAY_USE_TLS", "0").lower() in {"1", "true"}


class ChainDesk:
    """The chains of one channel; used in the keeper's event loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._seen: dict[str, float] = {}
        self._apart: dict[str, float] = {}
        self._relays: dict[str, Any] = {}
        self._starts: dict[str, asyncio.Future[Address]] = {}
        """By node: done once its relay has started."""
        self._orders: dict[str, Sequence[str] | None] = {}
        """By nonce: None while the chain is being set up, empty if there is none."""
        self._ended: set[str] = set()
        self._changes = ChangeSignal()

    def asked(self, node: str) -> None:
        """Record that a reader on a node asked for a version."""
        if node:
            self._seen[node] = time.monotonic()

    def begin(self, version: Version) -> Coroutine[Any, Any, None] | None:
        """Return the work that sends a version by a chain; None if no chain is worth it."""
        _, size = places(version.sizes)
        # Another transport has brought it to its readers; without a node its bytes came through a host.
        if version.transport or not version.node or size < LEAST_BYTES or encrypted():
            return None
        # Two at once would share each link, and the later one would drop the earlier one on its way.
        if any(nonce not in self._ended for nonce in self._orders):
            return None
        if not (nodes := self._nodes(version.node)):
            return None
        self._orders[version.nonce] = None
        return self._send(version, nodes, size)

    async def relay(self, nonce: str, node: str) -> Any:
        """Return the relay that a version comes to on a node; None if it does not come there by a chain."""
        if nonce not in self._orders:
            return None
        order = await self._changes.until(lambda: self._orders.get(nonce, ()), START_S + STALL_S)
        return self._relays.get(node) if order and node in order[1:] else None

    async def came(self, version: Version) -> Buckets | None:
        """Wait until the chain of a version is over; return the buckets that it brought to the keeper's own node.

        They are checked: what the keeper makes of them is authoritative.
        """
        nonce, (_, size) = version.nonce, places(version.sizes)
        if nonce not in self._orders:
            return None
        own_node = self._own_node()
        relay = await self.relay(nonce, own_node)
        if relay is None:
            return None
        over = 3 * STALL_S + seconds_for(size)
        await self._changes.until(lambda: nonce in self._ended or nonce not in self._orders or None, over)
        at = await self._answer(own_node, relay.filled.remote(nonce, 0, 0.0), ANSWER_S)
        memory = None if at is None or at.bytes < size else mapped(at, size)
        if memory is None:
            return None
        buckets = cut(memory, version.sizes)
        pairs = zip(buckets, version.sums, strict=True)
        right = await asyncio.to_thread(
            lambda: all(expected_sum is None or checksum(bucket) == expected_sum for bucket, expected_sum in pairs)
        )
        return buckets if right else None

    def keep(self, nonces: Sequence[str]) -> None:
        """Drop the other versions' memory on all nodes."""
        old_nonces = [nonce for nonce in self._orders if nonce not in nonces]
        for nonce in old_nonces:
            del self._orders[nonce]
            self._ended.discard(nonce)
        for relay in self._relays.values() if old_nonces else ():
            relay.keep.remote(list(nonces))
        self._changes.happened()

    def _nodes(self, publisher: str) -> list[str]:
        now = time.monotonic()
        nodes = reader_nodes(publisher, self._seen, self._apart, now)
        if len(nodes) < LEAST_NODES or self._apart.get(publisher, now) > now:
            return []
        # Where the keeper copies each version: by the store, those bytes would go over the publisher's link once more.
        own_node = self._own_node()
        return nodes if own_node in {publisher, *nodes} or self._apart.get(own_node, now) > now else [*nodes, own_node]

    def _own_node(self) -> str:
        return ray.get_runtime_context().get_node_id()

    async def _send(self, version: Version, nodes: Sequence[str], size: int) -> None:
        """Prepare all nodes, decide on the order, and let each send to the next one."""
        secret = secrets.token_bytes(32)
        order: list[str] = []
        try:
            everywhere = [version.node, *nodes]
            answers = await asyncio.gather(*(self._prepared(node, version, secret, size) for node in everywhere))
            at = {node: answer for node, answer in zip(everywhere, answers, strict=True) if answer is not None}
            order = chain(version.node, nodes, at, self._apart)
        finally:
            self._note(version, order, ended=not order)
        if order and version.nonce in self._orders:
            try:
                await self._carried(version, order, at, secret, size)
            finally:
                self._note(version, order, ended=True)

    def _note(self, version: Version, order: Sequence[str], *, ended: bool) -> None:
        """Note the order of a chain, and whether it is over, unless the version was dropped meanwhile."""
        if version.nonce in self._orders:
            self._orders[version.nonce] = order
            if ended:
                self._ended.add(version.nonce)
        self._changes.happened()

    async def _prepared(self, node: str, version: Version, secret: bytes, size: int) -> Address | None:
        """Return a node's address for a version; None if its relay does not answer."""
        if not await self._started(node):
            return None
        relay = self._relays[node]
        # The first node sends from its store: it needs neither memory nor a port.
        ask = relay.ready.remote() if node == version.node else relay.prepare.remote(version.nonce, secret, size)
        return await self._answer(node, ask, ANSWER_S)

    async def _started(self, node: str) -> bool:
        """Whether a node has a relay that runs; only the version that makes it waits for its start."""
        wait_s = 0.0
        if node not in self._relays:
            place = NodeAffinitySchedulingStrategy(node, soft=False)
            remote: Any = ray.remote
            relay_class = remote(num_cpus=0)(WeightRelay)
            self._relays[node] = relay_class.options(scheduling_strategy=place, max_concurrency=1000).remote()
            self._starts[node] = asyncio.wrap_future(self._relays[node].ready.remote().future())
            wait_s = START_S
        start = self._starts[node]
        await asyncio.wait({start}, timeout=wait_s)
        return start.done() and await self._answer(node, start, ANSWER_S) is not None

    async def _carried(
        self, version: Version, order: Sequence[str], at: dict[str, Address], secret: bytes, size: int
    ) -> None:
        asks = dict[str, Any]()
        for node, after in zip(order, [*order[1:], None], strict=True):
            to = None if after is None else at[after]
            if (relay := self._relays.get(node)) is None:  # it was lost since it answered
                continue
            if node == order[0]:
                asks[node] = relay.source.remote(list(version.refs), size, secret, to)
            else:
                asks[node] = relay.forward.remote(version.nonce, secret, to)
        most = seconds_for(size) + 2 * STALL_S
        answers = await asyncio.gather(*(self._answer(node, ask, most) for node, ask in asks.items()))
        hops: dict[str, Hop | None] = dict(zip(asks, answers, strict=True))
        broke = breaker(order, hops)
        # A version that was dropped on its way, for newer ones, is no node's fault.
        if broke is not None and version.nonce in self._orders:
            log.warning(
                "%s: version %d did not come whole to node %s; the nodes after it fetch it from the store",
                self._name, version.version, broke[:8],
            )  # fmt: skip
            # That of the publisher is put apart only where it gives no answer: a chain cannot begin elsewhere.
            if broke != version.node:
                self._apart[broke] = time.monotonic() + APART_S

    async def _answer(self, node: str, ask: Any, most: float) -> Any:
        """Return the answer of a node's relay; None if it is dead, fails, or takes too long."""
        coming = ask if asyncio.isfuture(ask) else asyncio.wrap_future(ask.future())
        try:
            return await asyncio.wait_for(coming, most)
        except TimeoutError:
            self._apart[node] = time.monotonic() + APART_S
        except (RayActorError, ActorUnschedulableError) as error:  # the next version makes another one
            log.warning("%s: the relay of node %s is lost: %s", self._name, node[:8], error)
            self._relays.pop(node, None)
            self._starts.pop(node, None)
        except RayError as error:
            log.warning("%s: the relay of node %s failed: %s", self._name, node[:8], error)
        return None
