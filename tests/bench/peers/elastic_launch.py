"""Workload S under torch's elastic agent in a program, which forks its ranks. `elastic_launch.py S n`."""

import importlib
import os
import sys

from torch.distributed.launcher.api import LaunchConfig, elastic_launch

if __name__ == "__main__":
    os.environ |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5"}  # as for torchrun
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=int(sys.argv[2]),
        run_id=os.environ.get("PEER_JOB", "peer"),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=100,
        monitor_interval=0.1,
        start_method="fork",
    )
    elastic_launch(config, importlib.import_module(f"workload_{sys.argv[1].lower()}").work)()
