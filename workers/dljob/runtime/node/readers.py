"""Readers: small actors that answer repeated questions about files on other nodes, and end when nobody asks any more.

A Ray task for each question would be a new process each time on a node whose CPUs are taken, about a second of a CPU:
Ray (2.60) ends workers beyond the node's number of CPUs after a second without work.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dljob.runtime.node import log_tails
from dljob.runtime.process.guard import raylet_pidfd

IDLE_S = 60.0
"""Seconds without a question until a reader ends."""
AT_ONCE = 4
"""Questions that one reader answers at a time."""


class Reader:
    """The actor on the node."""

    def __init__(self) -> None:
        raylet = raylet_pidfd()
        if raylet is not None:
            asyncio.get_running_loop().add_reader(raylet, os._exit, 70)  # Ray's worker may outlive its raylet

    async def answer(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function in a thread, so that one slow disk does not hold the other questions."""
        return await asyncio.to_thread(function, *args)


class TakenAwayError(Exception):
    """The reader was ended by another caller while this one waited.

    Its node was not known yet, or it hung for the other caller. The question can be asked again.
    """


@dataclass(slots=True)
class _CachedReader:
    actor: Any
    asked: int = 0
    """Questions that are not answered yet."""
    end: asyncio.TimerHandle | None = None
    """Timer that ends the reader; None while it has questions."""


class Readers:
    """The readers of this process by node; Ray ends them with it. For one event loop."""

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        self._known: dict[str, _CachedReader] = {}

    async def ask(self, node: str, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function on a node; in a thread of this process when it is on that node.

        A caller that stops waiting ends the reader for all: a reader that is not answered in time may hang on a disk,
        and a new one does not. Raises what Ray raises when the node is gone.
        """
        import ray
        from ray.exceptions import ActorUnschedulableError

        if node == ray.get_runtime_context().get_node_id():
            return await asyncio.to_thread(function, *args)
        unknown = (ActorUnschedulableError, TakenAwayError)
        return await log_tails.retry_unknown_node(
            lambda: self._ask_once(node, function, *args), unknown, lambda: log_tails.is_alive(node)
        )

    async def _ask_once(self, node: str, function: Callable[..., Any], *args: Any) -> Any:
        from ray.exceptions import RayError

        known = self._reader(node)
        known.asked += 1
        try:
            return await known.actor.answer.remote(function, *args)
        except (RayError, asyncio.CancelledError) as error:
            # An error of a reader that another caller has replaced tells nothing about the node.
            was_replaced = self._known.get(node) is not known
            self._forget(node, known)
            if was_replaced and isinstance(error, RayError):
                raise TakenAwayError(str(error)) from error
            raise
        finally:
            known.asked -= 1
            # Only the last question starts the timer, and only on a reader that is still in use.
            if not known.asked and self._known.get(node) is known:
                known.end = asyncio.get_running_loop().call_later(self._idle_s, self._forget, node, known)

    def _reader(self, node: str) -> _CachedReader:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        known = self._known.get(node)
        if known is None:
            # Hard affinity: a reader on another node would read the wrong files.
            on_node = NodeAffinitySchedulingStrategy(node, soft=False)
            reader_class: Any = ray.remote(Reader)
            options = {"num_cpus": 0, "max_concurrency": AT_ONCE, "scheduling_strategy": on_node}
            known = self._known[node] = _CachedReader(reader_class.options(**options).remote())
        if known.end is not None:
            known.end.cancel()
            known.end = None
        return known

    def _forget(self, node: str, known: _CachedReader) -> None:
        import ray

        if self._known.get(node) is known:
            del self._known[node]
            ray.kill(known.actor)
