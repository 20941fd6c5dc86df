"""1 GiB in 8 buckets by a WeightChannel: how fast `publish` is, against one memcpy, and whether readers copy anything.

The memcpy is NumPy's, into private memory that was touched before. Beside both, `ray.put` of the same buckets, which
`publish` cannot undercut. BENCH_BYTES: other bytes than 1 GiB.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Row, cluster, folder, runs
from bench_jobs import manifest, role, submit

SIZE = int(os.environ.get("BENCH_BYTES", str(1 << 30)))
READERS = 4


def main() -> None:
    """Three rows: with the checksums of each bucket, without, and what Ray's store takes for the same bytes."""
    # Of each channel two versions of the publisher's, and the keeper's copies of them; what was put, and is going.
    with cluster(2, store=11 * SIZE) as _, folder() as out:
        roles = [
            role("publisher", "large_weights_app.Publisher", 1, dependsOn=[{"role": "reader"}]),
            role("reader", "large_weights_app.Reader", READERS, cpu="100m", driver=False),
        ]
        document = manifest("large", out, roles)
        document["spec"]["config"] |= {"blocks": runs(10), "size": SIZE, "settle": 0.5}
        status = submit(document).wait(600)
        assert status["phase"] == "Succeeded", status
        found = json.loads((out / "large.json").read_text())
    took, seen = found["took"], found["seen"]
    grown = max(each["grown"] for each in seen)
    facts = {
        "bytes equal": all(each["right"] for each in seen),
        "read-only": not any(each["writeable"] for each in seen),
        "readers map the store": all(file.startswith("/dev/shm/") for each in seen for file in each["files"]),
        "readers' own memory grows by less than 32 MiB": grown < 32 << 20,
    }
    memcpy, put = median(took["memcpy"]), median(took["put"])
    for way in ("checked", "unchecked"):
        publish = median(took[way])
        rates = f"{SIZE / publish / 1e9:.1f} GB/s, memcpy {SIZE / memcpy / 1e9:.1f} GB/s"
        by_put = f"{put / publish:.2f} x the rate of `ray.put`"
        Row(
            f"weights_large_{way}",
            f"publish of {SIZE >> 20} MiB in 8 buckets to {READERS} readers of its node, {way}",
            ">= 0.8 x the rate of one memcpy of the same bytes; readers map and copy nothing",
            memcpy / publish,
            0.8,
            unit="x",
            at_least=True,
            samples={"publish": took[way], "memcpy": took["memcpy"]},
            facts=facts,
            note=f"{rates}; {by_put}; readers grew by {grown >> 20} MiB",
        ).emit()
    Row(
        "weights_large_put",
        f"`ray.put` of the same {SIZE >> 20} MiB in 8 buckets, without a channel",
        "no limit: the floor of both",
        memcpy / put,
        None,
        unit="x",
        samples={"ray.put": took["put"]},
        note=f"of the rate of one memcpy; {SIZE / put / 1e9:.1f} GB/s",
    ).emit()


if __name__ == "__main__":
    main()
