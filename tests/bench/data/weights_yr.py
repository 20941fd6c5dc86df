"""64 MiB by the transport yr of WeightChannel: what `publish` and `receive` take of a real datasystem, without Ray.

    python tests/bench/data/weights_yr.py

Starts the datasystem itself (the extra `yr`) and prints medians in milliseconds as JSON.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "kits"))
from datasystem_kit import Datasystem

from dljob.runtime.process import context
from dljob.runtime.weights import yr_transport
from dljob.runtime.weights.buckets import flat, load_state
from dljob.runtime.weights.model import Version

ROUNDS = 15


class Line:
    """A keeper that keeps two versions."""

    name, who, address = "bench", "bench/0", ""

    def __init__(self) -> None:
        self.kept: list[Version] = []

    def ask(self, _method: str, _who: Any, version: Version, **_: Any) -> tuple[Any, ...]:
        self.kept.append(version)
        return tuple(where for one in self.kept[-3:-2] for where in one.stored)


def main() -> None:
    """Measure and print."""
    me: Any = SimpleNamespace(name="bench/0", role="bench", rank=0, job_uid="0" * 32, job_dir="")
    context.install(me)
    taken: dict[str, list[float]] = {"publish": [], "receive": []}
    with Datasystem() as datasystem:
        os.environ.update(datasystem.environment)
        line: Any = Line()
        carrier = yr_transport.DatasystemCarrier(line)
        for version in range(ROUNDS):
            state = {"w": np.full(16 << 20, version, dtype=np.float32)}
            begin = time.perf_counter()
            index, buckets = flat(state, "bench")
            carrier.publish(Version(f"n{version}", version, index), buckets)
            middle = time.perf_counter()
            found = load_state(index, carrier.fetch(line.kept[-1]) or ())
            end = time.perf_counter()
            assert np.array_equal(found["w"], state["w"])
            taken["publish"].append((middle - begin) * 1000)
            taken["receive"].append((end - middle) * 1000)
    print(json.dumps({name: round(statistics.median(each), 1) for name, each in taken.items()}))


if __name__ == "__main__":
    main()
