"""`dljob stack` on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dljob.api.kubernetes import gateway as gate
from dljob.cli.kubernetes.place import about
from dljob.cli.stacks import Form, show
from dljob.cli.where import JobTarget

if TYPE_CHECKING:
    from dljob.kube.api import Kube


def stack(job: str, target: str, where: JobTarget, form: Form) -> None:
    """Ask the job's head for stacks, and print them."""

    async def asked(kube: Kube, found: dict[str, Any]) -> None:
        head = await gate.reach(kube, found)
        show(await head.stacks(target), form)

    about(where, job, asked)
