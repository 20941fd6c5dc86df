"""What the first use of Ray costs a process, the same for a rank and for a bare actor."""

from __future__ import annotations

import time

import ray


@ray.remote(num_cpus=0)
def one() -> int:
    """Return 1."""
    return 1


def first_use() -> tuple[float, float]:
    """Return the seconds of a first `ray.put` and `ray.get`, and of a first task."""
    begin = time.perf_counter()
    ray.get(ray.put(1))
    stored = time.perf_counter()
    ray.get(one.remote())
    return stored - begin, time.perf_counter() - stored
