"""Common start of commands on a cluster: a connection, a namespace, a job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from dljob.api.kubernetes import jobs
from dljob.api.kubernetes.connect import ask
from dljob.cli.where import JobTarget

if TYPE_CHECKING:
    from dljob.kube.api import Kube

Json = dict[str, Any]
T = TypeVar("T")


def on(where: JobTarget, question: Callable[[Kube, str], Awaitable[T]]) -> T:
    """Ask the cluster a question, which gets the namespace to use."""

    async def asked(kube: Kube) -> T:
        return await question(kube, where.namespace or kube.namespace)

    return ask(asked, where.context)


def about(where: JobTarget, job: str, question: Callable[[Kube, Json], Awaitable[T]]) -> T:
    """Ask the cluster about one job, by name or uid."""

    async def asked(kube: Kube, namespace: str) -> T:
        # Found anew by each command, so that a name always means the present job of that name.
        return await question(kube, await jobs.find(kube, job, namespace))

    return on(where, asked)
