"""`global_batches(size, batch, ...)`: batches that are the same whatever the number of ranks, and each rank's share.

Which samples a batch has hangs upon its step alone. A role that goes on with fewer ranks, or with more, makes the same
steps: each rank has another share of them. So each sample is in one batch of an epoch, and losses stay what they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dljob.errors import UsageError
from dljob.runtime.data.shards import sample
from dljob.runtime.process.context import current_worker


@dataclass(frozen=True, slots=True)
class GlobalBatch:
    """What all ranks do together in one step, and this rank's share of it."""

    step: int
    """Counted from 0, over all epochs."""
    epoch: int
    """Counted from 0."""
    size: int
    """Samples of all ranks; the last batch of an epoch may have fewer than the others."""
    parts: tuple[tuple[int, ...], ...]
    """The samples of this rank by micro-batch: as many micro-batches in every rank, so that all call the same
    collectives. One may be empty, where there are fewer samples than ranks times micro-batches."""
    weight: float
    """What a loss summed over samples is multiplied by so that the mean over ranks, which DDP and FSDP take of
    gradients, is the mean over the batch: ranks / size."""

    @property
    def samples(self) -> tuple[int, ...]:
        """This rank's share as a whole."""
        return tuple(each for part in self.parts for each in part)


def global_batches(
    size: int,
    batch: int,
    *,
    micro: int | None = None,
    epochs: int = 1,
    seed: int | None = None,
    first: int = 0,
    rank: int | None = None,
    world: int | None = None,
) -> Iterator[GlobalBatch]:
    """The batches of a data set from a step on, with the share that this rank has of each.

    Args:
        size: How many samples the data set has.
        batch: How many all ranks take together in a step.
        micro: How many a rank takes at once, at most; None: its whole share.
        epochs: How often each sample is to be done.
        seed: Of the order, another one in each epoch; None: as they are numbered.
        first: The step to begin with: the one after that of the checkpoint that was loaded.
        rank: Among those that share the batches; None: this rank, as `current_worker()` has it now.
        world: How many share them; None: all ranks of the role, as many as it has now.

    Raises:
        UsageError: when a number makes no sense; it says which.
    """
    least = {"size": (size, 1), "batch": (batch, 1), "micro": (batch if micro is None else micro, 1)}
    least |= {"epochs": (epochs, 1), "first": (first, 0)}
    if (rank is None) is not (world is None):
        raise UsageError("global_batches(): rank and world go together", hint="give both, or leave both out")
    here, of = (current_worker().rank, current_worker().world_size) if rank is None or world is None else (rank, world)
    least |= {"world": (of, 1), "rank": (here, 0)}
    for name, (value, lowest) in least.items():
        if isinstance(value, bool) or not hasattr(value, "__index__") or value < lowest:
            raise UsageError(f"global_batches({name}={value!r}): wanted a whole number from {lowest}")
    if here >= of:
        raise UsageError(f"global_batches(rank={here}, world={of}): ranks are counted from 0")
    per_epoch = _parts(size, batch)

    def made(step: int) -> GlobalBatch:
        epoch, number = divmod(step, per_epoch)
        begin, end = number * batch, min(number * batch + batch, size)
        share = _piece((begin, end), here, of)
        pieces = _parts(_parts(end - begin, of), micro or batch)
        places = (range(*_piece(share, piece, pieces)) for piece in range(pieces))
        parts = tuple(tuple(sample(epoch * size + place, size, seed) for place in own) for own in places)
        return GlobalBatch(step, epoch, end - begin, parts, of / (end - begin))

    return map(made, range(first, per_epoch * epochs))


def _parts(many: int, each: int) -> int:
    """How many parts of a size are in so many, the last one perhaps smaller."""
    return (many + each - 1) // each


def _piece(whole: tuple[int, int], number: int, pieces: int) -> tuple[int, int]:
    """One of so many pieces of a range, none longer than another by more than one."""
    begin, many = whole[0], whole[1] - whole[0]
    return begin + many * number // pieces, begin + many * (number + 1) // pieces
