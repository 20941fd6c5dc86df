"""A host's part in the weights of its ranks: it follows the channels, fetches a version, has a rank load and verify it.

PrimeMaster decides which rank loads when (`master.start.weights`); the rank needs no dljob.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, Protocol

from dljob.errors import CallTimeoutError, DLJobError
from dljob.master.state.actions import RankStart
from dljob.plan.serving import ProbePlan, WeightsPlan
from dljob.runtime.process.messages import HostSpec, LoadOrder, LoadResult, NewestVersion
from dljob.runtime.queues.storage_client import SLACK_S, SLICE_S, StorageClient
from dljob.runtime.serving.probes import MOST_BYTES, Answer, ProbeTarget, ask
from dljob.runtime.weights.buckets import load_state
from dljob.runtime.weights.chain import places, seconds_for
from dljob.runtime.weights.files import NamedTensor, digest, named, weight_files
from dljob.runtime.weights.model import NO_MARK, Version
from dljob.runtime.weights.ray_transport import RayCarrier
from dljob.runtime.weights.transport import Buckets

ORDER = "DLJOB_WEIGHTS"
"""Variable of a command that loads: what a request has as its body."""
KEPT = 4
"""Versions of a channel that are remembered until the other channels have them."""
LEARN_S = 10.0
"""Seconds for PrimeMaster to learn of a version: a caller's calls are not held for longer by one that it does not take,
as when the version was lost with its keeper."""
AGAIN_S = 1.0
"""Seconds until a channel is asked again after an error."""

log = logging.getLogger(__package__)

Fetched = Mapping[str, tuple[Version, Buckets]]
"""Channel -> the version that was fetched, and its bytes."""


class LoadedRanks(Protocol):
    """A host, as far as its ranks' weights concern it."""

    def weights(self, rank: int, incarnation: int, news: NewestVersion | LoadResult) -> None:
        """Report news about weights."""
        ...

    def call_method(self, name: str, args: Sequence[Any]) -> Any:
        """Call a method of the user's object, and return its result."""
        ...


class LoadError(Exception):
    """A load went wrong; `untouched`: before the rank was asked."""

    def __init__(self, reason: str, *, untouched: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.untouched = untouched


class HostWeights:
    """The loads of a host's ranks.

    `find(rank)` returns the look-up of keepers by address, `target(rank, ...)` where a rank is asked.
    """

    def __init__(
        self,
        spec: HostSpec,
        plan: WeightsPlan,
        ranks: LoadedRanks,
        find: Callable[[int], Callable[[str], Any]],
        target: Callable[..., ProbeTarget],
    ) -> None:
        self._spec = spec
        self._plan = plan
        self._ranks = ranks
        self._find = find
        self._target = target
        self._lock = threading.Lock()
        self._carriers: dict[str, RayCarrier] = {}
        self._seen: dict[str, tuple[Version, ...]] = {}
        self._newest: NewestVersion | None = None
        self._loads: dict[int, tuple[int, float]] = {}
        """Rank -> incarnation and version's time of its load under way."""
        self._held: dict[int, tuple[int, LoadResult]] = {}
        self._missing: tuple[float, float] = (0.0, 0.0)
        """When the newest version was published that callers knew and a rank lacked, and when it was lacked first."""
        self._not_behind: tuple[int, Sequence[tuple[str, tuple[int, float]]]] = (0, ())
        """What a caller had published for which the rank was not behind last, and its incarnation then."""
        self._method: tuple[int, str, Future[Any]] | None = None
        """Incarnation, name and call of the last method; a class has one rank in its host."""

    # -- following the channels

    def started(self, start: RankStart) -> None:
        """Follow the channels from the first start of a rank on."""
        with self._lock:
            if self._carriers:
                return
            find = self._find(start.rank)
            for channel in self._plan.channels:
                self._carriers[channel] = RayCarrier(StorageClient("weights", channel, "WeightChannel"), find)
        for channel in self._plan.channels:
            name = f"dljob-weights-{channel}"
            threading.Thread(target=self._follow, args=(channel, start), name=name, daemon=True).start()

    def _follow(self, channel: str, start: RankStart) -> None:
        carrier, mark = self._carriers[channel], NO_MARK
        while True:
            try:
                newer = carrier.newer(mark, SLICE_S, SLICE_S + SLACK_S)
            except CallTimeoutError:
                continue
            except Exception as error:  # noqa: BLE001 - whatever Ray raises: the channel is asked again
                log.warning("%s: weight channel %r does not answer: %s", self._spec.role.name, channel, error)
                time.sleep(AGAIN_S)
                continue
            if newer is not None:
                mark = newer.mark
                self._saw(channel, newer, start)

    def _saw(self, channel: str, version: Version, start: RankStart) -> None:
        with self._lock:
            self._seen[channel] = (*self._seen.get(channel, ()), version)[-KEPT:]
            newest = newest_of([self._seen.get(plan_channel, ()) for plan_channel in self._plan.channels])
            if newest is None or (self._newest is not None and newest.at <= self._newest.at):
                return
            self._newest = newest
        self._ranks.weights(start.rank, start.incarnation, newest)

    # -- loading

    def load(self, order: LoadOrder) -> None:
        """Begin a load. One that is under way goes on; one that is done is reported again."""
        order_key = order.incarnation, order.at
        with self._lock:
            held_load = self._held.get(order.rank)
            under_way = self._loads.get(order.rank)
            if held_load is None or (held_load[0], held_load[1].at) != order_key:
                if under_way == order_key:
                    return
                held_load = None
                self._loads[order.rank] = order_key
        if held_load is not None:
            self._ranks.weights(order.rank, order.incarnation, held_load[1])
            return
        name = f"dljob-load-{order.rank}"
        threading.Thread(target=self._load, args=(order,), name=name, daemon=True).start()

    def _load(self, order: LoadOrder) -> None:
        result = LoadResult(order.version, order.at)
        try:
            self._carry_out(order)
        except LoadError as error:
            result = LoadResult(order.version, order.at, error.reason, error.untouched)
        except Exception as error:  # PrimeMaster waits for an answer, and tells the user why
            log.exception("%s/%d: version %d was not loaded", self._spec.role.name, order.rank, order.version)
            result = LoadResult(order.version, order.at, f"{type(error).__name__}: {error}")
        with self._lock:
            if self._loads.get(order.rank) != (order.incarnation, order.at):
                return  # a later process of the rank has begun
            del self._loads[order.rank]
            self._not_behind = (0, ())
            if not result.untouched:
                self._held.pop(order.rank, None)
            if not result.problem:
                self._held[order.rank] = (order.incarnation, result)
        self._ranks.weights(order.rank, order.incarnation, result)

    def why_behind(self, rank: int, incarnation: int, published: Sequence[tuple[str, tuple[int, float]]]) -> str:
        """Return why a rank is stale by what a caller has published (`PublishedVersions`); empty: it is not.

        PrimeMaster may not know of that version yet.
        """
        if (incarnation, published) == self._not_behind:
            return ""
        versions = dict(published)
        parts = [versions[channel] for channel in self._plan.channels if channel in versions]
        numbers = {version for version, _ in parts}
        is_complete = len(parts) == len(self._plan.channels) and len(numbers) == 1
        version, at = max(parts, key=lambda part: part[1], default=(0, 0.0))
        holder, last_load = self._held.get(rank, (0, LoadResult(0, 0.0)))
        # One with a lower number may be newer: its publisher has gone back.
        is_fresh = holder == incarnation and (
            last_load.at >= at or 0 <= version - last_load.version <= self._plan.max_lag
        )
        if is_fresh or not is_complete:
            self._not_behind = incarnation, published
            return ""
        now = time.monotonic()
        if at > self._missing[0]:
            self._missing = at, now
        holds = f"version {last_load.version}" if holder == incarnation else "no version"
        is_learned = now - self._missing[1] >= LEARN_S
        return "" if is_learned else f"it holds {holds}, and its caller has published {version}"

    def _carry_out(self, order: LoadOrder) -> None:
        plan = self._plan
        fetched = {channel: self._fetched(channel, order.version) for channel in plan.channels}
        tensors = _named(fetched)  # also for a method: what is no tensor is told here, and not by its code
        if plan.load.kind == "method":
            states = {
                channel: load_state(fetched_version.index, buckets)
                for channel, (fetched_version, buckets) in fetched.items()
            }
            self._call(plan.load, order.incarnation, (order.version, states))
        else:
            self._send(plan.load, order, tensors)
        if plan.verify is not None:
            expected = {channel: digest(named_tensors) for channel, named_tensors in tensors.items()}
            differ(self._verified(plan.verify, order), expected)

    def _fetched(self, channel: str, number: int) -> tuple[Version, Buckets]:
        carrier = self._carriers[channel]
        version: Version | None = carrier.ask("version", number)
        if version is None:
            raise LoadError(f"channel {channel} has version {number} no more", untouched=True)
        try:
            buckets = carrier.fetch(version, seconds_for(places(version.sizes)[1]))
        except DLJobError as error:
            raise LoadError(f"channel {channel}: {error.message}", untouched=True) from error
        if buckets is None:
            raise LoadError(f"channel {channel} lost version {number}", untouched=True)
        return version, buckets

    def _send(self, load: ProbePlan, order: LoadOrder, tensors: Mapping[str, Mapping[str, NamedTensor]]) -> None:
        folder = Path(self._spec.job.dir) / "weights" / f"{self._spec.role.name}-{order.rank}"
        with weight_files(folder, tensors) as paths:
            body = json.dumps({"version": order.version, "channels": paths})
            answer = asyncio.run(ask(load, self._target(order.rank, **{ORDER: body}), body.encode()))
        if not answer.ok:
            raise LoadError(answer.words)

    def _call(self, hook: ProbePlan, incarnation: int, args: Sequence[Any]) -> Any:
        """Call a method of the rank's object, for at most the hook's time.

        A method cannot be broken off. So one that is late goes on, and no other of its incarnation is called before it
        has returned.
        """
        before = self._method
        late = before is not None and before[0] == incarnation and not wait([before[2]], hook.timeout_s).done
        if before is not None and late:
            raise LoadError(f"{before[1]} of an earlier version has not returned yet")
        call: Future[Any] = Future()
        self._method = incarnation, hook.path, call
        runs = threading.Thread(
            target=_run, args=(call, self._ranks.call_method, hook.path, args), name=f"dljob-{hook.path}", daemon=True
        )
        runs.start()
        if not wait([call], hook.timeout_s).done:
            raise LoadError(f"{hook.path} did not return within {hook.timeout_s:g} s")
        if (error := call.exception()) is not None:
            raise LoadError(f"{hook.path} raised {type(error).__name__}: {error}") from error
        return call.result()

    def _verified(self, verify: ProbePlan, order: LoadOrder) -> Any:
        """Return what the rank says that it holds: a checksum, or one for each channel."""
        if verify.kind == "method":
            return self._call(verify, order.incarnation, ())
        answer = asyncio.run(ask(verify, self._target(order.rank), most_bytes=MOST_BYTES))
        if not answer.ok:
            raise LoadError(f"not verified: {answer.words}")
        return parse_sums(answer)


def _run(call: Future[Any], method: Callable[..., Any], name: str, args: Sequence[Any]) -> None:
    try:
        call.set_result(method(name, args))
    except BaseException as error:  # noqa: BLE001 - its waiter tells it
        call.set_exception(error)


def _named(fetched: Fetched) -> dict[str, dict[str, NamedTensor]]:
    tensors_by_channel: dict[str, dict[str, NamedTensor]] = {}
    for channel, (version, buckets) in fetched.items():
        try:
            tensors_by_channel[channel] = named(version.index, buckets)
        except DLJobError as error:
            raise LoadError(f"channel {channel}: {error}", untouched=True) from error
    return tensors_by_channel


def newest_of(channels: Sequence[Sequence[Version]]) -> NewestVersion | None:
    """Return the newest version that all channels have; None: there is none yet."""
    tables = [{version.version: version for version in channel_versions} for channel_versions in channels]
    complete = [[table[number] for table in tables] for number in tables[0] if all(number in t for t in tables)]
    if not complete:
        return None
    newest = max(complete, key=lambda parts: max(version.taken_at for version in parts))
    return NewestVersion(
        newest[0].version,
        max(version.taken_at for version in newest),
        max(version.since for version in newest),
        min(version.first for version in newest),
        tuple(sorted({version.by for version in newest if version.by[0]})),
        min((version.learned_since for version in newest if version.learned_since), default=0.0),
    )


def parse_sums(answer: Answer) -> Any:
    """Return the checksums in an answer: JSON, or the last line of text."""
    text = answer.body.decode(errors="replace").strip()
    try:
        return json.loads(text)
    except ValueError:
        return text.splitlines()[-1].strip() if text else ""


def differ(answer: Any, expected: Mapping[str, str]) -> None:
    """Compare what a rank holds with what was published.

    Raises:
        LoadError: A checksum differs; it names the channel.
    """
    if isinstance(answer, str) and len(expected) == 1:
        answer = dict.fromkeys(expected, answer)
    held_sums: Mapping[str, Any] = answer if isinstance(answer, dict) else {}
    for channel, checksum in expected.items():
        if held_sums.get(channel) != checksum:
            held_sum = held_sums.get(channel, answer)
            raise LoadError(f"channel {channel}: it holds {str(held_sum)[:80]!r}, {checksum} was published")
