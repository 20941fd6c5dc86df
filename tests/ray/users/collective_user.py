"""User code of the tests of collective groups."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from ray.util.collective.collective_group.base_collective_group import BaseGroup

from dljob import CollectiveAbortedError, CollectiveGroup, current_worker


def say(name: str, **said: Any) -> None:
    """A file of this rank's incarnation."""
    me = current_worker()
    path = Path(me.job_dir) / f"{name}-{me.role}-{me.rank}-{me.incarnation}"
    path.with_suffix(".tmp").write_text(json.dumps({"pid": os.getpid(), **said}))
    path.with_suffix(".tmp").rename(path)


class Trainer:
    """Its role has a torch group of its own, which Ray's GLOO would take for the group across roles."""

    def run(self) -> None:
        import torch
        import torch.distributed as dist

        mine = torch.ones(1)
        dist.all_reduce(mine)
        meets(own=mine.item())
        mine = torch.ones(1)
        dist.all_reduce(mine)
        assert mine.item() == dist.get_world_size()


def meets(**more: Any) -> None:
    """Tries all operations, then waits in one for a member that dies; and once more when it is back."""
    group = CollectiveGroup("weights")
    say("first", **operations(group), **more)
    lost: dict[str, Any] = {}
    try:
        if current_worker().name != "rollout/0":
            group.allreduce(np.ones(4))
        elif current_worker().incarnation == 1:
            time.sleep(600)
    except CollectiveAbortedError as error:
        lost = {"lost": error.lost, "of": error.epoch, "text": str(error), "at": time.time()}
        group = CollectiveGroup("weights")
        say("second", **operations(group), **lost)
    with group:
        group.barrier()


def operations(group: CollectiveGroup) -> dict[str, Any]:
    """What each operation gives this member."""
    import torch
    from ray.util import collective

    n, me = group.world_size, group.rank
    ones, most, sent = np.full(4, me + 1.0), torch.full((2, 2), float(me)).t(), torch.full((3,), float(me))
    group.allreduce(ones)
    group.allreduce(most, op="max")
    group.broadcast(sent, src=group.place("rollout"))
    gathered = group.allgather(np.array([me]))
    part = group.reducescatter([torch.tensor([float(i)]) for i in range(n)])
    root = np.array([float(me)])
    group.reduce(root, dst=1)
    passed = torch.tensor([float(me)])
    if me == 0:
        group.send(passed, n - 1)
    elif me == n - 1:
        group.recv(passed, 0)
    group.barrier()
    by_ray = np.ones(2)
    if "DLJOB_HOST_SOCKET" in os.environ:  # Ray's own calls are for its workers only
        group.allreduce(by_ray)
    else:
        collective.allreduce(by_ray, group.full_name)
    return {
        "rank": me, "members": group.members, "epoch": group.epoch, "backend": group.backend, "full": group.full_name,
        "sum": ones.tolist(), "max": most.flatten().tolist(), "broadcast": sent.tolist(),
        "gathered": [int(each[0]) for each in gathered], "part": part.tolist(), "reduced": root.tolist(),
        "passed": passed.tolist(), "by_ray": by_ray.tolist(),
    }  # fmt: skip


class Example(BaseGroup):
    """The backend of the documentation of Ray 2.60, as it is printed there."""

    def __init__(self, world_size, rank, group_name):
        super().__init__(world_size, rank, group_name)

    @classmethod
    def backend(cls):
        return "MY_BACKEND"

    @classmethod
    def check_backend_availability(cls) -> bool:
        return True

    def allreduce(self, tensor, allreduce_options=None):
        pass

    def broadcast(self, tensor, broadcast_options=None):
        pass

    def barrier(self, barrier_options=None):
        pass


class Files(Example):
    """A complete one: members meet in files of the job's folder. Nothing can break it off."""

    def __init__(self, world_size, rank, group_name):
        super().__init__(world_size, rank, group_name)
        self._folder = Path(current_worker().job_dir) / group_name.replace("/", "-")
        self._folder.mkdir(exist_ok=True)
        self._number = 0

    def _exchanged(self, mine: Any) -> list[Any]:
        self._number += 1
        own = self._folder / f"{self._number}-{self.rank}.npy"
        with own.with_suffix(".tmp").open("wb") as out:
            np.save(out, mine)
        own.with_suffix(".tmp").rename(own)
        paths = [self._folder / f"{self._number}-{i}.npy" for i in range(self.world_size)]
        while not all(path.exists() for path in paths):
            time.sleep(0.005)
        return [np.load(path) for path in paths]

    def allreduce(self, tensor, allreduce_options=None):
        tensor[0][:] = sum(self._exchanged(tensor[0]))

    def barrier(self, barrier_options=None):
        self._exchanged(np.zeros(1))

    def broadcast(self, tensor, broadcast_options=None):
        tensor[0][:] = self._exchanged(tensor[0])[broadcast_options.root_rank]

    def allgather(self, tensor_list, tensor, allgather_options=None):
        for out, each in zip(tensor_list[0], self._exchanged(tensor[0]), strict=True):
            out[:] = each

    def reduce(self, tensor, reduce_options=None):
        raise NotImplementedError

    def reducescatter(self, tensor, tensor_list, reducescatter_options=None):
        raise NotImplementedError

    def send(self, tensor, send_options=None):
        raise NotImplementedError

    def recv(self, tensor, recv_options=None):
        raise NotImplementedError


def by_files() -> None:
    """A backend of the user's, then the loss of a member, which is not made good."""
    from ray.util.collective.backend_registry import _global_registry

    before = _global_registry.is_registered("FILES")  # nobody here has asked for it
    group = CollectiveGroup("own")
    values = np.full(2, group.rank + 1.0)
    group.allreduce(values)
    say("sum", sum=values.tolist(), registered=before, epoch=group.epoch)
    if current_worker().incarnation == 1:
        if group.rank == 1:
            time.sleep(600)
        try:
            group.barrier()
        except CollectiveAbortedError as error:
            try:
                CollectiveGroup("own")
            except CollectiveAbortedError as again:
                say("lost", lost=error.lost, again=str(again))
            raise
