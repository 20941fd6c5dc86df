"""Orders to a job: annotations on the DLJob, which the operator confirms in `status.lastCommands`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from dljob.api.kubernetes.jobs import changes, ended, entries, phase_of, place_of, role_sizes, status_of
from dljob.api.values import check_target
from dljob.errors import DeadlineError, NotFoundError, UsageError
from dljob.reconcile.state import names

if TYPE_CHECKING:
    from dljob.kube.api import Kube

Json = dict[str, Any]
Kind = Literal["restart", "stop", "resume"]

TAKEN_S = 60.0
"""Time, in seconds, for the operator to accept an order."""
SILENCE_S = 3.0
"""Seconds of waiting after which the user is told the reason."""
_ANNOTATION = {"restart": names.RESTART, "stop": names.STOP, "resume": names.RESUME}


def moment() -> str:
    """Return the time as RFC 3339 with microseconds, which also identifies the order."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def annotations_for(kind: Kind, target: str, at: str) -> dict[str, str | None]:
    """Return the annotations of an order; None removes one."""
    # An order to stop stays on the job that it ended, and would stop the resumed one.
    extra = {"restart": {names.RESTART_TARGET: target}, "resume": {names.STOP: None}, "stop": {}}[kind]
    return {_ANNOTATION[kind]: at, **extra}


def answer(status: Mapping[str, Any], kind: Kind, at: str) -> Json | None:
    """Return the operator's answer to the order of that moment; None while there is none.

    Its `state` is Sent, Refused or Ignored; it has a message.
    """
    return next((c for c in entries(status, "lastCommands") if c.get("at") == at and c.get("kind", kind) == kind), None)


async def order(
    kube: Kube,
    job: Json,
    kind: Kind,
    target: str = "job",
    within: float = TAKEN_S,
    *,
    spec: Json | None = None,
    say: Callable[[str], object] = lambda _: None,
) -> None:
    """Give an order and wait until the operator has accepted it.

    Args:
        kube: the cluster.
        job: the DLJob, as it was found.
        kind: restart or stop, or for an ended job resume.
        target: job, a role, or a rank such as rollout/2.
        within: seconds to wait.
        spec: with resume: the spec that the job goes on with; None: as it is.
        say: receives the reason of a wait that lasts longer than SILENCE_S.

    Raises:
        NotFoundError: the job has ended, or has no such target.
        UsageError: the job is to be resumed and has not ended; the API server refuses the spec; the operator or
            PrimeMaster refused, and the message is theirs.
        DeadlineError: the operator did not answer in time; the order stands.
    """
    from dljob.kube.api import DLJOBS, ApiError

    if kind == "resume":
        check_resumable(job)
    elif ended(job):
        raise NotFoundError(f"job {place_of(job)} has ended: {phase_of(job)}")
    check_target(job["metadata"]["name"], role_sizes(job), target)
    meta, at = job["metadata"], moment()
    # The uid is a precondition: a job of the same name that was made since then gets a conflict, not this order.
    patch: Json = {"metadata": {"uid": meta["uid"], "annotations": annotations_for(kind, target, at)}}
    if spec is not None:
        patch["spec"] = merge_patch(job["spec"], spec)
    # An annotation needs only the right to patch DLJobs, and the audit log has it (ADR 13).
    try:
        marked = await kube.patch(DLJOBS, meta["name"], meta["namespace"], patch)
    except ApiError as error:
        if spec is None or error.status != 422:
            raise
        hint = "give it the file that it began with, or run it anew (--replace)"
        raise UsageError(f"job {place_of(job)} cannot go on with this file: {error.message}", hint=hint) from error
    words = f"waiting for the operator to accept the {kind}, at most {TAKEN_S:g} s"
    # An operator that is away lets the order wait for up to a minute; the user should know for what.
    waits = asyncio.get_running_loop().call_later(SILENCE_S, say, words)
    try:
        reply = await asyncio.wait_for(_answered(kube, marked, kind, at), within)
    except TimeoutError:
        raise DeadlineError(
            f"the operator has not accepted the {kind} of job {place_of(job)} within {within:g} s; the order stands",
            hint="is the operator up? see dljob doctor",
        ) from None
    finally:
        waits.cancel()
    if reply.get("state", "Sent") != "Sent":
        order_text = kind if kind != "restart" else f"{kind} of {target}"
        raise UsageError(f"{order_text} {str(reply['state']).lower()}: {reply.get('message')}")


def check_resumable(job: Json) -> None:
    """Check that a job has ended, and not well; the operator knows the rest.

    Raises:
        UsageError: it has not.
    """
    phase, meta = phase_of(job), job["metadata"]
    if not ended(job):
        hint = f"stop it first (dljob stop {meta['name']} -n {meta['namespace']} --wait)"
        raise UsageError(f"job {place_of(job)} has not ended: {phase}", hint=hint)
    if phase == "Succeeded":
        raise UsageError(f"job {place_of(job)} has succeeded: nothing is left to go on with")


def merge_patch(old: Json, new: Json) -> Json:
    """Return the JSON merge patch that makes `new` of `old`."""
    removed_fields: Json = {key: None for key in old if key not in new}
    both = {key for key in new if isinstance(new[key], dict) and isinstance(old.get(key), dict)}
    return {**removed_fields, **new, **{key: merge_patch(old[key], new[key]) for key in both}}


async def _answered(kube: Kube, job: Json, kind: Kind, at: str) -> Json:
    """Wait for the answer; the end of the job also answers a stop."""
    last = job
    async with aclosing(changes(kube, job, until_end=kind != "resume")) as versions:
        async for last in versions:
            reply = answer(status_of(last), kind, at)
            if reply is not None:
                return reply
    # A job that ended while the order was on its way has stopped, as ordered.
    if kind == "stop":
        return {}
    raise NotFoundError(f"job {place_of(job)} ended before: {phase_of(last)}")
