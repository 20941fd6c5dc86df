"""From a blocking caller to the cluster: one connection for one question, also from inside a running event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from dljob.errors import UnreachableError, UsageError

if TYPE_CHECKING:
    from dljob.kube.api import Kube

T = TypeVar("T")

CHOOSE = "kubectl config get-contexts shows what there is; KUBECONFIG names the file, --context one of them"
EXTRA = "pip install 'dljob[kubernetes]'"


async def connect(context: str | None = None) -> Kube:
    """The cluster of a context of the kubeconfig, else the current one; nothing is asked of it yet.

    Raises:
        UsageError: the Kubernetes client is not installed.
        UnreachableError: the kubeconfig, or the context in it, cannot be used.
    """
    try:
        from dljob.kube.api import Kube
    except ModuleNotFoundError as error:
        raise UsageError(f"no Kubernetes client here: the package {error.name} is missing", hint=EXTRA) from error
    try:
        return await Kube.connect(context=context)
    except UnreachableError as error:  # nothing was asked yet, so it is the kubeconfig
        raise UnreachableError(error.message, hint=CHOOSE) from error


def ask(question: Callable[[Kube], Awaitable[T]], context: str | None = None) -> T:
    """Connect, ask, disconnect.

    Raises:
        UsageError, UnreachableError: as `connect`; and what the question raises.
    """

    async def main() -> T:
        kube = await connect(context)
        try:
            return await question(kube)
        finally:
            await kube.close()

    if not _inside_a_loop():
        return asyncio.run(main())
    with ThreadPoolExecutor(max_workers=1) as pool:  # a notebook has a loop of its own in this thread
        return pool.submit(asyncio.run, main()).result()


def _inside_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
