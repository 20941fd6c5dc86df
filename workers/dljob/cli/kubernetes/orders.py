"""`dljob restart`, `dljob scale` and `dljob stop` on a cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from dljob.api.kubernetes import jobs, scaling
from dljob.api.kubernetes import orders as order
from dljob.cli import output
from dljob.cli.kubernetes.place import about
from dljob.cli.where import JobTarget
from dljob.telemetry.wording import counted

if TYPE_CHECKING:
    from dljob.kube.api import Kube

Json = dict[str, Any]


SILENCE_S = 3.0
"""Duration of a wait, in seconds, after which its reason is shown."""


async def give(kube: Kube, found: Json, kind: order.Kind, target: str = "job") -> None:
    """Give an order, and wait until it is accepted."""
    words = f"waiting for the operator to accept the {kind}, at most {order.TAKEN_S:g} s"
    # An operator that is away lets the order wait for up to a minute; the user should know for what.
    said = asyncio.get_running_loop().call_later(SILENCE_S, output.say, words)
    try:
        await order.order(kube, found, kind, target)
    finally:
        said.cancel()


def restart(job: str, target: str, where: JobTarget) -> None:
    """Order a restart, and wait until it is accepted."""

    async def asked(kube: Kube, found: Json) -> None:
        await give(kube, found, "restart", target)
        name, namespace = found["metadata"]["name"], found["metadata"]["namespace"]
        what = "" if target == "job" else f" of {target}"
        output.say(
            f"restart{what} of job {jobs.place_of(found)} ordered; see dljob events {name} {where.flags(namespace)}"
        )

    about(where, job, asked)


def scale(job: str, role: str, ranks: int, where: JobTarget) -> None:
    """Set the number of ranks of a role in the spec."""

    async def asked(kube: Kube, found: Json) -> None:
        await scaling.scale(kube, found, role, ranks)
        name, namespace = found["metadata"]["name"], found["metadata"]["namespace"]
        words = f"{role} of job {jobs.place_of(found)} is to have {counted(ranks, 'rank')}"
        output.say(f"{words}; see dljob events {name} {where.flags(namespace)}")

    about(where, job, asked)


def stop(job: str, where: JobTarget, *, wait: bool) -> None:
    """Order the end of a job, and wait until the order is accepted, or until the end."""

    async def asked(kube: Kube, found: Json) -> None:
        await give(kube, found, "stop")
        if wait:
            found = await jobs.wait(kube, found)
        said = "stopped" if wait else "is being stopped"
        name, namespace = found["metadata"]["name"], found["metadata"]["namespace"]
        output.say(f"job {jobs.place_of(found)} {said}; its logs: dljob logs {name} {where.flags(namespace)}")

    about(where, job, asked)
