"""Look-up of jobs as handles: `dljob.jobs()`, `dljob.job("ppo")`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from dljob.errors import UsageError

if TYPE_CHECKING:
    from dljob.api.any_job import AnyJob
    from dljob.api.handle import JobHandle
    from dljob.api.kubernetes.handle import KubernetesJob
    from dljob.kube.api import Kube

Json = dict[str, Any]


@overload
def jobs(*, kubernetes: Literal[False] = False) -> list[JobHandle]: ...
@overload
def jobs(
    *, kubernetes: Literal[True], namespace: str | None = None, context: str | None = None
) -> list[KubernetesJob]: ...
@overload
def jobs(*, kubernetes: bool, namespace: str | None = None, context: str | None = None) -> Sequence[AnyJob]: ...
def jobs(*, kubernetes: bool = False, namespace: str | None = None, context: str | None = None) -> Sequence[AnyJob]:
    """Return all jobs, also those that have ended, oldest first.

    Args:
        kubernetes: list a Kubernetes namespace, not the jobs that this user started on this machine or from it.
        namespace: by default the kubeconfig's current one.
        context: of the kubeconfig; by default the current one.

    Raises:
        UnreachableError: the cluster cannot be reached, or refuses.
    """
    if not kubernetes:
        _check_local("jobs", namespace, context)
        from dljob.api import registry
        from dljob.api.handle import handle_of

        return [handle_of(record) for record in registry.records()]
    # Imported here: the Kubernetes client is an extra that jobs of this machine do not need.
    from dljob.api.kubernetes import jobs as listed
    from dljob.api.kubernetes.connect import ask
    from dljob.api.kubernetes.handle import KubernetesJob

    async def all_of_them(kube: Kube) -> list[Json]:
        return await listed.list_all(kube, namespace or kube.namespace)

    return [KubernetesJob(body, context) for body in ask(all_of_them, context)]


@overload
def job(which: str, /, *, kubernetes: Literal[False] = False) -> JobHandle: ...
@overload
def job(
    which: str, /, *, kubernetes: Literal[True], namespace: str | None = None, context: str | None = None
) -> KubernetesJob: ...
@overload
def job(which: str, /, *, kubernetes: bool, namespace: str | None = None, context: str | None = None) -> AnyJob: ...
def job(which: str, /, *, kubernetes: bool = False, namespace: str | None = None, context: str | None = None) -> AnyJob:
    """Return one job by name, uid, or the first 8 digits of the uid.

    Args:
        which: of several jobs with one name, the running one is meant, else the latest.
        kubernetes: look in a Kubernetes namespace, not at the jobs that this user started on this machine or from it.
        namespace: by default the kubeconfig's current one.
        context: of the kubeconfig; by default the current one.

    Raises:
        NotFoundError: there is no such job; the hint names similar ones.
        UnreachableError: the cluster cannot be reached, or refuses.
    """
    if not kubernetes:
        _check_local("job", namespace, context)
        from dljob.api import registry
        from dljob.api.handle import handle_of

        return handle_of(registry.find(which))
    from dljob.api.kubernetes import jobs as listed
    from dljob.api.kubernetes.connect import ask
    from dljob.api.kubernetes.handle import KubernetesJob

    async def that_one(kube: Kube) -> Json:
        return await listed.find(kube, which, namespace or kube.namespace)

    return KubernetesJob(ask(that_one, context), context)


def _check_local(call: str, namespace: str | None, context: str | None) -> None:
    if namespace is not None or context is not None:
        raise UsageError(f"{call}(namespace=..., context=...) is for Kubernetes", hint="add kubernetes=True")
