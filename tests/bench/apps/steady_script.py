"""A torchrun script of steps that always do the same work; it writes down what they took.

    torchrun ... steady_script.py FOLDER STEPS PRODUCTS [keep]

A step is PRODUCTS matrix products and an all-reduce of 4 MiB. With `keep`, every tenth step keeps the state of 64 MiB
in memory: by `checkpoint.save` in a rank of dljob, else by clones of the tensors. `FOLDER/RANK.json` has the times;
`work` is the CPU time of the products.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from dljob import checkpoint, progress

EVERY = 10
WARM = 20
"""Steps before the clocks start; the first copies of the state, which make its memory, are among them."""


def busy() -> float:
    """Seconds of CPU time of the whole machine, idle time left out."""
    words = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _, _, irq, soft, *_ = map(int, words)
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


def main(out: Path, steps: int, products: int, *, keep: bool) -> None:
    """All steps."""
    ours = "DLJOB_ROLE" in os.environ
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    state = {f"layer{n}": torch.rand(1 << 20) for n in range(16)}
    square, gradient, kept = torch.rand(256, 256), torch.rand(1 << 20), dict[str, torch.Tensor]()
    begin, worked = (0.0, 0.0, 0.0), 0.0
    for step in range(1, WARM + steps + 1):
        since = time.thread_time()
        for _ in range(products):
            square @ square
        worked += time.thread_time() - since
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
        if keep and step % EVERY == 0:
            if ours:
                checkpoint.save(step, state, persist=False)
            else:
                kept = {name: tensor.clone() for name, tensor in state.items()}
        if ours:
            progress(step)
        if step == WARM:
            begin, worked = (time.monotonic(), time.process_time(), busy()), 0.0
    taken = [now - then for now, then in zip((time.monotonic(), time.process_time(), busy()), begin, strict=True)]
    found = dict(zip(("wall", "own", "machine"), taken, strict=True)) | {"work": worked, "kept": len(kept)}
    (out / f"{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), keep="keep" in sys.argv[4:])
