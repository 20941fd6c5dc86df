"""What the commands on a cluster begin with: a connection, a namespace, a job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from dljob.api.kubernetes import jobs
from dljob.api.kubernetes.connect import ask
from dljob.cli.where import Where

if TYPE_CHECKING:
    from dljob.kube.api import Kube

Json = dict[str, Any]
T = TypeVar("T")


def on(where: Where, question: Callable[[Kube, str], Awaitable[T]]) -> T:
    """Ask the cluster; the question gets the namespace that counts."""

    async def asked(kube: Kube) -> T:
        return await question(kube, where.namespace or kube.namespace)

    return ask(asked, where.context)


def about(where: Where, job: str, question: Callable[[Kube, Json], Awaitable[T]]) -> T:
    """Ask about one job, by name or uid."""

    async def asked(kube: Kube, namespace: str) -> T:
        return await question(kube, await jobs.find(kube, job, namespace))

    return on(where, asked)
