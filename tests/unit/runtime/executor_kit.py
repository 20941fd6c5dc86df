"""An executor of a job with one role, on a backend in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from dljob.plan.plan import plan
from dljob.runtime.controller.executor import Executor
from dljob.runtime.process.messages import JobInfo
from dljob.spec.model import DLJobManifest
from dljob.tasks import TaskOwner

INFO = JobInfo("0123456789abcdef" * 2, "j", "/dir", "dljob", "01234567/master", 30, 0.2, "", (("w", 2),))
JOB = {"metadata": {"name": "j"}, "spec": {"roles": [{"name": "w", "replicas": 2, "entrypoint": {"class": "m.C"}}]}}


async def nobody(*_: Any) -> None:
    """Take events that no master hears."""


def executor_of(
    backend: Any,
    offer: Callable[..., Awaitable[None]] = nobody,
    *,
    job: dict[str, Any] = JOB,
    epoch: int = 1,
    failed: Callable[[Exception], None] = print,
) -> Executor:
    """Return an executor whose events go to `offer`, and the exceptions that end its tasks to `failed`."""
    return Executor(
        INFO,
        plan(DLJobManifest.model_validate(job)),
        cast("Any", backend),
        offer=offer,
        epoch=lambda: epoch,
        on_loss=lambda: None,
        owner=TaskOwner(failed),
    )
