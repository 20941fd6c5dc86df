"""Connection from blocking code to the cluster: one for each question, also within a running event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from dljob.errors import UnreachableError, UsageError

if TYPE_CHECKING:
    from dljob.kube.api import Kube

T = TypeVar("T")

CHOOSE = "kubectl config get-contexts shows what there is; KUBECONFIG names the file, --context one of them"
EXTRA = "pip install 'dljob[kubernetes]'"


async def connect(context: str | None = None) -> Kube:
    """Return the cluster of a context of the kubeconfig, by default the current one; no request is sent.

    Raises:
        UsageError: the Kubernetes client is not installed.
        UnreachableError: the kubeconfig, or the context in it, cannot be used.
    """
    try:
        from dljob.kube.api import Kube
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the Kubernetes client is not installed: the package {error.name} is missing", hint=EXTRA
        ) from error
    try:
        return await Kube.connect(context=context)
    except UnreachableError as error:  # no request was made yet: the kubeconfig is at fault
        raise UnreachableError(error.message, hint=CHOOSE) from error


def ask(question: Callable[[Kube], Awaitable[T]], context: str | None = None) -> T:
    """Connect, await `question` with the connection, and disconnect.

    Raises:
        UsageError, UnreachableError: as from `connect`; and the errors of the question.
    """

    async def main() -> T:
        # One connection per question: it belongs to this event loop, which ends with the question.
        kube = await connect(context)
        try:
            return await question(kube)
        finally:
            await kube.close()

    if not _inside_a_loop():
        return asyncio.run(main())
    with ThreadPoolExecutor(max_workers=1) as pool:  # a notebook already runs a loop in this thread
        return pool.submit(asyncio.run, main()).result()


class Cluster:
    """The cluster of a context: each question has a connection of its own, those in a `with` block share one."""

    def __init__(self, context: str | None = None) -> None:
        self.context = context
        self._runner: asyncio.Runner | None = None
        self._kube: Kube | None = None

    def __enter__(self) -> Self:
        """Begin to share a connection, unless this thread runs an event loop, in which no other can run."""
        if not _inside_a_loop():
            self._runner = asyncio.Runner()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the shared connection, if a question opened it."""
        runner, kube, self._runner, self._kube = self._runner, self._kube, None, None
        if runner is not None:
            # The runner closes its event loop last, after the connection that belongs to it.
            with runner:
                if kube is not None:
                    runner.run(kube.close())

    def ask(self, question: Callable[[Kube], Awaitable[T]]) -> T:
        """Await `question` with the shared connection, or with one of its own.

        Raises:
            UsageError, UnreachableError: as from `connect`; and the errors of the question.
        """
        if self._runner is None:
            return ask(question, self.context)

        async def main() -> T:
            if self._kube is None:
                self._kube = await connect(self.context)
            return await question(self._kube)

        return self._runner.run(main())


def _inside_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
