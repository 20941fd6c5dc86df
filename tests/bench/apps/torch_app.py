"""User code that imports torch, and then does what `bench_app.stay` does."""

import bench_app
import torch


def stay() -> None:
    """Enter, with torch there."""
    assert torch.ones(1).item() == 1
    bench_app.stay()
