"""The relay: an actor on each node of a chain, which holds the node's copy of a version and sends it on."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray

from dljob.linux.memory_limit import free
from dljob.runtime.rpc.storage_actor import ChangeSignal
from dljob.runtime.weights.chain import STALL_S, START_S, Hop
from dljob.runtime.weights.chain_line import accepted, connected, listening
from dljob.runtime.weights.chain_transfer import Filled, Transfer, send_buffers

CONNECT_S = START_S + 2 * STALL_S
"""Seconds that the port of a version stays open without the right connection: other nodes may have to start first."""
SPARE = 1 << 30
"""Bytes of the node's memory that a version must leave free."""

log = logging.getLogger(__package__)
Address = tuple[str, int]


class WeightRelay:
    """The actor. The keeper of the channel makes it and owns it: it ends with the keeper, and its memory with it."""

    def __init__(self) -> None:
        self._host = ray.util.get_node_ip_address()
        self._held: dict[str, Transfer] = {}
        self._receiving: dict[str, asyncio.Future[bool]] = {}
        self._changes = ChangeSignal()
        self._loop = asyncio.get_event_loop()
        # Of its own: asyncio's has six threads on two cores, and a transfer that hangs holds two until it is given up.
        self._threads = ThreadPoolExecutor(32, "dljob-chain")

    async def pid(self) -> int:
        """Return the actor's process id."""
        return os.getpid()

    async def ready(self) -> Address:
        """Return this node's address, at no port: only whether the relay answers counts."""
        return self._host, 0

    async def prepare(self, nonce: str, secret: bytes, size: int) -> Address | None:
        """Make memory for a version and listen for it; return the address, or None if the node has no room for it."""
        room, room_text = free()
        # Memory that was given to versions before and is not filled yet counts as free.
        coming = sum(transfer.size - transfer.filled for transfer in self._held.values() if not transfer.failure)
        room = None if room is None else room - coming
        if room is not None and room < size + SPARE:
            log.warning(
                "A version of %d MiB is fetched from the store: %d MiB are free %s", size >> 20, room >> 20, room_text
            )
            return None
        try:
            listener = listening(self._host)
        except OSError as error:
            log.warning("A version is fetched from the store: %s cannot be listened on: %s", self._host, error)
            return None
        try:
            transfer = self._held[nonce] = Transfer(_name(nonce), size, self._changed)
        except OSError as error:
            listener.close()
            log.warning("A version is fetched from the store: no memory can be made for it: %s", error)
            return None
        until = time.monotonic() + CONNECT_S

        def receive() -> bool:
            try:
                return transfer.receive(accepted(listener, secret, until))
            except OSError as error:
                return transfer.fail(str(error))

        self._receiving[nonce] = self._thread(receive)
        return listener.getsockname()[:2]

    async def source(self, refs: Sequence[Any], size: int, secret: bytes, to: Address) -> Hop:
        """Send a version from the objects of this node's publisher to the first node of the chain."""
        buckets = [await ref for ref in refs]
        buffers = (memoryview(part) for bucket in buckets for part in bucket)

        def send() -> bool:
            try:
                return send_buffers(connected(to, secret), buffers, size)
            except OSError as error:
                log.warning("The first node of the chain at %s cannot be reached: %s", to[0], error)
                return False

        return Hop(received=True, forwarded=await self._thread(send))

    async def forward(self, nonce: str, secret: bytes, to: Address | None) -> Hop:
        """Send a version on while it comes; return what became of it. `to`: None at the chain's end."""
        transfer, receiving = self._held.get(nonce), self._receiving.get(nonce)
        if transfer is None or receiving is None:
            return Hop(received=False)

        def send() -> bool:
            try:
                return to is None or transfer.send(connected(to, secret))
            except OSError as error:
                log.warning("The next node of the chain at %s cannot be reached: %s", to and to[0], error)
                return False

        forwarded = await self._thread(send)
        received = await receiving
        if not received and nonce in self._held:  # else it was dropped on its way
            log.warning(
                "A version came only in part (%d of %d bytes): %s", transfer.filled, transfer.size, transfer.failure
            )
            self._drop(nonce)
        return Hop(received, forwarded)

    async def filled(self, nonce: str, least: int, wait_s: float) -> Filled | None:
        """Return how much of a version is here, once it is so much or after a time; None if it will not come."""
        transfer = self._held.get(nonce)
        if transfer is None:
            return None
        await self._changes.until(lambda: transfer.filled >= least or transfer.failure or None, wait_s)
        if transfer.failure or transfer.fd < 0:
            return None
        return Filled(transfer.filled, f"/proc/{os.getpid()}/fd/{transfer.fd}", _name(nonce))

    async def keep(self, nonces: Sequence[str]) -> None:
        """Drop all versions but these."""
        for nonce in [held_nonce for held_nonce in self._held if held_nonce not in nonces]:
            self._drop(nonce)

    def _drop(self, nonce: str) -> None:
        self._receiving.pop(nonce, None)
        if (transfer := self._held.pop(nonce, None)) is not None:
            transfer.close()

    def _thread(self, work: Callable[[], bool]) -> asyncio.Future[bool]:
        return self._loop.run_in_executor(self._threads, work)

    def _changed(self) -> None:
        self._loop.call_soon_threadsafe(self._changes.happened)


def _name(nonce: str) -> str:
    return f"dljob-weights-{nonce}"
