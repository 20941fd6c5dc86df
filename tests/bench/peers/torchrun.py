"""Workload S under torchrun: this process becomes it. `torchrun.py S n`."""

import os
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "workloads" / "workload_s.py"

if __name__ == "__main__":
    words = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={sys.argv[2]}", "--max-restarts=100"]
    # With the store that ranks share by default no restart comes up with torch 2.15 (pytorch issue 135712).
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    os.execv(sys.executable, [sys.executable, *words, str(SCRIPT)])  # noqa: S606 - the same process, for its pid
