"""The storage actor of one WeightChannel: it holds the two newest versions, and copies them to objects of its own."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ray.exceptions import RayError

from dljob.calls.backlog import QueueCaller
from dljob.errors import UsageError
from dljob.runtime.process.messages import JobInfo
from dljob.runtime.queues.storage_client import SLICE_S
from dljob.runtime.rpc import object_store
from dljob.runtime.rpc.storage_actor import StorageActor
from dljob.runtime.weights.buckets import checksum, parcel
from dljob.runtime.weights.chain_desk import ChainDesk
from dljob.runtime.weights.model import Broadcast, Mark, Version
from dljob.runtime.weights.rdt_transport import forget
from dljob.runtime.weights.version_lines import KeeperLines
from dljob.tasks import TaskOwner, nobody_waits

KEPT = 2
"""Versions that are kept: a reader may still fetch the one before the newest."""
COPY_AFTER_S = 0.05
"""Seconds until the keeper copies a new version, so that readers who wait for it go first."""


class WeightsKeeper(StorageActor):
    """The actor. Ranks in Ray pass references (`offer`, `newer`); ranks outside of Ray pass bytes (`on_...`)."""

    def __init__(self, job: JobInfo, name: str) -> None:
        super().__init__(job, name)
        # New in each keeper: readers see by it that numbers of an earlier keeper mean nothing here.
        self._token = secrets.token_hex(8)
        self._count = 0
        self._versions: list[Version] = []
        self._publisher: QueueCaller | None = None
        self._handed: dict[str, Sequence[Any]] = {}
        self._coming: Broadcast | None = None
        self._tasks = TaskOwner(nobody_waits)
        self._chains = ChainDesk(f"WeightChannel({name!r})")
        self._lines: KeeperLines | None = None

    # -- ranks of this machine

    async def line_address(self) -> str:
        """Return where ranks of this machine ask by a line."""
        self._lines = self._lines or KeeperLines(self._by_line, self._tasks)
        return self._lines.address

    async def _by_line(self, name: str, args: tuple[Any, ...]) -> Any:
        return await {"offer": self.offer, "newer": self.newer, "copied": self.copied}[name](*args)

    async def copied(self, nonce: str) -> None:
        """Wait until this process needs the publisher's buckets of a version no more."""

        def look() -> bool | None:
            kept_version = next((version for version in self._versions if version.nonce == nonce), None)
            return kept_version is None or kept_version.copied or None

        while await self.changes.until(look, SLICE_S) is None:
            pass

    # -- ranks in Ray

    async def offer(self, publisher: QueueCaller, version: Version) -> float | str:
        """Accept a version; return when it was taken (unix seconds), or the reason of a refusal."""
        try:
            return self._take(publisher, version).taken_at
        except UsageError as error:
            return str(error)

    async def newer(self, mark: Mark, wait_s: float, node: str = "") -> Version | None:
        """Return the newest version, once one is newer than `mark`, to a reader on a node."""
        self._chains.asked(node)

        def look() -> Version | None:
            # Only the last one counts: once the newest is lost, its predecessor is older than the one readers have.
            newest = self._versions[-1] if self._versions else None
            return newest if newest is not None and _after(newest.mark, mark) else None

        return await self.changes.until(look, wait_s)

    async def lost(self, mark: Mark) -> None:
        """Drop a version that a reader could not fetch: its publisher died before the keeper had copied it."""
        # A copied version is this process's own, so the reader's loss was another's: it can fetch again.
        for lost_version in [version for version in self._versions if version.mark == mark and not version.copied]:
            self._versions.remove(lost_version)
            self._drop_refs(lost_version.address)
        self.changes.happened()

    async def hand(self, address: str, refs: Sequence[Any]) -> None:
        """Hold the Ray Direct Transport references of the version that is offered next; Ray would free its buckets."""
        self._handed[address] = refs

    async def handed(self, address: str) -> Sequence[Any] | None:
        """Return these references to a reader; None when the version is dropped."""
        return self._handed.get(address)

    async def relay(self, nonce: str, node: str) -> Any:
        """Return the relay by which a version comes to a node; None if it does not come there by a chain."""
        return await self._chains.relay(nonce, node)

    # -- members of a collective group

    async def on_announce(self, publisher: QueueCaller, version: int, coming: Broadcast) -> None:
        """Announce to the members of a group that a version is broadcast there next."""
        # A publisher repeats its announcement: only the first one wakes members.
        if self._coming is None or self._coming.nonce != coming.nonce:
            self._may(publisher, version)
            self._coming = coming
            self.changes.happened()

    async def on_announced(self, group: str, last: str, wait_s: float) -> Broadcast | None:
        """Return the broadcast in a group that follows the one with nonce `last`."""

        def look() -> Broadcast | None:
            coming = self._coming
            return coming if coming is not None and coming.group == group and coming.nonce != last else None

        return await self.changes.until(look, wait_s)

    # -- ranks without Ray

    async def on_publish(self, publisher: QueueCaller, version: Version, buckets: Sequence[Sequence[bytes]]) -> float:
        """Accept a version that came as bytes; return when it was taken. Raises UsageError when it arrived damaged."""
        for bucket, expected_sum in zip(buckets, version.sums, strict=True):
            if checksum([memoryview(part) for part in bucket]) != expected_sum:
                raise UsageError(f"version {version.version} arrived damaged: publish it again")
        refs = [await asyncio.to_thread(_put, bucket) for bucket in buckets]
        return self._take(publisher, replace(version, refs=refs, copied=True)).taken_at

    async def on_lost(self, mark: Mark) -> None:
        """Drop a version that a reader outside of Ray could not fetch, as `lost` does."""
        await self.lost(mark)

    async def on_receive(self, mark: Mark, wait_s: float) -> Version | None:
        """Return the newest version without references, which a rank outside of Ray cannot use."""
        newer_version = await self.newer(mark, wait_s)
        return None if newer_version is None else replace(newer_version, refs=())

    async def on_bucket(self, mark: Mark, bucket: int) -> list[bytes] | None:
        """Return a bucket of a version; None when it cannot be read any more."""
        kept_version = self._find_version(mark)
        try:
            return None if kept_version is None else [bytes(part) for part in await kept_version.refs[bucket]]
        except RayError:
            await self.lost(mark)
            return None

    async def on_latest(self) -> int | None:
        """Return the number of the newest version; None before the first."""
        return self._versions[-1].version if self._versions else None

    # -- hosts that load weights into their ranks

    async def version(self, number: int) -> Version | None:
        """Return the newest kept version of this number; None when it is not kept any more."""
        return next((kept_version for kept_version in reversed(self._versions) if kept_version.version == number), None)

    # -- kept versions

    def _find_version(self, mark: Mark) -> Version | None:
        return next((kept_version for kept_version in self._versions if kept_version.mark == mark), None)

    def _take(self, publisher: QueueCaller, version: Version) -> Version:
        newest = self._versions[-1] if self._versions else None
        # A publisher whose call broke sends the same version again, maybe after that of another thread.
        for kept_version in self._versions:
            if kept_version.nonce == version.nonce:
                return kept_version
        try:
            self._may(publisher, version.version)
        except UsageError:
            self._drop_refs(version.address)
            raise
        # After the check: a refused publisher must not take the channel over.
        self._publisher = publisher
        self._count += 1
        new_version = replace(
            version, mark=(self._token, self._count, version.nonce), by=(publisher.rank, publisher.incarnation)
        )
        new_version = dated(new_version, newest, time.time())
        self._versions = [*self._versions, new_version][-KEPT:]
        # After the new list is known: references of versions that fell out of it go.
        self._drop()
        if (sending := self._chains.begin(new_version)) is not None:
            self._tasks.start("chain of weights", sending)
        self.changes.happened()
        # Bytes are this process's own already.
        if not new_version.copied:
            self._tasks.repeat("copy of weights", partial(self._copy, new_version), tries=math.inf)
        return new_version

    def _may(self, publisher: QueueCaller, version: int) -> None:
        """Raise UsageError if this publisher may not publish this version."""
        before, newest = self._publisher, self._versions[-1] if self._versions else None
        if before is not None and before.rank != publisher.rank:
            raise UsageError(f"{before.rank} publishes here, not {publisher.rank}: name a channel for each publisher")
        if before is not None and before.incarnation > publisher.incarnation:
            raise UsageError(f"a later process of {publisher.rank} has begun: this one may not publish any more")
        if before is not None and before.incarnation == publisher.incarnation and newest and newest.version >= version:
            raise UsageError(f"version {newest.version} was published already: {version} is not newer")

    def _drop(self) -> None:
        """Drop the Ray Direct Transport references of versions that are not kept any more."""
        addresses = [version.address for version in self._versions]
        for address in [address for address in self._handed if address not in addresses]:
            self._drop_refs(address)
        self._chains.keep([version.nonce for version in self._versions])

    def _drop_refs(self, address: str) -> None:
        """Drop the Ray Direct Transport references of a version. A reader that fetches it has some of its own."""
        forget(self._handed.pop(address, ()))

    async def _copy(self, version: Version) -> None:
        """Copy the buckets to objects that this process owns: those of the publisher die with the publisher."""
        await asyncio.sleep(COPY_AFTER_S)
        # Tried again where the store was full, until two later versions are there.
        if self._find_version(version.mark) is None:
            return
        # By the store the bytes would go over the publisher's link twice.
        buckets = await self._chains.came(version)
        try:
            if buckets is None:
                size = sum(map(sum, version.sizes))
                await asyncio.to_thread(object_store.check_to_fetch, version.refs, size, "a copy for readers: ")
                refs = [await asyncio.to_thread(_put, await ref) for ref in version.refs]
            else:
                refs = [await asyncio.to_thread(_put, bucket) for bucket in buckets]
            self._replace(version.mark, refs=refs, copied=True)
        except RayError:
            await self.lost(version.mark)

    def _replace(self, mark: Mark, **changes: Any) -> None:
        self._versions = [
            replace(version, **changes) if version.mark == mark else version for version in self._versions
        ]
        self.changes.happened()


def dated(version: Version, before: Version | None, now: float) -> Version:
    """Return a version with its place in time after the one before it: later, and in the same series if it is newer."""
    if before is None:
        return replace(version, taken_at=now, first=version.version)
    at = max(now, before.taken_at + 1e-6)  # the clock may have gone back
    if version.version > before.version:
        return replace(version, taken_at=at, since=before.since, first=before.first)
    return replace(version, taken_at=at, since=at, first=version.version)


def _after(mark: Mark, reader_mark: Mark) -> bool:
    """Return whether a version of this keeper is newer than a reader's mark.

    A mark of an earlier keeper counts as older: that keeper's numbers died with it. But a publisher whose keeper died
    before it answered has offered the same version to both.
    """
    return mark[2] != reader_mark[2] and (mark[0] != reader_mark[0] or mark[1] > reader_mark[1])


def _put(bucket: Sequence[Any]) -> Any:
    views = [memoryview(part) for part in bucket]
    return object_store.put(parcel(views), sum(view.nbytes for view in views), "a copy for readers: ")
