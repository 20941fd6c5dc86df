"""`WeightChannel(name)`: one rank publishes versions of a state, any number of others receive the newest."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from dljob.errors import CallTimeoutError
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
from dljob.runtime.weights.model import NO_MARK, Mark, Version
from dljob.runtime.weights.transport import (
    AGAIN_S,
    STORE,
    Buckets,
    ByteCarrier,
    Carrier,
    TransportCalls,
    WeightTransport,
    find_transport,
)

_notes_lock = threading.Lock()
"""Held while a version is noted: threads at one channel may end in another order than that of their versions."""
_newest_versions: dict[str, tuple[int, int]] = {}
"""Channel -> incarnation of this rank, and the newest version that it has published."""

log = logging.getLogger(__package__)


class FetchedVersion(NamedTuple):
    """A whole version, and the mark with which its request began."""

    begun_mark: Mark
    mark: Mark
    version: int
    state: Any


class WeightChannel:
    """A channel of a job, by name.

    Args:
        name: Name of the channel in the whole job.
        transport: "store": Ray's shared memory of each node, once for all its ranks. "collective": a broadcast in a
            group of `spec.collectives.groups`. "rdt": Ray Direct Transport. "yr": openYuanrong's datasystem. Otherwise
            a `WeightTransport`, or the name of one in the entry points of `dljob.weight_transports`. Publisher and
            readers name the same one; a reader that names another one gets the versions from the store.
        verify: Whether `receive` checks every byte, and `publish` makes the checksums for that. Each takes as long as
            reading the state once. False in a publisher alone: its readers check nothing.
        options: Arguments of a transport that is given by name. "collective" takes `group`, which serves this channel
            alone, by default the one named like it; "rdt" takes `tensor_transport`: "nixl" (the default), or one that
            was registered with Ray in this process.

    Raises:
        UsageError: There is no such transport or group, or it cannot be used here; the message says why.
    """

    def __init__(
        self,
        name: str,
        *,
        transport: str | WeightTransport = STORE,
        verify: bool = True,
        **options: Any,
    ) -> None:
        self.name = name
        self._transport_used = ""
        self._keeper = StorageClient("weights", name, "WeightChannel")
        self._mark = NO_MARK
        self._carrier: Carrier | None = None
        self._verify = verify
        own_transport = find_transport(name, transport, options)
        self._publish_lock = threading.Lock()
        self._calls = own_transport and TransportCalls(self._keeper.name, own_transport)

    @property
    def came_by(self) -> str:
        """The transport of the version that `receive` or `publish` handled last; "" before the first.

        "chain": one of "store", whose bytes came to this node over a chain of nodes.
        """
        return self._transport_used

    @property
    def ready(self) -> bool:
        """Whether the next `publish` goes by this channel's transport: all members of its group are there."""
        return self._calls is None or self._calls.ready

    @property
    def aio(self) -> AsyncChannel:
        """The same methods for asyncio: `await channel.aio.receive()`."""
        return AsyncChannel(self)

    def publish(self, version: int, state: Any) -> None:
        """Publish a version: readers that wait in `receive` get it, and later ones get the newest.

        The state may be changed once it returns. One rank publishes on a channel; of its threads that publish at once
        each needs a number of its own, and the lower one is refused if the higher one was there first.

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
        subject = f"{self._keeper.name}.publish"
        index, buckets = flat(state, subject)
        since, incarnation = event_times.published(), current_worker().incarnation
        try:
            new_version = Version(secrets.token_hex(8), version.__index__(), index, learned_since=since)
            taken_at = self._publish(new_version, buckets)
        except BaseException:
            event_times.used([since] if since else ())  # their events are in the next version
            raise
        with _notes_lock:
            if (incarnation, new_version.version) > _newest_versions.get(self.name, (0, 0)):
                _newest_versions[self.name] = incarnation, new_version.version
                current_worker().note(f"{PUBLISHED}{self.name}", new_version.version)
                published_versions.add(self.name, new_version.version, taken_at)
        activities.use("weights", self.name, "put")

    def _publish(self, new_version: Version, flat_state: StateBuckets) -> float:
        """Send a version; return when the keeper took it."""
        if self._calls is None:
            return self._offer(new_version, flat_state)
        self._calls.check()
        buckets = flat_state.views_of_all()  # it goes over them several times
        sizes = tuple(tuple(view.nbytes for view in bucket) for bucket in buckets)
        # Checksums at once, unlike for the store alone: each reader checks what comes by the other transport.
        sums = tuple(checksum(bucket) if self._verify else None for bucket in buckets)
        # With a version the keeper drops what the transport has handed to it for others, which it does not have yet.
        with self._publish_lock:
            return self._offer(self._calls.publish(replace(new_version, sizes=sizes, sums=sums), buckets), buckets)

    def _offer(self, version: Version, buckets: Buckets) -> float:
        # The store gets every version: a reader that the other transport does not reach fetches it there.
        taken_at = self._carried().publish(version, buckets)
        self._transport_used = version.transport or STORE
        return taken_at

    def receive(self, timeout: float | None = None) -> tuple[int, Any]:
        """Wait for a version that this object has not received yet; return (version, state) of the newest.

        Versions in between are skipped. Of threads, or coroutines, that wait at once on one object each version goes to
        one: give each an object of its own if all want it. Arrays are read-only and shared with the other ranks of the
        node; tensors are copies on the CPU.

        Args:
            timeout: Seconds to wait for a version; None for no limit. One that was published by then may take longer to
                come: 5 s, and a second for each 10 MiB.

        Raises:
            TimeoutError: No version came in time.
            CallError: A bucket arrived damaged twice.
            CollectiveAbortedError: A member of its group is lost, and the group's `onRestart` is Fail.
        """
        deadline = Deadline(timeout)
        while True:
            fetched_version = self._newest(deadline, timeout)
            if self._mark_received(fetched_version):
                return fetched_version.version, fetched_version.state

    def _mark_received(self, fetched_version: FetchedVersion) -> bool:
        """Note a whole version as received, unless another thread has received one since the request began.

        Which of two keepers' marks is the newer one cannot be seen from them.
        """
        with _notes_lock:
            if self._mark != fetched_version.begun_mark:
                return False
            self._mark = fetched_version.mark
            held_versions[self.name] = fetched_version.version
            current_worker().note(f"{HELD}{self.name}", fetched_version.version)
            return True

    def _newest(
        self, deadline: Deadline, timeout: float | None, unless: Callable[[], bool] = lambda: False
    ) -> FetchedVersion:
        """Return the newest version that is not received yet; gives up once `unless` returns true."""
        activities.use("weights", self.name, "get")
        with Waiting("weights", self.name, "receive", lambda: ()):
            return self._awaited(deadline, timeout, unless)

    def _awaited(self, deadline: Deadline, timeout: float | None, unless: Callable[[], bool]) -> FetchedVersion:
        while True:
            mark = self._mark
            # A reader whose group is lost for good must not wait for versions any more.
            if self._calls is not None:
                self._calls.check()
            seconds_left = deadline.seconds_left
            late = None if seconds_left is None else seconds_left + SLACK_S
            try:
                # In slices: a waiting thread can be interrupted between two of them.
                announced = self._carried().newer(mark, deadline.slice_s, late)
                buckets = None if announced is None else self._fetched(announced, deadline)
            except CallTimeoutError as error:
                raise TimeoutError(error.message) from None
            if announced is not None and buckets is not None:
                return FetchedVersion(mark, announced.mark, announced.version, load_state(announced.index, buckets))
            if unless():
                return FetchedVersion(mark, mark, 0, None)
            if deadline.seconds_left == 0:
                problem = (
                    "nothing new was published"
                    if announced is None
                    else f"version {announced.version} did not come whole"
                )
                raise TimeoutError(f"{self._keeper.name}.receive: {problem} in {timeout:g} s")
            # A version was announced, but its buckets were lost: wait until the keeper drops it, or has its own copy.
            if announced is not None:
                time.sleep(AGAIN_S)

    def latest(self) -> int | None:
        """Return the number of the newest version, without receiving it; None before the first.

        Of use for logs: whether a version is new to this object says `receive(timeout=0)`. After a way back to a cut
        the newest number may be lower than that of a version received before.
        """
        return self._keeper.ask("latest", timeout_s=None)

    def _fetched(self, version: Version, deadline: Deadline) -> Buckets | None:
        if self._calls is not None and (came := self._calls.receive(version, deadline.seconds_left)) is not None:
            pairs = zip(came, version.sums, strict=True) if self._verify else ()
            if all(expected_sum is None or checksum(bucket) == expected_sum for bucket, expected_sum in pairs):
                self._transport_used = version.transport
                return came
            log.warning(
                "%s.receive: version %d arrived damaged by the transport %s; fetching it from the store",
                self._keeper.name,
                version.version,
                version.transport,
            )
        carrier, seconds_left = self._carried(), deadline.seconds_left
        buckets = carrier.fetch(
            version, None if seconds_left is None else seconds_left + seconds_for(places(version.sizes)[1])
        )
        self._transport_used = carrier.came_by
        return buckets

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
        channel, deadline = self._channel, Deadline(timeout)
        while True:
            got = Handover[FetchedVersion]()
            fetched_version = await got.run(
                lambda got=got: got.offer(channel._newest(deadline, timeout, lambda: got.cancelled))
            )
            if channel._mark_received(fetched_version):  # not in the thread: a cancelled call has received nothing
                return fetched_version.version, fetched_version.state

    async def latest(self) -> int | None:
        """Await `WeightChannel.latest`."""
        return await in_thread(self._channel.latest)
