"""A line of dlrover-run, torchrun's with DLRover's import paths, on real pods: its script runs unchanged, a rank a pod.

The runtime image has no dljob-tools, by which those paths are served: the init container brings them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster import torch_volume
from cluster.handle import Cluster
from operator_kit import Operator, found

TORCH = "/torch"
LINE = ["--nnodes=2", "--nproc-per-node=1", "--max-restarts=1", "train.py", "--lr", "3"]
SCRIPT = """
import os, signal, sys
import torch
import torch.distributed as dist
from dlrover.python.unified.api.runtime.worker import current_worker
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    dist.init_process_group("gloo", init_method="env://")
    rank, life = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    if rank == 1 and life == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    said = f"rank {rank} of {dist.get_world_size()}, sum {total.item():g}, {' '.join(sys.argv)}"
    print(f"life {life}: {said}", flush=True)
    dist.destroy_process_group()

main()
"""


def dljob(node: Cluster, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command, in the folder of the script."""
    env = {**os.environ, "KUBECONFIG": str(node.kubeconfig), "DLJOB_HOME": str(folder / "home"), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "dljob.cli", *words]
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def for_this_cluster(job: dict[str, Any]) -> dict[str, Any]:
    """The manifest with what a small cluster needs: little of everything, and torch, which its image has not."""
    spec = job["spec"]
    spec.update(head={"cpu": "250m", "memory": "2Gi"}, master={"cpu": "100m", "memory": "512Mi"})
    role, group = spec["roles"][0], spec["nodeGroups"][0]
    # A comm.preCheck would have each node do its sums first: the two cores have enough to do.
    role.update(resources={"cpu": "200m", "memory": "1200Mi"}, comm={"preCheck": False})
    container = {
        "name": "ray-worker",
        "volumeMounts": [{"name": "torch", "mountPath": TORCH, "readOnly": True}],
        "env": [{"name": "PYTHONPATH", "value": TORCH}],
    }
    claim = {"claimName": torch_volume.NAME, "readOnly": True}
    pod = {"containers": [container], "volumes": [{"name": "torch", "persistentVolumeClaim": claim}]}
    group.update(cpu="500m", memory="2Gi", template={"spec": pod})
    return job


@pytest.mark.timeout(420)
def test_a_dlrover_run_line_becomes_two_pods_with_the_tools_and_goes_on_after_a_kill(
    node: Cluster, operator: Operator, namespace: str, tmp_path: Path
) -> None:
    if node.run is None or not (node.run / "node" / torch_volume.NAME).exists():
        pytest.skip("torch is not installed here: `make setup` brings it")
    torch_volume.volume(node, namespace)
    (tmp_path / "train.py").write_text(SCRIPT)
    shown = dljob(node, tmp_path, "dlrover-run", "--to", "kubernetes", "--dry-run", "--namespace", namespace, *LINE)
    assert shown.returncode == 0, shown.stderr
    (tmp_path / "dljob.yaml").write_text(yaml.safe_dump(for_this_cluster(yaml.safe_load(shown.stdout))))
    done = dljob(node, tmp_path, "run", "dljob.yaml", "-n", namespace)
    assert done.returncode == 0, f"{done.stderr}\n{node.kubectl('describe', 'dljob', 'train', '-n', namespace)}"
    for rank in (0, 1):
        words = f"[default/{rank}] life 1: rank {rank} of 2, sum 3, "
        (line,) = [line for line in done.stderr.splitlines() if words in line]
        assert line.endswith("train.py --lr 3")
    assert json.loads(done.stdout.splitlines()[-1])["phase"] == "Succeeded"
    status = found(node, "dljob", "train", namespace)["status"]
    assert (status["phase"], status["rolesReady"], status["restartsTotal"]) == ("Succeeded", "2/2", 1)
