"""DataLoaders of DLRover: torch's own, since its workers prefetch here as everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from dljob.compat.dlrover_api.notes import tell_once


def patch_dataloader_ray() -> None:
    """Do nothing: DLRover lets one Ray actor fetch for each DataLoader of the process."""
    tell_once("patch_dataloader_ray", "each DataLoader fetches by its own workers; set num_workers")


class RayDataLoaderIter:
    """An iterator over a DataLoader."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        tell_once("RayDataLoaderIter", "the DataLoader fetches by its own workers; set num_workers")
        self._iterator = iter(loader)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._iterator)


class ElasticDataLoader(DataLoader[Any]):
    """A DataLoader; `config_file` and `update_batch_size` have no effect, as nobody tunes the batch size."""

    def __init__(self, *args: Any, config_file: str = "", **kwargs: Any) -> None:
        if config_file:
            tell_once("ElasticDataLoader(config_file=...)", "nobody tunes the batch size while the job runs")
        super().__init__(*args, **kwargs)  # pyright: ignore[reportUnknownMemberType] - torch's

    def load_config(self) -> None:
        """Do nothing."""

    def update_batch_size(self, batch_size: int | None = None) -> None:
        """Do nothing, and say so when a size is given."""
        if batch_size:
            tell_once("ElasticDataLoader.update_batch_size", "give the batch size to the constructor")
