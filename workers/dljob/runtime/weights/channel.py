"""`WeightChannel(name)`: one rank publishes versions of a state, any number of others receive the newest."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dljob.errors import CallTimeoutError, UsageError
from dljob.runtime.process import activities
from dljob.runtime.process.activities import Waiting
from dljob.runtime.process.context import current_worker
from dljob.runtime.process.handover import Handover, in_thread
from dljob.runtime.process.worker_context import HELD, PUBLISHED, held_versions, published_versions
from dljob.runtime.queues.storage_client import SLACK_S, Deadline, StorageClient
from dljob.runtime.rpc.own_process import check_process
from dljob.runtime.weights.buckets import StateBuckets, checksum, flat, load_state
from dljob.runtime.weights.chain import places, seconds_for
from dljob.runtime.weights.event_times import event_times
from dljob.runtime.weights.model import Mark, Version
from dljob.runtime.weights.transport import AGAIN_S, Buckets, BucketTransport, ByteCarrier, Carrier

if TYPE_CHECKING:
    from dljob.runtime.weights.yr_transport import DatasystemCarrier

TRANSPORTS = ("store", "collective", "rdt", "yr")

log = logging.getLogger(__package__)


class WeightChannel:
    """A channel of a job, by name.

    Args:
        name: Name of the channel in the whole job.
        transport: "store": Ray's shared memory of each node, once for all its ranks. "collective": a broadcast in a
            group of `spec.collectives.groups`. "rdt": Ray Direct Transport. "yr": openYuanrong's datasystem. Publisher
            and readers name the same one; a reader that names another one gets the versions from the store.
        group: The group of "collective"; None for the one named like the channel. It serves this channel alone.
        tensor_transport: The transport of "rdt": "nixl", or one that was registered with Ray in this process.
        verify: Whether `receive` checks every byte, and `publish` makes the checksums for that. Each takes as long as
            reading the state once. False in a publisher alone: its readers check nothing.

    Raises:
        UsageError: There is no such transport or group, or it cannot be used here; the message says why.
    """

    def __init__(
        self,
        name: str,
        *,
        transport: str = "store",
        group: str | None = None,
        tensor_transport: str = "nixl",
        verify: bool = True,
    ) -> None:
        if transport not in TRANSPORTS:
            hint = f"there are: {', '.join(TRANSPORTS)}"
            raise UsageError(f"WeightChannel({name!r}, transport={transport!r}): unknown transport", hint=hint)
        self.name = name
        self._transport_used = ""
        self._keeper = StorageClient("weights", name, "WeightChannel")
        self._mark: Mark = ("", 0)
        self._carrier: Carrier | None = None
        self._datasystem: DatasystemCarrier | None = None
        self._transport = transport
        self._verify = verify
        self._sender = self._carried if transport != "yr" else self._yr
        self._way = self._opened(transport, group or name, tensor_transport)
        if transport == "yr":
            self._yr()

    @property
    def came_by(self) -> str:
        """The transport of the version that `receive` or `publish` handled last; "" before the first.

        "chain": one of "store", whose bytes came to this node over a chain of nodes.
        """
        return self._transport_used

    @property
    def ready(self) -> bool:
        """Whether the next `publish` goes by this channel's transport: all members of its group are there."""
        return self._way is None or self._way.ready

    @property
    def aio(self) -> AsyncChannel:
        """The same methods for asyncio: `await channel.aio.receive()`."""
        return AsyncChannel(self)

    def publish(self, version: int, state: Any) -> None:
        """Publish a version: readers that wait in `receive` get it, and later ones get the newest.

        The state may be changed once it returns. One rank publishes on a channel.

        Args:
            version: Greater than the last one of this process; a restarted rank may start anywhere.
            state: Dicts and lists of tensors (on any device), arrays, and anything that pickle takes.

        Raises:
            UsageError: The version is not newer; another rank publishes here; a later process of this rank has started;
                or a part of the state cannot be sent, which the message names.
        """
        # True is an int in Python, and no version.
        if isinstance(version, bool) or not hasattr(version, "__index__"):
            raise TypeError(f"publish(version): the version must be an integer, got {type(version).__name__}")
        what = f"{self._keeper.name}.publish"
        index, buckets = flat(state, what)
        since = event_times.published()
        try:
            self._publish(Version(secrets.token_hex(8), version.__index__(), index, learned_since=since), buckets)
        except BaseException:
            event_times.used([since] if since else ())  # their events are in the next version
            raise
        current_worker().note(f"{PUBLISHED}{self.name}", version.__index__())
        activities.use("weights", self.name, "put")

    def _publish(self, made: Version, flat_state: StateBuckets) -> None:
        buckets: Buckets = flat_state
        # Checksums at once, unlike for the store alone: each reader checks what comes by the other transport.
        if self._way is not None:
            buckets = flat_state.whole()  # it goes over them several times
            sizes = tuple(tuple(view.nbytes for view in bucket) for bucket in buckets)
            sums = tuple(checksum(bucket) if self._verify else None for bucket in buckets)
            made = replace(made, sizes=sizes, sums=sums)
            made = self._way.send(made, buckets)
        # The store gets every version: a reader that the other transport does not reach fetches it there.
        taken_at = self._sender().publish(made, buckets)
        if taken_at is not None:  # servers load nothing that is in openYuanrong's datasystem
            published_versions.add(self.name, made.version, taken_at)
        self._transport_used = self._transport if made.way or self._transport == "yr" else "store"

    def receive(self, timeout: float | None = None) -> tuple[int, Any]:
        """Wait for a version that this object has not received yet; return (version, state) of the newest.

        Versions in between are skipped. Threads, or coroutines, that wait at once on one object may get the same
        version: give each an object of its own. Arrays are read-only and shared with the other ranks of the node;
        tensors are copies on the CPU.

        Args:
            timeout: Seconds to wait for a version; None for no limit. One that was published by then may take longer to
                come: 5 s, and a second for each 10 MiB.

        Raises:
            TimeoutError: No version came in time.
            CallError: A bucket arrived damaged twice.
            CollectiveAbortedError: A member of its group is lost, and the group's `onRestart` is Fail.
        """
        # The mark only after a whole version: one that failed half-way is received again.
        self._mark, version, state = self._newest(timeout)
        held_versions[self.name] = version
        current_worker().note(f"{HELD}{self.name}", version)
        return version, state

    def _newest(self, timeout: float | None, unless: Callable[[], bool] = lambda: False) -> tuple[Mark, int, Any]:
        """Return `receive`'s result with the mark of that version; gives up once `unless` returns true."""
        activities.use("weights", self.name, "get")
        with Waiting("weights", self.name, "receive", lambda: ()):
            return self._awaited(Deadline(timeout), timeout, unless)

    def _awaited(self, deadline: Deadline, timeout: float | None, unless: Callable[[], bool]) -> tuple[Mark, int, Any]:
        while True:
            # A reader whose group is lost for good must not wait for versions any more.
            if self._way is not None:
                self._way.check()
            left = deadline.left
            late = None if left is None else left + SLACK_S
            try:
                # In slices: a waiting thread can be interrupted between two of them.
                found = self._carried().newer(self._mark, deadline.slice_s, late)
                buckets = None if found is None else self._fetched(found, deadline)
            except CallTimeoutError as error:
                raise TimeoutError(error.message) from None
            if found is not None and buckets is not None:
                return found.mark, found.version, load_state(found.index, buckets)
            if unless():
                return self._mark, 0, None
            if deadline.left == 0:
                what = "nothing new was published" if found is None else f"version {found.version} did not come whole"
                raise TimeoutError(f"{self._keeper.name}.receive: {what} in {timeout:g} s")
            # A version was announced, but its buckets were lost: wait until the keeper drops it, or has its own copy.
            if found is not None:
                time.sleep(AGAIN_S)

    def latest(self) -> int | None:
        """Return the number of the newest version, without receiving it; None before the first.

        Of use for logs: whether a version is new to this object says `receive(timeout=0)`. After a way back to a cut
        the newest number may be lower than that of a version received before.
        """
        return self._keeper.ask("latest", timeout_s=None)

    def _fetched(self, version: Version, deadline: Deadline) -> Buckets | None:
        self._transport_used = "yr" if version.stored else "store"
        if version.stored:
            return self._yr().fetch(version)
        if self._way is not None and version.way and (came := self._way.take(version)) is not None:
            pairs = zip(came, version.sums, strict=True) if self._verify else ()
            if all(said is None or checksum(bucket) == said for bucket, said in pairs):
                self._transport_used = self._transport
                return came
            log.warning(
                "%s.receive: version %d arrived damaged; fetching it from the store", self._keeper.name, version.version
            )
        carrier, left = self._carried(), deadline.left
        buckets = carrier.fetch(version, None if left is None else left + seconds_for(places(version.sizes)[1]))
        self._transport_used = carrier.came_by
        return buckets

    def _opened(self, transport: str, group: str, tensor_transport: str) -> BucketTransport | None:
        if transport == "collective":
            from dljob.runtime.weights.group_transport import member

            return member(self._keeper, group)
        if transport == "rdt":
            if getattr(current_worker().calls, "keeper", None) is None:
                hint = "the transports store and collective serve scripts"
                raise UsageError(f"{self._keeper.name}: the transport rdt needs a rank in Ray's own process", hint=hint)
            from dljob.runtime.weights.rdt_transport import RdtWay

            carrier: Any = self._carried()
            return RdtWay(self._keeper.name, carrier.ask, tensor_transport)
        return None

    def _yr(self) -> DatasystemCarrier:
        if self._datasystem is None:
            from dljob.runtime.weights.yr_transport import DatasystemCarrier

            self._datasystem = DatasystemCarrier(self._keeper)
        return self._datasystem

    def _carried(self) -> Carrier:
        calls = current_worker().calls
        find = getattr(calls, "keeper", None)
        if find is not None:
            check_process(getattr(calls, "pid", os.getpid()), self._keeper.name)
        if self._carrier is None:
            if find is None:
                self._carrier = ByteCarrier(self._keeper)
            else:
                from dljob.runtime.weights.ray_transport import RayCarrier

                self._carrier = RayCarrier(self._keeper, find, verify=self._verify)
        return self._carrier


class AsyncChannel:
    """The awaitable twins of a channel's methods.

    A version that a cancelled `receive` found is received by the next one. A cancelled `publish` goes on in its thread.
    """

    def __init__(self, channel: WeightChannel) -> None:
        self._channel = channel

    async def publish(self, version: int, state: Any) -> None:
        """Await `WeightChannel.publish`; the state may not change until it returns."""
        await in_thread(lambda: self._channel.publish(version, state))

    async def receive(self, timeout: float | None = None) -> tuple[int, Any]:  # noqa: ASYNC109 - as its blocking twin
        """Await `WeightChannel.receive`."""
        channel, got = self._channel, Handover[tuple[Mark, int, Any]]()
        newest = await got.run(lambda: got.offer(channel._newest(timeout, lambda: got.cancelled)))
        channel._mark, version, state = newest  # not in the thread: a cancelled call has received nothing
        held_versions[channel.name] = version
        current_worker().note(f"{HELD}{channel.name}", version)
        return version, state

    async def latest(self) -> int | None:
        """Await `WeightChannel.latest`."""
        return await in_thread(self._channel.latest)
