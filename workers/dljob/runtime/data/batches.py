"""`global_batches(size, batch, ...)`: batches that do not depend on the number of ranks, with each rank's share.

The samples of a batch follow from its step alone. A role that continues with fewer or more ranks makes the same steps,
and each rank gets another share. So each sample is in one batch of an epoch, and losses stay what they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dljob.errors import UsageError
from dljob.runtime.data.shards import sample
from dljob.runtime.process.context import current_worker


@dataclass(frozen=True, slots=True)
class GlobalBatch:
    """The samples of all ranks in one step, and this rank's share of them."""

    step: int
    """Counted from 0, over all epochs."""
    epoch: int
    """Counted from 0."""
    size: int
    """Samples of all ranks; the last batch of an epoch may be smaller."""
    parts: tuple[tuple[int, ...], ...]
    """The samples of this rank by micro-batch.

    All ranks have the same number of micro-batches, so that all call the same collectives. One may be empty where there
    are fewer samples than ranks times micro-batches.
    """
    weight: float
    """Factor for a loss summed over samples: ranks / size.

    With it the mean over ranks, which DDP and FSDP take of gradients, is the mean over the batch.
    """

    @property
    def samples(self) -> tuple[int, ...]:
        """This rank's whole share."""
        return tuple(sample for part in self.parts for sample in part)


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
    """Return the batches of a data set from a step on, each with this rank's share.

    Args:
        size: Samples of the data set.
        batch: Samples of all ranks in a step.
        micro: Most samples that a rank takes at once; None for its whole share.
        epochs: How often each sample is used.
        seed: Seed of the order, which differs in each epoch; None for the order of the data set.
        first: The first step: the one after that of the loaded checkpoint.
        rank: Rank among those that share the batches; None for this rank, as `current_worker()` has it now.
        world: Number of ranks that share them; None for all ranks of the role, as many as it has now.

    Raises:
        UsageError: A number is out of range; the message names it.
    """
    least = {"size": (size, 1), "batch": (batch, 1), "micro": (batch if micro is None else micro, 1)}
    least |= {"epochs": (epochs, 1), "first": (first, 0)}
    if (rank is None) is not (world is None):
        raise UsageError("global_batches(): rank and world go together", hint="give both, or leave both out")
    own_rank, of = (
        (current_worker().rank, current_worker().world_size) if rank is None or world is None else (rank, world)
    )
    least |= {"world": (of, 1), "rank": (own_rank, 0)}
    for name, (value, lowest) in least.items():
        # True is an int in Python, and no number of samples.
        if isinstance(value, bool) or not hasattr(value, "__index__") or value < lowest:
            raise UsageError(f"global_batches({name}={value!r}): wanted a whole number from {lowest}")
    if own_rank >= of:
        raise UsageError(f"global_batches(rank={own_rank}, world={of}): ranks are counted from 0")
    per_epoch = _parts(size, batch)

    def batch_of_step(step: int) -> GlobalBatch:
        epoch, number = divmod(step, per_epoch)
        # The last batch of an epoch may be smaller: no sample is used twice in one epoch.
        begin, end = number * batch, min(number * batch + batch, size)
        # Only the share depends on rank and world: another number of ranks makes the same steps.
        share = _piece((begin, end), own_rank, of)
        # By the largest share of any rank, so that all ranks have the same number of micro-batches.
        pieces = _parts(_parts(end - begin, of), micro or batch)
        places = (range(*_piece(share, piece, pieces)) for piece in range(pieces))
        parts = tuple(tuple(sample(epoch * size + place, size, seed) for place in positions) for positions in places)
        return GlobalBatch(step, epoch, end - begin, parts, of / (end - begin))

    return map(batch_of_step, range(first, per_epoch * epochs))


def _parts(many: int, part_size: int) -> int:
    """Return the number of parts of a size, the last one perhaps smaller."""
    return (many + part_size - 1) // part_size


def _piece(bounds: tuple[int, int], number: int, pieces: int) -> tuple[int, int]:
    """Return one of several pieces of a range, whose lengths differ by at most one."""
    begin, many = bounds[0], bounds[1] - bounds[0]
    return begin + many * number // pieces, begin + many * (number + 1) // pieces
