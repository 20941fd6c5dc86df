"""Writes clicks to a file: python events.py FILE [a second=1000] [seconds=60]."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path


def clicks(count: int) -> Iterator[str]:
    """Yield the lines of the first clicks, the same ones each time."""
    draw = random.Random(0)  # noqa: S311 - clicks
    for n in range(count):
        item = draw.randrange(32)
        yield json.dumps({"n": n, "item": item, "clicked": int(draw.random() < item / 32)}) + "\n"


def main(path: str, rate: int = 1000, seconds: int = 60) -> None:
    begun = time.monotonic()
    with Path(path).open("a") as file:
        for n, line in enumerate(clicks(rate * seconds)):
            file.write(line)
            if n % 20 == 19:
                file.flush()
                time.sleep(max(0.0, begun + (n + 1) / rate - time.monotonic()))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
