"""Workload S or G under Ray Train v2: a TorchTrainer with gloo that retries for ever. `ray_train.py S|G n`."""

import importlib
import os
import sys

import gloo_group
import ray

if __name__ == "__main__":
    # Read when ray.train is imported. By default it looks each 2 s, and gives a silent rank 600.
    os.environ |= {
        "RAY_TRAIN_V2_ENABLED": "1",
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
        "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": str(gloo_group.TIMEOUT_S),
    }
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    ray.init()
    n = int(sys.argv[2])
    TorchTrainer(
        importlib.import_module(f"workload_{sys.argv[1].lower()}").work,
        torch_config=TorchConfig(backend="gloo", timeout_s=int(gloo_group.timeout(n).total_seconds())),
        scaling_config=ScalingConfig(num_workers=n),
        run_config=RunConfig(storage_path=os.environ["PEER_OUT"], failure_config=FailureConfig(max_failures=-1)),
    ).fit()
