"""A script for torchrun that does not use DLJob: `torchrun --nproc-per-node=2 train.py` works as well."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Fit a line by gradients averaged over all ranks."""
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    error = torch.tensor(0.0)
    for step in range(50):
        x = torch.rand(32, 1)
        error = nn.functional.mse_loss(model(x), 3 * x + 1)
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        if step % 10 == 9 and dist.get_rank() == 0:
            print(f"step {step + 1}: loss {error.item():.5f}", flush=True)
    weights = [p.item() for p in model.parameters()]
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: y = {weights[0]:.3f} x + {weights[1]:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
