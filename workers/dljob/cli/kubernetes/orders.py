"""`dljob restart`, `dljob scale` and `dljob stop` on a cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from dljob.api.kubernetes import jobs, scaling
from dljob.api.kubernetes import orders as order
from dljob.cli import output
from dljob.cli.kubernetes.place import about
from dljob.cli.where import Where

if TYPE_CHECKING:
    from dljob.kube.api import Kube

Json = dict[str, Any]


SILENCE_S = 3.0
"""When a wait is this long, it is said what is waited for."""


async def give(kube: Kube, found: Json, kind: order.Kind, target: str = "job") -> None:
    """Give an order, and see it taken."""
    words = f"waiting for the operator to take the {kind}, at most {order.TAKEN_S:g} s"
    said = asyncio.get_running_loop().call_later(SILENCE_S, output.say, words)
    try:
        await order.order(kube, found, kind, target)
    finally:
        said.cancel()


def restart(job: str, target: str, where: Where) -> None:
    """Order a restart, and see it taken."""

    async def asked(kube: Kube, found: Json) -> None:
        await give(kube, found, "restart", target)
        name, namespace = found["metadata"]["name"], found["metadata"]["namespace"]
        what = "" if target == "job" else f" of {target}"
        output.say(
            f"restart{what} of job {jobs.place_of(found)} ordered; see dljob events {name} {where.flags(namespace)}"
        )

    about(where, job, asked)


def scale(job: str, role: str, ranks: int, where: Where) -> None:
    """Say in the spec how many ranks a role is to have."""

    async def asked(kube: Kube, found: Json) -> None:
        await scaling.scale(kube, found, role, ranks)
        name, namespace = found["metadata"]["name"], found["metadata"]["namespace"]
        words = f"{role} of job {jobs.place_of(found)} is to have {ranks} ranks"
        output.say(f"{words}; see dljob events {name} {where.flags(namespace)}")

    about(where, job, asked)


def stop(job: str, where: Where, *, wait: bool) -> None:
    """Order the end, and see it taken, or come."""

    async def asked(kube: Kube, found: Json) -> None:
        await give(kube, found, "stop")
        if wait:
            found = await jobs.wait(kube, found)
        said = "stopped" if wait else "is being stopped"
        name, namespace = found["metadata"]["name"], found["metadata"]["namespace"]
        output.say(f"job {jobs.place_of(found)} {said}; its logs: dljob logs {name} {where.flags(namespace)}")

    about(where, job, asked)
