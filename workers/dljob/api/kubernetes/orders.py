"""Orders to a running job: annotations on the DLJob, which the operator confirms in `status.lastCommands`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from dljob.api.kubernetes.jobs import changes, ended, items, phase_of, place_of, role_sizes, status_of
from dljob.api.values import check_target
from dljob.errors import DeadlineError, NotFoundError, UsageError
from dljob.reconcile.state import names

if TYPE_CHECKING:
    from dljob.kube.api import Kube

Json = dict[str, Any]
Kind = Literal["restart", "stop"]

TAKEN_S = 60.0
"""Time, in seconds, for the operator to accept an order."""
SILENCE_S = 3.0
"""Seconds of waiting after which the user is told the reason."""
_ANNOTATION = {"restart": names.RESTART, "stop": names.STOP}


def moment() -> str:
    """Return the time as RFC 3339 with microseconds, which also identifies the order."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def annotations_for(kind: Kind, target: str, at: str) -> dict[str, str]:
    """Return the annotations of an order."""
    extra = {names.RESTART_TARGET: target} if kind == "restart" else {}
    return {_ANNOTATION[kind]: at, **extra}


def answer(status: Mapping[str, Any], kind: Kind, at: str) -> Json | None:
    """Return the operator's answer to the order of that moment; None while there is none.

    Its `state` is Sent, Refused or Ignored; it has a message.
    """
    return next((c for c in items(status, "lastCommands") if c.get("at") == at and c.get("kind", kind) == kind), None)


async def order(
    kube: Kube,
    job: Json,
    kind: Kind,
    target: str = "job",
    within: float = TAKEN_S,
    *,
    say: Callable[[str], object] = lambda _: None,
) -> None:
    """Give an order and wait until the operator has accepted it.

    Args:
        kube: the cluster.
        job: the DLJob, as it was found.
        kind: restart or stop.
        target: job, a role, or a rank such as rollout/2.
        within: seconds to wait.
        say: receives the reason of a wait that lasts longer than SILENCE_S.

    Raises:
        NotFoundError: the job has ended, or has no such target.
        UsageError: the operator or PrimeMaster refused; the message is theirs.
        DeadlineError: the operator did not answer in time; the order stands.
    """
    from dljob.kube.api import DLJOBS

    if ended(job):
        raise NotFoundError(f"job {place_of(job)} has ended: {phase_of(job)}")
    check_target(job["metadata"]["name"], role_sizes(job), target)
    meta, at = job["metadata"], moment()
    # The uid is a precondition: a job of the same name that was made since then gets a conflict, not this order.
    patch = {"metadata": {"uid": meta["uid"], "annotations": annotations_for(kind, target, at)}}
    # An annotation needs only the right to patch DLJobs, and the audit log has it (ADR 13).
    marked = await kube.patch(DLJOBS, meta["name"], meta["namespace"], patch)
    words = f"waiting for the operator to accept the {kind}, at most {TAKEN_S:g} s"
    # An operator that is away lets the order wait for up to a minute; the user should know for what.
    waits = asyncio.get_running_loop().call_later(SILENCE_S, say, words)
    try:
        said = await asyncio.wait_for(_answered(kube, marked, kind, at), within)
    except TimeoutError:
        raise DeadlineError(
            f"the operator has not accepted the {kind} of job {place_of(job)} within {within:g} s; the order stands",
            hint="is the operator up? see dljob doctor",
        ) from None
    finally:
        waits.cancel()
    if said.get("state", "Sent") != "Sent":
        what = kind if kind == "stop" else f"{kind} of {target}"
        raise UsageError(f"{what} {str(said['state']).lower()}: {said.get('message')}")


async def _answered(kube: Kube, job: Json, kind: Kind, at: str) -> Json:
    """Wait for the answer; the end of the job also answers a stop."""
    last = job
    async with aclosing(changes(kube, job)) as found:
        async for last in found:
            said = answer(status_of(last), kind, at)
            if said is not None:
                return said
    # A job that ended while the order was on its way has stopped, as ordered.
    if kind == "stop":
        return {}
    raise NotFoundError(f"job {place_of(job)} ended before: {phase_of(last)}")
