"""`dljob stack` on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dljob.api.kubernetes import gateway as gate
from dljob.cli.commands.stack import Form, show
from dljob.cli.kubernetes.place import about
from dljob.cli.where import Where

if TYPE_CHECKING:
    from dljob.kube.api import Kube


def stack(job: str, target: str, where: Where, form: Form) -> None:
    """Ask the job's head, and print what it says."""

    async def asked(kube: Kube, found: dict[str, Any]) -> None:
        head = await gate.reach(kube, found)
        show(await head.stacks(target), form)

    about(where, job, asked)
