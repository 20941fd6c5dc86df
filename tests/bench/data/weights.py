"""64 MiB from one rank to four of its host by a WeightChannel, against one numpy `ray.put` and four gets."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Row, cluster, folder, runs
from bench_jobs import manifest, role, submit


def main() -> None:
    """Two rows: without the check of every byte, to which the limit applies, and with it, as it is by default."""
    with cluster(2, store=1 << 30) as _, folder() as out:
        roles = [
            role("publisher", "weights_app.Publisher", 1, dependsOn=[{"role": "reader"}]),
            role("reader", "weights_app.Reader", 4, cpu="100m", driver=False),
        ]
        document = manifest("weights", out, roles)
        document["spec"]["config"] |= {"blocks": runs(20), "ways": ["store-unchecked", "store"]}
        status = submit(document).wait(600)
        assert status["phase"] == "Succeeded", status
        found = json.loads((out / "weights.json").read_text())
    plain = median(found["plain"])
    unchecked, checked = median(found["store-unchecked"]), median(found["store"])
    what = "WeightChannel, 64 MiB to 4 readers on a host"
    facts = {"bytes equal": found["equal"]}
    Row(
        "weights",
        f"{what}, without the check of every byte",
        "<= 1.1 x of one numpy ray.put + 4 gets; bytes equal",
        unchecked,
        1.1 * plain,
        samples={"dljob": found["store-unchecked"], "plain": found["plain"]},
        facts=facts,
        note=f"{unchecked / plain:.2f} x plain",
    ).emit()
    Row(
        "weights-checked",
        f"{what}, each of which checks every byte (the default)",
        "no limit: the time of the check told apart",
        checked,
        None,
        samples={"dljob": found["store"]},
        facts=facts,
        note=f"{checked / plain:.2f} x plain; the check adds {1000 * (checked - unchecked):.1f} ms",
    ).emit()


if __name__ == "__main__":
    main()
