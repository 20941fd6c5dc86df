"""What the backend yr costs in the SDK's local mode, and its keys on a real datasystem.

    python tests/bench/data/yr_backend.py

Medians: seconds until the SDK is there, microseconds of an actor's making and of a call, of a key that is written (old
and new) and read, of a list of 1000 keys.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "kits"))
from datasystem_kit import Datasystem

from dljob.runtime.backend.interface import ActorSpec
from dljob.runtime.yr import session
from dljob.runtime.yr.backend import YrBackend
from dljob.runtime.yr.keys import connected

TIMES = 200


async def median_us(work: Callable[[int], Awaitable[Any]], times: int = TIMES) -> int:
    """Of so many, one after another."""
    took = []
    for number in range(times):
        began = time.perf_counter()
        await work(number)
        took.append(time.perf_counter() - began)
    return round(statistics.median(took) * 1e6)


async def actors() -> dict[str, Any]:
    """Of the local mode."""
    began = time.perf_counter()
    session.local()
    backend = YrBackend({"localMode": True})
    loaded = time.perf_counter() - began
    ref = await backend.spawn(ActorSpec("a", "contract_actors.Probe"))
    return {
        "loaded_s": round(loaded, 2),
        "call_us": await median_us(lambda _: backend.call(ref, "about")),
        "spawn_us": await median_us(lambda n: backend.spawn(ActorSpec(f"b{n}", "contract_actors.Probe")), 50),
        "lookup_us": await median_us(lambda _: backend.lookup("a"), 50),
    }


async def keys() -> dict[str, Any]:
    """Of the datasystem."""
    with Datasystem(megabytes=128) as made:
        os.environ.update(made.environment)
        kv = connected()
        return {
            "put_new_us": await median_us(lambda n: kv.put(f"k/{n}", b"x" * 100), 1000),
            "put_us": await median_us(lambda _: kv.put("k/1", b"x" * 100)),
            "get_us": await median_us(lambda _: kv.get("k/1")),
            "list_1000_us": await median_us(lambda _: kv.keys("k/"), 20),
        }


async def main() -> None:
    """Print all of it as one line of JSON."""
    print(json.dumps({**await actors(), **await keys()}))
    session.close()


if __name__ == "__main__":
    asyncio.run(main())
