"""Ranks of a torch process group."""

from __future__ import annotations

import torch
import torch.distributed as dist

import dljob


class Ring(dljob.Worker):
    def __init__(self):
        self.group_is_there = dist.is_initialized()

    def run(self):
        x = torch.ones(1) * (self.rank + 1)
        dist.all_reduce(x)
        where = (str(self.device), dist.get_backend(), dist.get_world_size())
        return {"sum": x.item(), "where": where, "in_init": self.group_is_there}

    def shutdown(self):
        if self.config.get("stay"):
            self.context.stopping.wait()


class Waits(dljob.Worker):
    """Its second rank never comes to the collective."""

    def run(self):
        if self.rank == 0:
            dist.all_reduce(torch.ones(1))
        self.context.stopping.wait()
