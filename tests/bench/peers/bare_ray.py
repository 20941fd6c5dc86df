"""Workload A with Ray alone: actors that Ray restarts, and a call to each that Ray makes again. `bare_ray.py A n`."""

import sys

import ray
from workload_a import Stay

if __name__ == "__main__":
    ray.init()
    made = ray.remote(Stay).options(num_cpus=1, max_restarts=-1, max_task_retries=-1)
    actors = [made.remote() for _ in range(int(sys.argv[2]))]
    ray.get([actor.stay.remote(rank) for rank, actor in enumerate(actors)])
