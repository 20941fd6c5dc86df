"""Connection from blocking code to the cluster: one for each question, also within a running event loop."""

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
    """Return the cluster of a context of the kubeconfig, by default the current one; it is not asked anything yet.

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
    except UnreachableError as error:  # no request was made yet: the kubeconfig is at fault
        raise UnreachableError(error.message, hint=CHOOSE) from error


def ask(question: Callable[[Kube], Awaitable[T]], context: str | None = None) -> T:
    """Connect, ask, and disconnect.

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


def _inside_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
