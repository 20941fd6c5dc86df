"""Workload S or G under Ray Train v2: a TorchTrainer with gloo that retries for ever. `ray_train.py S|G n`."""

import importlib
import os
import sys

import ray

if __name__ == "__main__":
    os.environ["RAY_TRAIN_V2_ENABLED"] = "1"  # read when ray.train is imported
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    ray.init()
    TorchTrainer(
        importlib.import_module(f"workload_{sys.argv[1].lower()}").work,
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=int(sys.argv[2])),
        run_config=RunConfig(storage_path=os.environ["PEER_OUT"], failure_config=FailureConfig(max_failures=-1)),
    ).fit()
