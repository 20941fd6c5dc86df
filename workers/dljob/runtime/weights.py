"""`WeightChannel(name)`: one rank publishes versions of a state, any number of others receive the newest."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from dljob.errors import CallError, CallTimeoutError, UsageError
from dljob.runtime.asking import SLACK_S, SLICE_S, Asker, Deadline
from dljob.runtime.context import current_worker
from dljob.runtime.weights_data import checksum, flat, whole
from dljob.runtime.weights_model import Mark, Version

if TYPE_CHECKING:
    from dljob.runtime.weights_yr import DatasystemCarrier

TRANSPORTS = ("store", "collective", "rdt", "yr")
AGAIN_S = 0.1
"""Pause before a version is asked for anew that was gone when it was to be fetched."""

_log = logging.getLogger(__name__)

Buckets = Sequence[Sequence[memoryview]]


class Carrier(Protocol):
    """How versions travel between this process and the keeper."""

    def publish(self, version: Version, buckets: Buckets) -> None:
        """Bring a version to the keeper."""
        ...

    def newer(self, mark: Mark, wait_s: float, timeout_s: float | None) -> Version | None:
        """The newest version after `mark`, its buckets not fetched yet."""
        ...

    def fetch(self, version: Version) -> Buckets | None:
        """Its buckets, whole; None when it is not to be had any more."""
        ...


class Way(Protocol):
    """A way for buckets past the store, which has them too: for whoever this way does not reach."""

    @property
    def ready(self) -> bool:
        """Whether the next version can go by it."""
        ...

    def check(self) -> None:
        """Raise what its user must hear of before anything else."""
        ...

    def send(self, version: Version, buckets: Buckets) -> Version:
        """Send a version's buckets; the version, with its way where it went by it."""
        ...

    def take(self, version: Version) -> Buckets | None:
        """What came by it, not checked yet; None where nothing did."""
        ...


class WeightChannel:
    """A channel of a job, by name.

    Args:
        name: of the channel, in the whole job.
        transport: "store": Ray's shared memory of each node, once for all its ranks. "collective": a broadcast in a
            group of `spec.collectives.groups`. "rdt": Ray Direct Transport. "yr": openYuanrong's datasystem. Publisher
            and readers name the same one; a reader that names another one gets the versions from the store.
        group: of "collective"; None: the one that is named as the channel. It is for this channel alone.
        tensor_transport: of "rdt": "nixl", or one that was registered with Ray in this process.

    Raises:
        UsageError: no such transport or group, or it is not to be had here; it says why.
    """

    def __init__(
        self, name: str, *, transport: str = "store", group: str | None = None, tensor_transport: str = "nixl"
    ) -> None:
        if transport not in TRANSPORTS:
            hint = f"there are: {', '.join(TRANSPORTS)}"
            raise UsageError(f"WeightChannel({name!r}, transport={transport!r}): unknown transport", hint=hint)
        self.name = name
        self._came_by = ""
        self._keeper = Asker("weights", name, "WeightChannel")
        self._mark: Mark = ("", 0)
        self._carrier: Carrier | None = None
        self._datasystem: DatasystemCarrier | None = None
        self._transport = transport
        self._sender = self._carried if transport != "yr" else self._yr
        self._way = self._opened(transport, group or name, tensor_transport)
        if transport == "yr":
            self._yr()

    @property
    def came_by(self) -> str:
        """What the version came by that `receive` gave last, or `publish` sent: a transport; "" before the first."""
        return self._came_by

    @property
    def ready(self) -> bool:
        """Whether the next `publish` goes by the transport of this channel: all members of its group are there."""
        return self._way is None or self._way.ready

    def publish(self, version: int, state: Any) -> None:
        """Publish a state: those who wait in `receive` get it, and who comes later gets the newest.

        When it returns, the state may be changed. One rank publishes on a channel.

        Args:
            version: greater than the last one of this process; a restarted rank may begin where it will.
            state: dicts and lists of tensors (on any device), arrays, and what pickle takes.

        Raises:
            UsageError: the version is not newer; another rank publishes here; a later process of this rank has begun;
                something in the state cannot be sent, and where it is.
        """
        if isinstance(version, bool) or not hasattr(version, "__index__"):
            raise TypeError(f"publish(version): the version must be an integer, got {type(version).__name__}")
        what = f"{self._keeper.name}.publish"
        index, buckets = flat(state, what)
        made = Version(secrets.token_hex(8), version.__index__(), index)
        if self._way is not None:
            sizes = tuple(tuple(view.nbytes for view in bucket) for bucket in buckets)
            made = replace(made, sizes=sizes, sums=tuple(checksum(bucket) for bucket in buckets))
            made = self._way.send(made, buckets)
        self._sender().publish(made, buckets)
        self._came_by = self._transport if made.way or self._transport == "yr" else "store"

    def receive(self, timeout: float | None = None) -> tuple[int, Any]:
        """(version, state) of the newest version, once there is one that this object has not received yet.

        Versions in between are skipped. Arrays are read-only and shared with the other ranks of the node; tensors are
        copies, on the CPU.

        Args:
            timeout: seconds to wait; None: as long as it takes.

        Raises:
            TimeoutError: there was none in time.
            CallError: a bucket arrived damaged twice.
            CollectiveAbortedError: a member of its group is lost, and the group's `onRestart` is Fail.
        """
        deadline = Deadline(timeout)
        while True:
            if self._way is not None:
                self._way.check()
            left = deadline.left
            late = None if left is None else left + SLACK_S
            try:
                found = self._carried().newer(self._mark, deadline.slice_s, late)
            except CallTimeoutError as error:
                raise TimeoutError(error.message) from None
            if found is not None and (buckets := self._fetched(found)) is not None:
                self._mark = found.mark
                return found.version, whole(found.index, buckets)
            if deadline.left == 0:
                raise TimeoutError(f"{self._keeper.name}.receive: nothing new was published in {timeout:g} s")
            if found is not None:
                time.sleep(AGAIN_S)

    def latest(self) -> int | None:
        """The newest version that is there; None without one. It is not received by this."""
        return self._keeper.ask("latest", timeout_s=None)

    def _fetched(self, version: Version) -> Buckets | None:
        self._came_by = "yr" if version.stored else "store"
        if version.stored:
            return self._yr().fetch(version)
        if self._way is not None and version.way and (came := self._way.take(version)) is not None:
            if tuple(checksum(bucket) for bucket in came) == version.sums:
                self._came_by = self._transport
                return came
            _log.warning(
                "%s.receive: version %d came damaged, it is fetched from the store", self._keeper.name, version.version
            )
        return self._carried().fetch(version)

    def _opened(self, transport: str, group: str, tensor_transport: str) -> Way | None:
        if transport == "collective":
            from dljob.runtime.weights_group import member

            return member(self._keeper, group)
        if transport == "rdt":
            if getattr(current_worker().calls, "keeper", None) is None:
                hint = "the transports store and collective serve scripts"
                raise UsageError(f"{self._keeper.name}: the transport rdt needs a rank in Ray's own process", hint=hint)
            from dljob.runtime.weights_rdt import RdtWay

            carrier: Any = self._carried()
            return RdtWay(self._keeper.name, carrier.ask, tensor_transport)
        return None

    def _yr(self) -> DatasystemCarrier:
        if self._datasystem is None:
            from dljob.runtime.weights_yr import DatasystemCarrier

            self._datasystem = DatasystemCarrier(self._keeper)
        return self._datasystem

    def _carried(self) -> Carrier:
        if self._carrier is None:
            find = getattr(current_worker().calls, "keeper", None)
            if find is None:
                self._carrier = ByteCarrier(self._keeper)
            else:
                from dljob.runtime.weights_ray import RayCarrier

                self._carrier = RayCarrier(self._keeper, find)
        return self._carrier


class ByteCarrier:
    """In a process without Ray: all of it travels as bytes, through the host."""

    def __init__(self, keeper: Asker) -> None:
        self._keeper = keeper

    def publish(self, version: Version, buckets: Buckets) -> None:
        """See Carrier."""
        sums = version.sums or tuple(checksum(bucket) for bucket in buckets)
        parts = [[bytes(view) for view in bucket] for bucket in buckets]
        self._keeper.ask("publish", self._keeper.who, version.summed(sums), parts, timeout_s=None)

    def newer(self, mark: Mark, wait_s: float, timeout_s: float | None) -> Version | None:
        """See Carrier."""
        return self._keeper.ask("receive", mark, wait_s, timeout_s=timeout_s)

    def fetch(self, version: Version) -> Buckets | None:
        """See Carrier."""
        sums = version.sums
        if sums is None:
            sums = self._keeper.ask("sums", version.mark, SLICE_S, timeout_s=None)
        if sums is None:
            return None
        buckets = list[Sequence[memoryview]]()
        for number in range(len(sums)):
            found = checked(lambda at=number: self._bucket(version, at), sums[number], f"{self._keeper.name}.receive")
            if found is None:
                return None
            buckets.append(found)
        return buckets

    def _bucket(self, version: Version, number: int) -> Sequence[memoryview] | None:
        found = self._keeper.ask("bucket", version.mark, number, timeout_s=None)
        return None if found is None else [memoryview(part) for part in found]


def checked(fetch: Any, said: int, what: str) -> Sequence[memoryview] | None:
    """A bucket whose checksum is right; one that is not is fetched once more. Raises CallError."""
    for _ in range(2):
        bucket = fetch()
        if bucket is None or checksum(bucket) == said:
            return bucket
    me = current_worker()
    said_so = f"{what}: a bucket arrived damaged at {me.name}, twice"
    raise CallError(said_so, role=me.role, rank=me.rank, hint="memory or network of this node: dljob doctor")
