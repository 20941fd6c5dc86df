"""A role whose entrypoint is a function: each of its ranks calls it once."""

from __future__ import annotations

from dljob import current_worker, progress


def main() -> dict[str, int]:
    """Say hello; the return value of rank 0 is the job's result."""
    me = current_worker()
    print(f"hello from rank {me.rank} of {me.world_size}", flush=True)
    progress(1)
    return {"ranks": me.world_size}
