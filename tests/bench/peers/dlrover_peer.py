"""A workload under DLRover's unified API, with roles of CPUs. `dlrover_peer.py S|G|A n`."""

import os
import sys

import gloo_group
import ray
from dlrover.python.unified.api.builder import DLJobBuilder

if __name__ == "__main__":
    workload, n = sys.argv[1], int(sys.argv[2])
    ray.init()
    job = DLJobBuilder().node_num(1).device_per_node(n).device_type("CPU").config({}).skip_node_check()
    if workload != "A":
        role = job.train(f"workload_{workload.lower()}.work").nnodes(1).nproc_per_node(n)
    else:
        role = job.role("worker").run("dlrover_role.Role").total(n).per_group(1)
    made = role.resource(cpu=1).end().build()
    for each in made.workloads.values():
        if each.backend == "elastic":
            each.comm_timeout_s = int(gloo_group.timeout(n).total_seconds())
    limits = {"node_max_restart": 100, "job_max_restart": 100, "master_max_restart": 100}
    made.submit(os.environ.get("PEER_JOB", "peer"), master_cpu=1, **limits)
