"""The transport `collective`: a group of `spec.collectives.groups` broadcasts the buckets to its members.

The store has each version, too, so nobody depends on the group: members that come late, restart, or lose their group
meanwhile fetch the same bytes from there. A thread of each member forms the group and receives broadcasts, so that
`publish` does not wait for user code of a reader.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence

from dljob.errors import CollectiveAbortedError, CollectiveError, DeadlineError, UsageError
from dljob.runtime.collectives.group import CollectiveGroup, group_spec
from dljob.runtime.collectives.table import table
from dljob.runtime.process.context import current_worker
from dljob.runtime.queues.storage_client import SLICE_S, StorageClient
from dljob.runtime.weights.buckets import bytes_of, joined
from dljob.runtime.weights.model import Broadcast
from dljob.runtime.weights.transport import Buckets, WeightTransport

REPEAT_S = 1.0
"""Seconds until an announcement is repeated: the keeper may have died with it."""
TAKE_S = 20.0
"""Seconds that a reader waits for a published version to arrive by its group, before it fetches from the store."""
AGAIN_S = 0.5
"""Seconds until the group is formed again after a loss."""
OWN_PAUSES_S = (1.0, 60.0, 600.0)
"""Seconds until a member enters its group again after an error of its own, the last ones from then on: each time that
it leaves a broadcast may cost the others the group's `timeoutSeconds`."""
KEPT = 2
"""Versions that a member keeps in memory."""
REMEMBERED = 64
"""Nonces remembered of versions that came, kept or not."""

log = logging.getLogger(__package__)
_members: dict[str, ChannelMember] = {}
_lock = threading.Lock()


def member(channel: str, group: str | None = None) -> ChannelMember:
    """Return this process's member of a channel's group, shared by all objects of the channel.

    Args:
        channel: The channel's name.
        group: The group's; None: the same. It serves this channel alone.

    Raises:
        UsageError: There is no such group, this role is not in it, or it carries another channel.
    """
    context, keeper = current_worker(), StorageClient("weights", channel, "WeightChannel")
    group = group or channel
    group_spec(group, table(), context)
    with _lock:
        known = _members.get(group)
        # A rank that restarted in its process needs a member of its own: the old one leaves with the old group.
        if known is not None and known.incarnation == context.incarnation:
            if known.channel != keeper.name:
                hint = "declare a group for each channel in spec.collectives.groups"
                raise UsageError(f"{keeper.name}: group {group} carries {known.channel} already", hint=hint)
            return known
        new_member = _members[group] = ChannelMember(keeper, group)
    new_member.start()
    return new_member


class ChannelMember(WeightTransport):
    """A member of a channel's group."""

    name = "collective"
    timeout_s = None  # a broadcast has the group's, and a reader TAKE_S

    def __init__(self, keeper: StorageClient, group: str) -> None:
        self.channel = keeper.name
        self.incarnation = current_worker().incarnation
        self._keeper = keeper
        self._name = group
        self._group: CollectiveGroup | None = None
        self._failure: CollectiveError | None = None
        """The error after which the group is not formed again."""
        self._sending = threading.Lock()
        """Held while a version is sent, so that the group is not closed meanwhile."""
        self._changed = threading.Condition()
        self._taken: OrderedDict[str, Sequence[memoryview] | None] = OrderedDict()
        """By nonce; None for a version that was dropped, or never arrived whole."""
        self._own_errors = 0
        """Errors of this member's own since the last version that it received."""

    def start(self) -> None:
        """Form the group in a thread, and again whenever it is lost."""
        threading.Thread(target=self._live, name=f"dljob-weights-{self._name}", daemon=True).start()

    def check(self) -> None:
        """Raise CollectiveAbortedError if a member of a group with `onRestart: Fail` was lost."""
        if isinstance(self._failure, CollectiveAbortedError):
            raise self._failure

    @property
    def ready(self) -> bool:
        """Whether all members are in the group now."""
        return self._group is not None and self._group.whole

    # -- the publisher

    def publish(self, version: int, buckets: Buckets) -> str | None:
        """Broadcast the buckets; return the names of the group and the broadcast, or None without a whole group."""
        with self._sending:
            group = self._group
            return None if group is None or not group.whole else self._broadcast(group, version, buckets)

    def _broadcast(self, group: CollectiveGroup, version: int, buckets: Buckets) -> str:
        # Announce first: members enter a broadcast only when it is announced.
        sizes = [sum(view.nbytes for view in bucket) for bucket in buckets]
        coming = Broadcast(group.full_name, secrets.token_hex(8), group.rank, sizes)
        done = threading.Event()
        self._announce(version, coming)
        threading.Thread(target=self._repeat, args=(version, coming, done), daemon=True).start()
        try:
            for bucket in filter(any, buckets):
                group.broadcast(joined(bucket).to(group.device), src=group.rank)
            # Only after this have all members the whole version: the store's announcement names the group then.
            group.barrier()
        except CollectiveAbortedError as error:
            self._record_failure(error)
            raise
        finally:
            done.set()
        return f"{group.full_name} {coming.nonce}"

    def _announce(self, version: int, coming: Broadcast) -> None:
        self._keeper.ask("announce", self._keeper.caller, version, coming, timeout_s=None)

    def _repeat(self, version: int, coming: Broadcast, done: threading.Event) -> None:
        """Repeat the announcement until all have received: one that died with its keeper goes to the next keeper."""
        while not done.wait(REPEAT_S):
            try:
                self._announce(version, coming)
            except UsageError:  # refused: a newer version, or a later process of this rank, is there
                return

    # -- a reader

    def receive(self, address: str, sizes: Sequence[int]) -> Sequence[memoryview] | None:  # noqa: ARG002
        """Return the buckets of a version that came by the group; None when they did not reach this member."""
        full_name, _, nonce = address.rpartition(" ")
        with self._changed:
            self._changed.wait_for(lambda: nonce in self._taken or not self._in(full_name), TAKE_S)
            return self._taken.get(nonce)

    def _in(self, full_name: str) -> bool:
        return self._group is not None and self._group.full_name == full_name and self._group.whole

    def _live(self) -> None:
        while self._failure is None and self._current():
            pause = AGAIN_S
            try:
                with CollectiveGroup(self._name) as group:
                    self._now(group)
                    self._member_of(group)
            # Members are missing: try again. A lost member: form the group again, unless onRestart is Fail. Any other
            # error, such as a wrong spec, would come again: the store is the transport from now on.
            except DeadlineError as error:
                log.warning("%s goes by the store: %s", self.channel, error)
            except CollectiveAbortedError as error:
                log.warning("%s goes by the store until its group is formed again: %s", self.channel, error)
                self._record_failure(error)
            except (CollectiveError, UsageError) as error:
                log.warning("%s goes by the store from now on: %s", self.channel, error)
                self._failure = error if isinstance(error, CollectiveError) else CollectiveError(str(error))
            except Exception as error:  # noqa: BLE001 - as CUDA out of memory: this rank lives, and others wait for it
                pause = OWN_PAUSES_S[min(self._own_errors, len(OWN_PAUSES_S) - 1)]
                self._own_errors += 1
                message = "%s goes by the store: this rank has left group %s, and enters it again in %g s: %s: %s"
                log.warning(message, self.channel, self._name, pause, type(error).__name__, error)
            finally:
                self._now(None)
            time.sleep(pause)

    def _member_of(self, group: CollectiveGroup) -> None:
        try:
            self._serve(group)
        finally:
            with self._sending:  # the group is closed next: not while this process broadcasts in it
                self._now(None)

    def _current(self) -> bool:
        try:
            return current_worker().incarnation == self.incarnation
        except UsageError:  # this process runs no rank any more
            return False

    def _now(self, group: CollectiveGroup | None) -> None:
        with self._changed:
            self._group = group
            self._changed.notify_all()

    def _record_failure(self, error: CollectiveAbortedError) -> None:
        # A member that ended as it should is no failure: it reads no more, and the others have the store.
        if not error.ended and not group_spec(self._name, table(), current_worker()).recreate:
            self._failure = error

    def _serve(self, group: CollectiveGroup) -> None:
        """Receive broadcasts until a member is lost."""
        last = ""

        def over() -> bool:
            return not group.whole or not self._current()

        while not over():
            # Members enter a broadcast only once it is announced: no operation waits in the group between versions, so
            # its timeout is that of a transfer.
            coming = self._keeper.ask("announced", group.full_name, last, SLICE_S, timeout_s=None, unless=over)
            if coming is not None:
                last = coming.nonce
                # The publisher is a member, too, and has the version already.
                if coming.root != group.rank:
                    self._take_in(group, coming)

    def _take_in(self, group: CollectiveGroup, coming: Broadcast) -> None:
        import torch

        buckets: Sequence[memoryview] | None = None
        try:
            came = list[memoryview]()
            for size in coming.sizes:
                bucket = torch.empty(size, dtype=torch.uint8, device=group.device)
                # An empty broadcast is skipped by the publisher, too.
                if size:
                    group.broadcast(bucket, src=coming.root)
                came.append(bytes_of(bucket.cpu()))
            group.barrier()
            # Only now: a broadcast that broke off half-way leaves None, and the reader goes to the store.
            buckets, self._own_errors = came, 0
        finally:
            with self._changed:
                self._keep(coming.nonce, buckets)
                self._changed.notify_all()

    def _keep(self, nonce: str, buckets: Sequence[memoryview] | None) -> None:
        self._taken[nonce] = buckets
        # Forget the bytes early, the nonces late: `receive` must tell a version that was dropped from one to wait for.
        for old in list(self._taken)[:-KEPT]:
            self._taken[old] = None
        while len(self._taken) > REMEMBERED:
            self._taken.popitem(last=False)
