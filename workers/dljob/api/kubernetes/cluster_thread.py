"""An event loop in a thread of its own with one connection to the cluster: streams go on between blocking calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Self, TypeVar

from dljob.api.kubernetes import connect

if TYPE_CHECKING:
    from dljob.kube.api import Kube

T = TypeVar("T")


class ClusterThread:
    """The cluster of a context, asked from blocking code."""

    def __init__(self, context: str | None = None) -> None:
        self._context = context
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dljob-cluster", daemon=True)
        self._kube: Kube | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._kube is not None:
            asyncio.run_coroutine_threadsafe(self._kube.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def ask(self, question: Callable[[Kube], Awaitable[T]]) -> T:
        """Await `question` with the connection. Raises the errors of `connect` and of the question."""

        async def main() -> T:
            if self._kube is None:
                self._kube = await connect.connect(self._context)
            return await question(self._kube)

        asked = asyncio.run_coroutine_threadsafe(main(), self._loop)
        try:
            return asked.result()
        except BaseException:
            # After Ctrl-C nobody waits for the answer.
            asked.cancel()
            raise
