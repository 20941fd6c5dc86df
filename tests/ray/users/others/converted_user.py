"""What the jobs of `converted.yaml` run: a driver with Ray tasks, or torch ranks that add up their numbers.

As scripts of others do, the driver leaves Ray and joins it again, and ranks replace their program, fork a data loader,
or choose their devices themselves.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ.get("DLJOB_DIR", "."))


def of_ray() -> None:
    import ray

    found = 0
    for _ in range(2):
        ray.init(log_to_driver=False)
        square = ray.remote(num_cpus=0)(lambda number: number**2)
        found += sum(ray.get([square.remote(number) for number in range(4)]))
        ray.shutdown()
    Path(FOLDER, "result-driver").write_text(str(found))


def of_torch(manner: str) -> None:
    if manner == "exec":
        os.execv(sys.executable, [sys.executable, __file__, "plain"])  # noqa: S606 - it is the case
    if manner == "devices":
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader

    dist.init_process_group("gloo")
    total = torch.tensor(dist.get_rank() + 1)
    dist.all_reduce(total)
    if manner == "loader":
        numbers = DataLoader(range(4), num_workers=1, multiprocessing_context="fork")
        assert sum(int(batch) for batch in numbers) == 6
    Path(FOLDER, f"result-{dist.get_rank()}").write_text(str(int(total)))
    # A rank that closes its connections may break those of a peer that still reads.
    while len(list(FOLDER.glob("result-*"))) < dist.get_world_size():
        time.sleep(0.05)
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1] == "ray":
        of_ray()
    else:
        of_torch(sys.argv[1])
