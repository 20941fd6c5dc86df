"""Workload S or G under torchrun: this process becomes it. `torchrun.py S|G n`."""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    words = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={sys.argv[2]}", "--max-restarts=100"]
    words += ["--monitor-interval=0.1", "--shutdown-timeout=5"]
    script = Path(__file__).parent / "workloads" / f"workload_{sys.argv[1].lower()}.py"
    # With the store that ranks share by default no restart comes up with torch 2.15 (pytorch issue 135712).
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    os.execv(sys.executable, [sys.executable, *words, str(script)])  # noqa: S606 - the same process, for its pid
