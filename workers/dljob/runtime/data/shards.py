"""`shards(name, size, ...)`: ranks share a data set; each index is handed out once an epoch, whichever ranks die.

PrimeMaster leases ranges of positions in order; a permutation by the seed gives the sample at a position, so there is
no table. A shard counts as done when all its indices were taken, or after `done()`. What a rank did before a
`checkpoint.save` belongs to that checkpoint; what it did after the one that its next process restores is handed out
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dljob.errors import UsageError
from dljob.runtime.checkpoint.checkpoints import checkpoint, new_client
from dljob.runtime.checkpoint.client import CheckpointClient
from dljob.runtime.data.leases import LeaseClient, check_process
from dljob.runtime.queues import session

SIZE, AHEAD = 1024, 2
"""Default length of a shard, and the number of shards that a rank leases ahead."""
_ROUNDS = 4
"""Rounds of the Feistel network: four of them make the order look random."""
_MASK = (1 << 64) - 1


def _mixed(value: int) -> int:
    """Return a number that looks random: the finalizer of SplitMix64."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def sample(position: int, size: int, seed: int | None) -> int:
    """Return the sample at a position. Each epoch has each sample once, with a seed in an order of its own.

    A Feistel network is a permutation of 4^n numbers for any mixing function, and needs no memory.
    """
    epoch, place = divmod(position, size)
    if seed is None:
        return place
    # An even number of bits, halved: each round mixes one half into the other.
    half = max(1, (size - 1).bit_length() + 1 >> 1)
    low = (1 << half) - 1
    keys = [_mixed(_mixed(seed & _MASK) ^ _mixed((epoch << 8 | n) & _MASK)) for n in range(_ROUNDS)]
    # Cycle walking: the network permutes the next power of four, so apply it until the result falls into the range.
    while True:
        high, right = place >> half, place & low
        for key in keys:
            high, right = right, high ^ (_mixed(right ^ key) & low)
        place = high << half | right
        if place < size:
            return place


@dataclass(frozen=True, slots=True)
class Shard:
    """A range of positions that is leased to this process.

    Iterating it yields the indices, and marks it done at the end.
    """

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
        """Return the indices without marking the shard done."""
        return (sample(position, self._size, self._seed) for position in range(self.start, self.end))

    def done(self) -> None:
        """Mark the shard done: the next `checkpoint.save` includes it."""
        self._done(self.start, self.end)


class Shards(LeaseClient):
    """A data set as a rank's process reads it: an iterator over the shards that it is leased."""

    def __init__(
        self, client: CheckpointClient, sizes: Mapping[str, Any], name: str, seed: int | None, *, wait: bool
    ) -> None:
        super().__init__(client, sizes, name, wait=wait)
        self._seed = seed
        self._handed_out: set[tuple[int, int]] = set()

    def __iter__(self) -> Iterator[Shard]:
        return self

    def __next__(self) -> Shard:
        self._attach()
        while (run := self._next_lease()) is None:
            if not self._ask(AHEAD):
                raise StopIteration
        size = self._sizes["size"]
        return Shard(run[0] // size, *run, size, self._seed, self._finished)

    def _next_lease(self) -> tuple[int, int] | None:
        """Return a leased shard that no thread has yet; None without one."""
        with self._lock:
            self._check_reads()
            run = next((run for run in self._leased if run not in self._handed_out), None)
            if run is not None:
                self._handed_out.add(run)
                session.continue_in(self._epoch)
            return run

    def _finished(self, start: int, end: int) -> None:
        with self._lock:
            self._check_reads()
            # Otherwise the lease was lost with an earlier incarnation, and the work does not count.
            if (start, end) in self._leased:
                self._leased.remove((start, end))
                self._handed_out.discard((start, end))
                self._note_done((start, end))

    def _ask(self, want: int) -> list[tuple[int, int]]:
        """Report finished positions and lease more; return the shards that no thread has taken yet."""
        self._ask_for_leases(want)
        with self._lock:
            return [run for run in self._leased if run not in self._handed_out]

    def _drop(self) -> None:
        super()._drop()
        self._handed_out = set()

    def _held_count(self) -> int:
        return len([run for run in self._leased if run in self._handed_out])


def shards(
    name: str,
    size: int,
    *,
    shard: int = SIZE,
    epochs: int = 1,
    seed: int | None = None,
    wait: bool | None = None,
) -> Shards:
    """Return this rank's shards of a data set, one after the other; other ranks that give the same name get the others.

    Args:
        name: Name of the data set in the whole job; all ranks and attempts give the same sizes and seed.
        size: Samples of the data set.
        shard: Most samples in a shard.
        epochs: How often each sample is used.
        seed: Seed of the order, which differs in each epoch; None for the order of the data set.
        wait: Whether to wait, when all is leased, for shards that other ranks may leave undone. None: ranks of an
            Elastic role do not wait, since their peers wait for them.

    Raises:
        UsageError: A size is out of range, or this is a child of the rank, such as a DataLoader worker. Of two objects
            of a name in a process, the one that began first raises it when it is used after the other one has begun.
        CheckpointError: Other ranks or an earlier attempt gave other sizes or another seed, or a later process of this
            rank has taken its place.
    """
    sizes = {"size": size, "shard": shard, "epochs": epochs}
    for key, value in sizes.items():
        if isinstance(value, bool) or not hasattr(value, "__index__") or value < 1:
            raise UsageError(f"shards({name!r}, {key}={value!r}): wanted a whole number from 1")
    check_process(f"shards({name!r})")
    client = new_client()
    is_sole_world = "/" in client.place().of
    order = "in the order of their numbers" if seed is None else f"in the order of seed {seed}"
    new_shards = Shards(client, {**sizes, "order": order}, name, seed, wait=is_sole_world if wait is None else wait)
    checkpoint.feeds.append(new_shards)
    return new_shards
