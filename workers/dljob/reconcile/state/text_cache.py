"""A cache of what is worked out from specs, which keeps none of their texts.

A tenant may edit a spec of a megabyte in a loop. No version can be told from one that is still in use, so a cache that
had the texts for keys would hold gigabytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import wraps
from hashlib import sha256
from typing import Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def cached_by_digest(most: int) -> Callable[[Callable[Concatenate[str, P], T]], Callable[Concatenate[str, P], T]]:
    """Cache the `most` results last used of a function of a text, and of hashable values, by the text's digest."""

    def cached(work: Callable[Concatenate[str, P], T]) -> Callable[Concatenate[str, P], T]:
        cache: OrderedDict[Hashable, T] = OrderedDict()

        @wraps(work)
        def look_up(text: str, *args: P.args, **more: P.kwargs) -> T:
            key = sha256(text.encode(errors="surrogatepass")).digest(), args, tuple(more.items())
            if key not in cache:
                cache[key] = work(text, *args, **more)
            cache.move_to_end(key)
            if len(cache) > most:
                cache.popitem(last=False)
            return cache[key]

        return look_up

    return cached
