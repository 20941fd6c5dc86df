"""`shards(name, size, ...)`: ranks share a data set; each index is handed out once an epoch, whoever dies.

PrimeMaster leases positions, in order; a seed says which sample a position is, without a table of them. A shard counts
as done when all its indices were taken, or by `done()`. What a rank did before `checkpoint.save` is in that checkpoint;
what it did after the one that its next process restores is handed out again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dljob.errors import CheckpointError, UsageError
from dljob.runtime.checkpoint import checkpoint, new_client
from dljob.runtime.checkpoint.client import CheckpointClient
from dljob.runtime.process.context import current_worker

SIZE, AHEAD = 1024, 2
_ROUNDS = 4
_MASK = (1 << 64) - 1


def _mixed(value: int) -> int:
    """A number that looks random: the finalizer of SplitMix64."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def sample(position: int, size: int, seed: int | None) -> int:
    """Which sample stands at a position: in each epoch each one once, in an order of its own if there is a seed."""
    epoch, place = divmod(position, size)
    if seed is None:
        return place
    half = max(1, (size - 1).bit_length() + 1 >> 1)
    low = (1 << half) - 1
    keys = [_mixed(_mixed(seed & _MASK) ^ _mixed((epoch << 8 | n) & _MASK)) for n in range(_ROUNDS)]
    while True:  # a permutation of the next power of four: walk on until it falls into the range
        left, right = place >> half, place & low
        for key in keys:
            left, right = right, left ^ (_mixed(right ^ key) & low)
        place = left << half | right
        if place < size:
            return place


@dataclass(frozen=True, slots=True)
class Shard:
    """Some positions of a data set, leased to this process. Iterate it for the indices; at the end it is done."""

    epoch: int
    """Counted from 0."""
    start: int
    end: int
    """Positions, over all epochs."""
    _size: int
    _seed: int | None
    _done: Callable[[int, int], None]

    def __len__(self) -> int:
        return self.end - self.start

    def __iter__(self) -> Iterator[int]:
        yield from self.indices()
        self.done()

    def indices(self) -> Iterator[int]:
        """The indices, without saying that it is done."""
        return (sample(position, self._size, self._seed) for position in range(self.start, self.end))

    def done(self) -> None:
        """It is done: the next `checkpoint.save` has it in."""
        self._done(self.start, self.end)


class Shards:
    """One data set, as a process of a rank reads it: an iterator over the shards that it gets."""

    def __init__(
        self, client: CheckpointClient, sizes: Mapping[str, int], name: str, seed: int | None, *, wait: bool
    ) -> None:
        self._client = client
        self._sizes = dict(sizes)
        self._name = name
        self._role, self._rank = current_worker().role, current_worker().rank
        self._seed = seed
        self._wait = wait
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        """Held while an answer is awaited, which may take as long as others need: a save must not wait for that."""
        self._place = client.place()
        self._leased: list[tuple[int, int]] = []
        self._given: set[tuple[int, int]] = set()
        self._done: list[tuple[int, int, int | None]] = []

    def __iter__(self) -> Iterator[Shard]:
        return self

    def __next__(self) -> Shard:
        if self not in checkpoint.feeds:  # user code kept it when its torch group met anew: saves tell of it again
            checkpoint.feeds.append(self)
        while (run := self._taken()) is None:
            if not self._ask(AHEAD):
                raise StopIteration
        size = self._sizes["size"]
        return Shard(run[0] // size, *run, size, self._seed, self._finished)

    def told(self) -> dict[str, Any]:
        """What was done and PrimeMaster may not have heard, as a question that wants nothing."""
        return self._question(0)

    def close(self) -> None:
        """Tell what was done; what is still held comes back when this process has ended."""
        with suppress(CheckpointError, OSError):
            if self._done:
                self._ask(0)
        with self._lock:  # a later life of this process gets leases of its own
            self._leased, self._given, self._done = [], set(), []
        self._client.close(wait=False)

    def _taken(self) -> tuple[int, int] | None:
        """A shard that is leased and not given yet, for one of the threads that may ask."""
        with self._lock:
            run = next((run for run in self._leased if run not in self._given), None)
            if run is not None:
                self._given.add(run)
            return run

    def _finished(self, start: int, end: int) -> None:
        with self._lock:
            if (start, end) in self._leased:
                self._leased.remove((start, end))
                self._given.discard((start, end))
                self._done.append((start, end, checkpoint.saved))

    def _ask(self, want: int) -> list[tuple[int, int]]:
        """Tell what is done, and take what is leased; what was not known to be leased yet."""
        with self._asking:
            try:
                question = self._question(want)
                said = self._client.shards(question)
            except CheckpointError:
                if not self._renewed():
                    raise
                question = self._question(want)
                said = self._client.shards(question)
            with self._lock:
                self._done = [one for one in self._done if one not in question["done"]]
                since = {(start, end) for start, end, _ in self._done}  # done while the answer was awaited
                self._leased = [run for start, end in said["runs"] if (run := (start, end)) not in since]
                return [run for run in self._leased if run not in self._given]

    def _renewed(self) -> bool:
        """Whether this process has another life now: its role was started again, and it lived on."""
        before, self._place = self._place, self._client.renewed()
        with self._lock:
            if self._place.life != before.life:
                self._leased, self._given, self._done = [], set(), []
        return self._place.life != before.life

    def _question(self, want: int) -> dict[str, Any]:
        place = self._place
        with self._lock:
            held = len([run for run in self._leased if run in self._given])
            return {
                **self._sizes, "name": self._name, "world": place.of, "role": self._role, "rank": self._rank,
                "life": {"attempt": place.attempt, "number": place.number}, "incarnation": place.incarnation,
                "saves": checkpoint.saved is not None, "done": list(self._done), "want": want and held + want,
                "wait": self._wait,
            }  # fmt: skip


def shards(
    name: str,
    size: int,
    *,
    shard: int = SIZE,
    epochs: int = 1,
    seed: int | None = None,
    wait: bool | None = None,
) -> Shards:
    """The shards of a data set that this rank gets, one after the other; other ranks that name it get the others.

    Args:
        name: Of the data set, in the whole job; whoever names it says the same sizes.
        size: How many samples it has.
        shard: How many a shard has, at most.
        epochs: How often each sample is to be done.
        seed: Of the order, another one in each epoch; None: as they are numbered.
        wait: Whether to wait, when all is leased, for what others may yet leave undone. None: ranks of an Elastic role
            do not, since their peers wait for them.

    Raises:
        UsageError: when a size makes no sense.
        CheckpointError: when others have said other sizes, or a later process of this rank has taken its place.
    """
    sizes = {"size": size, "shard": shard, "epochs": epochs}
    for key, value in sizes.items():
        if isinstance(value, bool) or not hasattr(value, "__index__") or value < 1:
            raise UsageError(f"shards({name!r}, {key}={value!r}): wanted a whole number from 1")
    client = new_client()
    alone = "/" in client.place().of
    made = Shards(client, sizes, name, seed, wait=alone if wait is None else wait)
    checkpoint.feeds.append(made)
    return made
