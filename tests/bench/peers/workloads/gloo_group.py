"""The process group of workloads S and G, where the peer has not made it."""

import os
from datetime import timedelta

TIMEOUT_S, FEW = 10, 4
"""Most seconds for which a rank waits for others, in groups of at most FEW ranks: by it a peer may find one that is
stopped. Larger ones have torch's 1800, as their ranks come up over more than ten seconds on two cores."""


def timeout(n: int) -> timedelta:
    """Return for how long a rank of n waits for others."""
    return timedelta(seconds=TIMEOUT_S if n <= FEW else 1800)


def join() -> bool:
    """Form the group; return whether it is the script's own, and not the peer's."""
    import torch.distributed as dist

    own = not dist.is_initialized()
    if own:
        dist.init_process_group("gloo", timeout=timeout(int(os.environ["WORLD_SIZE"])))
    return own


def leave(*, own: bool) -> None:
    """Leave it with all others, as torch's documents have it: the first to go would break the others' last step."""
    import torch.distributed as dist

    if own:
        dist.barrier()
        dist.destroy_process_group()
