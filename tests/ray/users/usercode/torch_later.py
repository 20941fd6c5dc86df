"""A rank whose code imports torch only when it runs, and its submodule first."""

from __future__ import annotations


def late():
    import torch.distributed as dist

    return dist.get_world_size()
