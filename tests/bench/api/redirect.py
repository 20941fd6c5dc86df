"""What `sitecustomize` of dljob.compat adds to the start of a Python, and to `import ray`, in milliseconds.

    python tests/bench/api/redirect.py

Prints the medians as JSON; rounds of each are interleaved, so that a busy machine is busy for both.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from dljob.compat.redirect import environment

ADAPTER = Path(__file__).parents[2] / "unit" / "compat" / "adapter"
ROUNDS = 30


def main() -> None:
    """Measure and print."""
    bare = {**os.environ, "PYTHONPATH": str(ADAPTER), "DISTRIBUTED_BACKEND": "yr"}
    cases = {
        "bare": (bare, "pass"),
        "hook": ({**bare, **environment("yr", bare)}, "pass"),
        "bare, import ray_adapter": (bare, "import ray_adapter"),
        "hook, import ray": ({**bare, **environment("yr", bare)}, "import ray"),
    }
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(ROUNDS):
        for name, (env, line) in cases.items():
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-c", line], env=env, check=True)
            taken[name].append((time.perf_counter() - begin) * 1000)
    print(json.dumps({name: round(statistics.median(each), 1) for name, each in taken.items()}))


if __name__ == "__main__":
    main()
