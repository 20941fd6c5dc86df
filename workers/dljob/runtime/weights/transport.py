"""Common parts of a WeightChannel's transports: interfaces, a check, and the carrier for processes without Ray."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import EntryPoint
from typing import Any, Protocol, TypeVar

from dljob.errors import CallError, DLJobError, UsageError
from dljob.runtime.process import activities, extensions
from dljob.runtime.process.context import current_worker
from dljob.runtime.queues.storage_client import LOOK_S, StorageClient
from dljob.runtime.weights.buckets import checksum, parted
from dljob.runtime.weights.chain import places, seconds_for
from dljob.runtime.weights.model import Mark, Version

STORE = "store"
AGAIN_S = 0.1
"""Seconds until the next request, after a version that was gone before it could be fetched."""

T = TypeVar("T")
log = logging.getLogger(__package__)

Buckets = Sequence[Sequence[memoryview]]


class Carrier(Protocol):
    """Transfer of versions between this process and the keeper."""

    came_by: str
    """How the version that was fetched last came: "store", or "chain" over a chain of nodes."""

    def publish(self, version: Version, buckets: Buckets) -> float:
        """Send a version to the keeper; return when it took it (unix seconds)."""
        ...

    def newer(self, mark: Mark, wait_s: float, timeout_s: float | None) -> Version | None:
        """Return the newest version after `mark`, without its buckets; None if none comes within `wait_s` seconds."""
        ...

    def fetch(self, version: Version, timeout_s: float | None) -> Buckets | None:
        """Return its buckets; None when they cannot be fetched any more, or did not come in time."""
        ...


class WeightTransport(ABC):
    """A way for a channel's versions beside the store, which has each version for readers that this way does not reach.

    A transport of yours is an object, `WeightChannel("policy", transport=MyTransport())`, or has an entry point in the
    group `dljob.weight_transports`: `WeightChannel("policy", transport="mine", folder="/mnt")` calls
    `MyTransport("policy", folder="/mnt")`. Publisher and readers each make their own. A version that it raises or takes
    too long for goes by the store, and a warning in the rank's log names the transport and the error.
    """

    name = ""
    """Its name in messages and in `WeightChannel.came_by`; empty: its class's. A reader takes the versions that a
    transport of the same name has published."""
    timeout_s: float | None = 20.0
    """Seconds that `publish` or `receive` may take, and 5 more and one for each 10 MiB of the version; each call has a
    thread of its own. None: it has deadlines of its own."""

    @property
    def ready(self) -> bool:
        """Whether it can carry the next version."""
        return True

    def check(self) -> None:  # noqa: B027 - optional
        """Raise an error that the user must get instead of a version from the store, such as a lost member."""

    @abstractmethod
    def publish(self, version: int, buckets: Buckets) -> str | None:
        """Send a version's bytes, or store them for its readers. Never called twice at once on one object.

        A restarted publisher may use a number again.

        Args:
            version: Its number.
            buckets: Buffers that follow each other, in buckets of some 64 MiB. They may change after the return.

        Returns:
            The text by which readers find it, such as a path; None if it goes by the store alone.
        """

    @abstractmethod
    def receive(self, address: str, sizes: Sequence[int]) -> Sequence[bytes | bytearray | memoryview] | None:
        """Return a version's bytes; the channel compares them with the publisher's checksums.

        Args:
            address: The result of `publish`.
            sizes: Bytes of each bucket.

        Returns:
            Each bucket in one piece of memory, which does not change later; None if the version did not come this way.
        """


def find_transport(
    channel: str, transport: str | WeightTransport, options: Mapping[str, Any]
) -> WeightTransport | None:
    """Return the transport of a channel beside the store; None for "store".

    Raises:
        UsageError: There is none of that name, or it cannot be loaded or used; the message says why.
    """
    subject = f"WeightChannel({channel!r}): the transport"
    if isinstance(transport, str) and transport != STORE:
        point = extensions.find_entry_point(extensions.WEIGHT_TRANSPORTS, transport, subject)
        factory: Any = None
        try:
            factory = point.load()
            created_transport = factory(channel, **options)
            if not isinstance(created_transport, WeightTransport):
                raise TypeError(f"no WeightTransport, but {created_transport!r}")
            return created_transport
        except DLJobError:
            raise
        except Exception as error:  # whatever a user's code raises
            raise _transport_error(subject, point, factory, error) from error
    if options:
        hint = "an object has its own, and the store has none"
        raise UsageError(f"{subject} takes no options, not {', '.join(options)}", hint=hint)
    if transport == STORE:
        return None
    if not isinstance(transport, WeightTransport):  # pyright: ignore[reportUnnecessaryIsInstance] - users pass it
        hint = "pass an object of a class that is derived from dljob.WeightTransport"
        raise UsageError(f"{subject} is no WeightTransport, but {transport!r}", hint=hint)
    return transport


def _transport_error(subject: str, point: EntryPoint, factory: Any, error: Exception) -> UsageError:
    """Return the error for a transport whose module (`factory` is None) or constructor raised another error."""
    from dljob.runtime.process.outcome import user_frame

    line, rank = user_frame(error, ""), ""
    with suppress(UsageError):  # a process of no job
        rank = f" in {current_worker().name}"
    if factory is None:
        code = f"entry_points(group={point.group!r})[{point.name!r}].load()"
        hint = f'the whole error: python -c "from importlib.metadata import *; {code}"'
    else:
        hint = f"correct {line or point.value}; it is called with the channel's name"
        with suppress(TypeError, ValueError):  # not every callable has a signature
            hint += f", and its options: {', '.join(list(inspect.signature(factory).parameters)[1:]) or 'none'}"
    place = line and f", at {line}"
    message = f"{subject} {point.name!r} ({point.value}) cannot be made{rank}: {type(error).__name__}: {error}{place}"
    return UsageError(message, hint=hint)


class TransportCalls:
    """A channel's calls of its transport. One that raises or hangs is a warning, and the store has the version."""

    def __init__(self, channel: str, transport: WeightTransport) -> None:
        self._channel = channel
        self._transport = transport
        self._late_calls = set[Future[Any]]()
        """Several, where threads that share a channel are late at once."""
        self.name = transport.name or type(transport).__name__
        self.check = transport.check

    @property
    def ready(self) -> bool:
        """Whether the transport can carry the next version."""
        return self._transport.ready

    def publish(self, version: Version, buckets: Buckets) -> Version:
        """Publish by the transport; return the version with the transport's name and address, or as it was."""
        address = self._call("publish", version, None, lambda: self._transport.publish(version.version, buckets))
        return version if address is None else replace(version, transport=self.name, address=str(address))

    def receive(self, version: Version, seconds_left: float | None) -> Buckets | None:
        """Return the unchecked buckets; None if they did not come. `seconds_left`: of the reader's own timeout."""
        if version.transport != self.name:
            return None
        sizes = [sum(bucket) for bucket in version.sizes]

        def receive() -> Buckets | None:
            pieces = self._transport.receive(version.address, sizes)
            if pieces is None:
                return None
            views = [memoryview(piece).toreadonly().cast("B") for piece in pieces]
            return [parted(view, bucket) for view, bucket in zip(views, version.sizes, strict=True)]

        return self._call("receive", version, seconds_left, receive)

    def _call(self, method: str, version: Version, seconds_left: float | None, work: Callable[[], T]) -> T | None:
        limit = self._transport.timeout_s
        try:
            if limit is None:
                return work()
            # Otherwise each version would leave a thread behind.
            if self._late_calls:
                raise TimeoutError("an earlier call has not returned yet")
            slack = seconds_for(places(version.sizes)[1])
            return self._call_within(slack + (limit if seconds_left is None else min(limit, seconds_left)), work)
        except Exception as error:  # noqa: BLE001 - a user's code raises what it wants
            message = "%s.%s: version %d goes by the store: the transport %s: %s: %s"
            log.warning(message, self._channel, method, version.version, self.name, type(error).__name__, error)
            return None

    def _call_within(self, seconds: float, work: Callable[[], T]) -> T:
        call, end = Future[T](), time.monotonic() + seconds

        def run() -> None:
            try:
                call.set_result(work())
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                call.set_exception(error)

        threading.Thread(target=activities.context().run, args=(run,), name="dljob-transport", daemon=True).start()
        try:
            while True:
                try:
                    # In slices: a waiting thread can be interrupted between two of them.
                    return call.result(max(0.0, min(LOOK_S, end - time.monotonic())))
                except TimeoutError:
                    if call.done():
                        return call.result()
                    if time.monotonic() >= end:
                        raise TimeoutError(f"it did not return within {seconds:.0f} s") from None
        finally:
            if not call.done():  # late, or its caller was interrupted
                self._late_calls.add(call)
                call.add_done_callback(self._late_calls.discard)


class ByteCarrier:
    """The carrier of a process without Ray: everything travels as bytes through its host."""

    def __init__(self, keeper: StorageClient) -> None:
        self._keeper = keeper
        self.came_by = "store"

    def publish(self, version: Version, buckets: Buckets) -> float:
        """Send a version to the keeper as bytes; return when it took it."""
        # The keeper checks what arrives, so the checksums go along, also where no reader needs them.
        has_all_sums = version.sums and None not in version.sums
        sums = version.sums if has_all_sums else tuple(checksum(bucket) for bucket in buckets)
        parts = [[bytes(view) for view in bucket] for bucket in buckets]
        return self._keeper.ask("publish", self._keeper.caller, version.summed(sums), parts, timeout_s=None)

    def newer(self, mark: Mark, wait_s: float, timeout_s: float | None) -> Version | None:
        """Return the newest version after `mark`, without its buckets; None if none comes within `wait_s` seconds."""
        return self._keeper.ask("receive", mark, wait_s, timeout_s=timeout_s)

    def fetch(self, version: Version, timeout_s: float | None) -> Buckets | None:
        """Return checked copies of the buckets, as bytes from the keeper; None when they are gone."""
        buckets = list[Sequence[memoryview]]()
        for number, expected_sum in enumerate(version.sums):
            bucket = checked(
                lambda at=number: self._bucket(version, at, timeout_s), expected_sum, f"{self._keeper.name}.receive"
            )
            if bucket is None:
                return None
            buckets.append(bucket)
        return buckets

    def _bucket(self, version: Version, number: int, timeout_s: float | None) -> Sequence[memoryview] | None:
        parts = self._keeper.ask("bucket", version.mark, number, timeout_s=timeout_s)
        return None if parts is None else [memoryview(part) for part in parts]


def checked(fetch: Any, expected_sum: int | None, reader_name: str) -> Sequence[memoryview] | None:
    """Return a bucket with the right checksum; fetch a wrong one once more. Raises CallError when both are wrong.

    `expected_sum`: the checksum; None: the publisher made none, and whatever comes is right.
    """
    # Twice: a damaged transfer passes, damaged memory does not.
    for _ in range(2):
        bucket = fetch()
        if bucket is None or expected_sum is None or checksum(bucket) == expected_sum:
            return bucket
    me = current_worker()
    message = f"{reader_name}: a bucket arrived damaged at {me.name}, twice"
    raise CallError(message, role=me.role, rank=me.rank, hint="memory or network of this node: dljob doctor")
