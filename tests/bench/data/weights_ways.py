"""64 MiB from one rank to four of its host by each transport of WeightChannel that Ray carries, in turn.

    python tests/bench/data/weights_ways.py [rdt]

`rdt` goes by NIXL, which must be installed (`pip install nixl`). Prints medians in milliseconds as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import cluster, folder, runs
from bench_jobs import manifest, role, submit


def main() -> None:
    """Measure and print."""
    with cluster(2, store=2 << 30) as _, folder() as out:
        roles = [
            role("publisher", "weights_app.Publisher", 1, dependsOn=[{"role": "reader"}]),
            role("reader", "weights_app.Reader", 4, cpu="100m", driver=False),
        ]
        document = manifest("ways", out, roles)
        document["spec"]["config"] |= {"blocks": runs(10), "ways": ["store", "collective", *sys.argv[1:]]}
        document["spec"]["collectives"] = {"groups": [{"name": "collective", "roles": ["publisher", "reader"]}]}
        status = submit(document).wait(600)
        assert status["phase"] == "Succeeded", status
        found = json.loads((out / "weights.json").read_text())
    equal = found.pop("equal")
    print(json.dumps({name: round(1000 * median(took)) for name, took in found.items()} | {"bytes equal": equal}))


if __name__ == "__main__":
    main()
