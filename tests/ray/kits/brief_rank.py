"""A rank of two that joins a group and leaves it at once.

    python brief_rank.py RANK PORT

Rank 1 prints "connecting" before it counts itself among the ranks that have formed the group, and then waits for a
line on its standard input. Rank 0 prints "leaving", and "left" when it has left.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from role_kit import role_plan
from torch.distributed.distributed_c10d import PrefixStore

from dljob.master.state.actions import RankStart
from dljob.runtime.process.messages import StartOrder
from dljob.runtime.worker import torch_group


class LateStore(PrefixStore):
    """A store that is told when this rank may count itself."""

    def add(self, key: str, amount: int) -> int:
        if key != torch_group.FORMED_KEY:
            return super().add(key, amount)
        print("connecting", flush=True)
        sys.stdin.readline()
        return super().add(key, amount)


def main(rank: int, port: int) -> None:
    """Join and leave."""
    server = dist.TCPStore("127.0.0.1", port, None, rank == 0, timedelta(seconds=60), wait_for_workers=False)
    if rank == 1:
        made: Any = sys.modules["torch.distributed.distributed_c10d"]
        made.PrefixStore = LateStore
    role = role_plan("w", ("class", "a.B"), comm_backend="gloo", comm_timeout_s=60)
    start = RankStart(rank, 1, rank, 2, 0)
    torch_group.join(role, StartOrder(1, 0, (start,), 2, 0, f"127.0.0.1:{port}"), start)
    if rank == 0:
        print("leaving", flush=True)
    torch_group.leave()
    if rank == 0:
        print("left", flush=True)
        sys.stdin.read()  # the other rank needs the store
    del server


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
