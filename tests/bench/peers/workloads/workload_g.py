"""Workload G: gloo ranks that train, a step each 0.1 s, and save to a file every 10 steps, as scripts do themselves."""

import json
import os
import time
from pathlib import Path

import gloo_group

STEP_S, EVERY, NUMBERS = 0.1, 10, 1 << 18
"""Seconds of a step; steps from a save to the next; float32 numbers of the state."""


def work() -> None:
    """Train until PEER_OUT/go exists, from the last save on; the first step of a life is written down."""
    import torch
    import torch.distributed as dist

    out = Path(os.environ["PEER_OUT"])
    torch.set_num_threads(1)
    own = gloo_group.join()
    rank, step, weights = dist.get_rank(), torch.zeros(1, dtype=torch.int64), torch.zeros(NUMBERS)
    if rank == 0 and (out / "state.pt").exists():
        step, weights = torch.load(out / "state.pt")
    # An old rank 0 may save while others begin: all have what the new one has read.
    dist.broadcast(step, 0)
    dist.broadcast(weights, 0)
    due, said, over = time.monotonic(), False, False
    while not over:
        due = max(due + STEP_S, time.monotonic())  # a step that was late is not made up for
        time.sleep(max(0.0, due - time.monotonic()))
        gradient = torch.full((NUMBERS,), float((out / "go").exists()))
        dist.all_reduce(gradient)
        over = bool(gradient[0].item())
        weights += 1
        step += 1
        if not said:
            said = True
            with (out / f"rank-{rank}.jsonl").open("a") as file:
                file.write(json.dumps({"t": time.time(), "pid": os.getpid(), "rank": rank}) + "\n")
        if rank == 0 and step.item() % EVERY == 0:
            save(out, step, weights)
    gloo_group.leave(own=own)


def save(out: Path, step: "torch.Tensor", weights: "torch.Tensor") -> None:  # noqa: F821 - torch is imported by a rank alone
    """Write the state, then its step for who looks from outside; each is there whole or not at all."""
    import torch

    torch.save((step, weights), out / "state.new")
    (out / "state.new").rename(out / "state.pt")
    (out / "kept.new").write_text(str(step.item()))
    (out / "kept.new").rename(out / "kept")


if __name__ == "__main__":
    work()
