"""User code of data/online.py: the server of examples/online, which notes when it loads which version."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import server

plain = server.load


def load(order: dict[str, Any]) -> None:
    begin = time.time()
    plain(order)
    with (Path(os.environ["BENCH_OUT"]) / f"loads-{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps([order["version"], begin, time.time()]) + "\n")


if __name__ == "__main__":
    server.load = load
    server.serve()
