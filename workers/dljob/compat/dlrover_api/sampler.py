"""`ElasticDistributedSampler`: a DistributedSampler that goes on behind the samples that were done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler


class ElasticDistributedSampler(DistributedSampler[Any]):
    """A DistributedSampler whose state says how many samples of the epoch are done, by all ranks together."""

    def __init__(  # noqa: PLR0917 - torch's signature
        self,
        dataset: Any,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,  # noqa: FBT001, FBT002
        seed: int = 0,
        drop_last: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        if not dist.is_initialized():
            num_replicas, rank = num_replicas or 1, rank or 0
        super().__init__(dataset, num_replicas, rank, shuffle, seed, drop_last)  # pyright: ignore[reportUnknownMemberType]
        self._size = len(dataset)
        self._done: dict[int, int] = {}

    def __iter__(self) -> Iterator[int]:
        """Yield this rank's part of the samples that are left of the epoch."""
        order = list(range(self._size))
        if self.shuffle:
            mixed = torch.Generator()
            mixed.manual_seed(self.seed + self.epoch)
            order = [int(at) for at in torch.randperm(self._size, generator=mixed)]
        remaining = order[self._done.get(self.epoch, 0) :]
        per_rank = self._share(len(remaining))
        # All ranks take as many: the last round is filled up from the front, or dropped.
        total = per_rank * self.num_replicas
        filled = (remaining * (total // len(remaining) + 1))[:total] if remaining else []
        return iter(filled[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return self._share(self._size - self._done.get(self.epoch, 0))

    def _share(self, remaining: int) -> int:
        return remaining // self.num_replicas if self.drop_last else -(-remaining // self.num_replicas)

    def state_dict(self, iter_step: int, micro_batch_size: int) -> dict[str, int]:
        """Return the state after `iter_step` steps, in each of which every rank took a micro batch."""
        return {"completed_num": iter_step * micro_batch_size * self.num_replicas, "epoch": self.epoch}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on behind the samples that were done, also with another number of ranks."""
        done = int(state.get("completed_num", 0))
        self.epoch = int(state.get("epoch", 0))
        self._done[self.epoch] = done if done <= self._size else done % self._size
