"""A workload under dljob: scripts (S, G) by `dljob torchrun`, A as a job without backoff. `dljob_peer.py S|G|A n`."""

import os
import sys
from pathlib import Path
from typing import Any

NAME = os.environ.get("PEER_JOB", "peer")
CODE = Path(__file__).parent / "workloads"


def manifest(n: int) -> dict[str, Any]:
    """Return a job of one role with n ranks."""
    restarts = {"maxRestarts": 100}
    role = {"name": "worker", "entrypoint": {"class": "dljob_role.Rank"}, "replicas": n, "resources": {"cpu": "1"}}
    fault_tolerance = {"backoff": {"initialSeconds": 0, "maxSeconds": 0}, **restarts}
    spec = {"faultTolerance": fault_tolerance, "roles": [role | {"restartPolicy": restarts}]}
    return {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": NAME}, "spec": spec}


def main(workload: str, n: int) -> None:
    """Run a workload until it ends."""
    address = os.environ["RAY_ADDRESS"]
    if workload != "A":
        words = ["torchrun", "--to", address, "--name", NAME, f"--nproc-per-node={n}", "--max-restarts=100"]
        script = str(CODE / f"workload_{workload.lower()}.py")
        os.execv(sys.executable, [sys.executable, "-m", "dljob.cli", *words, script])  # noqa: S606 - the same process, for its pid
    from dljob.api.handle import submit
    from dljob.spec.loading.load import parse

    submit(parse(manifest(n)), address=address, code_dir=CODE).wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
