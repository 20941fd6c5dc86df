"""Writes clicks to a file: python events.py FILE [a second=1000] [seconds=60]."""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path


def main(path: str, rate: int = 1000, seconds: int = 60) -> None:
    draw, begun = random.Random(0), time.monotonic()  # noqa: S311 - clicks
    with Path(path).open("a") as file:
        for n in range(rate * seconds):
            item = draw.randrange(32)
            file.write(json.dumps({"n": n, "item": item, "clicked": int(draw.random() < item / 32)}) + "\n")
            if n % 20 == 19:
                file.flush()
                time.sleep(max(0.0, begun + (n + 1) / rate - time.monotonic()))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
