"""A Ray in the Python of a peer, for one run: a head without CPUs and two raylets. `ray_here.py CPUS [HOOK]`.

It writes its address to PEER_OUT/address, and ends when its standard input does. HOOK is a function, module.name, which
a peer's documentation has for RAY_START_HOOK. For all peers a lost raylet is noticed within 1.5 s, as in dljob's own
Ray; Ray's defaults take 14.
"""

import importlib
import os
import sys
from pathlib import Path

from ray.cluster_utils import Cluster

STORE = 100 << 20
HEALTH = {"initial_delay_ms": 0, "period_ms": 250, "timeout_ms": 1000, "failure_threshold": 5}

if __name__ == "__main__":
    os.environ |= {f"RAY_health_check_{name}": str(value) for name, value in HEALTH.items()}
    for hook in sys.argv[2:]:
        # As `ray start` calls it (ray/scripts/scripts.py); `Cluster` starts raylets without that command.
        module, _, name = hook.rpartition(".")
        getattr(importlib.import_module(module), name)(None, None)
    made = Cluster()
    made.add_node(num_cpus=0, include_dashboard=False, object_store_memory=STORE)
    for _ in range(2):
        made.add_node(num_cpus=int(sys.argv[1]), object_store_memory=STORE)
    made.wait_for_nodes()
    new = Path(os.environ["PEER_OUT"], "address.new")
    new.write_text(made.address)
    new.rename(new.with_suffix(""))
    sys.stdin.read()
    made.shutdown()
