"""Persistent maps for the core, at as many entries as ranks: CPU microseconds an operation, median of five rounds.

`python tests/bench/master/maps.py` leaves out the kinds that are not installed;
`uv run --with pyrsistent --with rpds-py` adds them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any

from dljob.master.state.views import HostId

RANKS = 10_000
ROUNDS = 5
KEYS = [HostId("worker", rank) for rank in range(RANKS)]


def immutables() -> tuple[Any, Callable[[Any, Any], Any], Callable[[Any, Any, Any], Any]]:
    """A full map, and how one reads and sets."""
    from immutables import Map

    return Map((key, 0) for key in KEYS), lambda m, k: m[k], lambda m, k, v: m.set(k, v)


def pyrsistent() -> tuple[Any, Callable[[Any, Any], Any], Callable[[Any, Any, Any], Any]]:
    """A full map, and how one reads and sets."""
    from pyrsistent import pmap

    return pmap(dict.fromkeys(KEYS, 0)), lambda m, k: m[k], lambda m, k, v: m.set(k, v)


def rpds() -> tuple[Any, Callable[[Any, Any], Any], Callable[[Any, Any, Any], Any]]:
    """A full map, and how one reads and sets."""
    from rpds import HashTrieMap

    return HashTrieMap(dict.fromkeys(KEYS, 0)), lambda m, k: m[k], lambda m, k, v: m.insert(k, v)


def frozendict() -> tuple[Any, Callable[[Any, Any], Any], Callable[[Any, Any, Any], Any]]:
    """A full map, and how one reads and sets; a set copies."""
    from frozendict import frozendict

    return frozendict(dict.fromkeys(KEYS, 0)), lambda m, k: m[k], lambda m, k, v: m.set(k, v)


def cost(what: Callable[[Any], object], over: Iterable[Any]) -> float:
    """CPU microseconds for one."""
    keys = list(over)
    took: list[float] = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        for key in keys:
            what(key)
        took.append((time.process_time() - begun) / len(keys) * 1e6)
    return statistics.median(took)


def main() -> None:
    """Print a row for each kind."""
    print(f"{'':12} {'get':>8} {'set':>8} {'all':>10}   CPU us, {RANKS} entries")
    for make in (immutables, pyrsistent, rpds, frozendict):
        if find_spec(make.__name__) is None:
            print(f"{make.__name__:12} not installed")
            continue
        full, get, put = make()
        few = KEYS[::100] if make is frozendict else KEYS
        row = (
            cost(lambda key, m=full, f=get: f(m, key), KEYS),
            cost(lambda key, m=full, f=put: f(m, key, 1), few),
            cost(lambda _, m=full: list(m.items()), range(20)),
        )
        print(f"{make.__name__:12} {row[0]:8.2f} {row[1]:8.2f} {row[2]:10.0f}")


if __name__ == "__main__":
    main()
