"""A rank that aborts its gloo group from another thread while a collective runs, once per round.

    python break_off.py RANK WORLD PORT ROUNDS ELEMENTS

The last line of output lists the rounds in which the thread did not return from its collective.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from dljob.runtime.worker import torch_group

PATIENCE_S = 10.0
"""Seconds allowed on a fully loaded machine; an abort takes 10 ms."""


def reduces(elements: int, done: threading.Event) -> None:
    """Run collectives until one fails or the group is gone."""
    with suppress(RuntimeError, ValueError):
        while True:
            dist.all_reduce(torch.zeros(elements))
    done.set()


def broken_off(store: Any, rank: int, world: int, elements: int, after_s: float) -> bool:
    """Return whether the thread inside a collective returns after the group is aborted."""
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=120))
    dist.all_reduce(torch.zeros(1))
    done = threading.Event()
    threading.Thread(target=reduces, args=(elements, done), daemon=True).start()
    time.sleep(after_s)
    torch_group.abort("")
    return done.wait(PATIENCE_S)


def main(rank: int, world: int, port: int, rounds: int, elements: int) -> None:
    """Run all rounds; the ranks start each round together."""
    torch.set_num_threads(1)
    torch_group._notice_groups()
    store = dist.TCPStore("127.0.0.1", port, None, is_master=rank == 0, timeout=timedelta(seconds=120))
    draws, hung = random.Random(7), list[int]()  # noqa: S311 - moments of the aborts
    for number in range(rounds):
        group = PrefixStore(f"group/{number}", store)
        if not broken_off(group, rank, world, elements, draws.uniform(0, 0.03)):
            hung.append(number)
        store.set(f"{number}/{rank}", "")
        store.wait([f"{number}/{other}" for other in range(world)])
    print(json.dumps({"hung": hung}), flush=True)
    if rank == 0:
        sys.stdin.read()  # The other ranks need the store until they have finished.
    os._exit(0)  # A hanging thread, or a group that waits for it, would keep the process alive.


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
