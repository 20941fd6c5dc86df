"""What it costs PrimeMaster to say which devices each rank of a large torch world sees.

    python tests/bench/master/sight.py [nodes]

Prints as JSON the seconds for one start of a world of 8 ranks on each of so many nodes (default 1250).
"""

from __future__ import annotations

import json
import sys
import time

from dljob.master.start import visible_devices
from dljob.master.state.state import HostPhase, HostState
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import HostId
from dljob.master.transition import initial
from dljob.plan.plan import plan
from dljob.spec.model import DLJobManifest


def main(nodes: int) -> None:
    """One start: the table of all nodes, then what each rank is shown."""
    role = {
        "name": "w", "type": "Elastic", "replicas": 8 * nodes, "replicasPerGroup": 8,
        "entrypoint": {"class": "a.B"}, "accelerator": {"type": "GPU"},
    }  # fmt: skip
    manifest = DLJobManifest.model_validate({"metadata": {"name": "b"}, "spec": {"roles": [role]}})
    d = StateTransaction(initial(plan(manifest), manifest.spec, "u" * 8, 0.0), 0.0)
    for rank in range(8 * nodes):
        ids = (str(rank % 8),)
        own = HostState(HostPhase.READY, 1, node=f"n{rank // 8}", devices=(("GPU", ids),), slots=(ids,))
        d.hosts = d.hosts.set(HostId("w", rank), own)
    began = time.perf_counter()
    there, facts = visible_devices.of_nodes(d, "w"), d.facts("w")
    seen = [visible_devices.of_rank(facts, d.hosts[HostId("w", rank)], rank, there) for rank in range(8 * nodes)]
    took = time.perf_counter() - began
    assert all(index == rank % 8 for rank, (_, index) in enumerate(seen))
    print(json.dumps({"ranks": 8 * nodes, "seconds": round(took, 4)}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1250)
