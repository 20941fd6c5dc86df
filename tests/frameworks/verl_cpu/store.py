"""The checkpoint engine `store`: the trainer puts all weights into a TCPStore, from which rollout servers read."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Iterable
from typing import Any

import ray
import torch
from torch.distributed import TCPStore
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

WEIGHTS = "weights"


@CheckpointEngineRegistry.register("store")
class StoreCheckpointEngine(CheckpointEngine):
    """One end of the store: the trainer's rank 0 has it, the others connect to it."""

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self.is_master = is_master
        self.store: TCPStore | None = None

    def prepare(self) -> dict[str, Any]:
        """Open a store for this one update."""
        if not self.is_master:
            return {}
        host = ray.util.get_node_ip_address()
        self.store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        return {"host": host, "port": self.store.port}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Tell the address to the rollout servers."""
        (store,) = filter(None, metadata)
        return {}, {name: [value] * rollout_world_size for name, value in store.items()}

    def init_process_group(self, host: str | None = None, port: int = 0) -> None:
        if host:
            self.store = TCPStore(host, port, is_master=False)

    def finalize(self) -> None:
        self.store = None

    async def send_weights(self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None) -> None:
        """Every rank runs through the weights, because to gather one is a collective."""
        whole = dict(weights)
        if self.store is not None:
            file = io.BytesIO()
            torch.save(whole, file)
            await asyncio.to_thread(self.store.set, WEIGHTS, file.getvalue())

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        assert self.store is not None
        sent = await asyncio.to_thread(self.store.get, WEIGHTS)
        for name, weight in torch.load(io.BytesIO(sent)).items():
            yield name, weight
