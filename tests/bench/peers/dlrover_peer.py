"""A workload under DLRover's unified API: roles of CPUs, all limits as they are. `dlrover_peer.py S|G|A n`."""

import os
import sys

import ray
from dlrover.python.unified.api.builder import DLJobBuilder

if __name__ == "__main__":
    workload, n = sys.argv[1], int(sys.argv[2])
    ray.init()
    job = DLJobBuilder().node_num(1).device_per_node(n).device_type("CPU").config({})
    if workload != "A":
        role = job.train(f"workload_{workload.lower()}.work").nnodes(1).nproc_per_node(n)
    else:
        role = job.role("worker").run("dlrover_role.Role").total(n).per_group(1)
    role.resource(cpu=1).end().build().submit(os.environ.get("PEER_JOB", "peer"), master_cpu=1)
