"""DLJobs of a namespace: look-up by name or uid, changes, and the end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from dljob.api.values import suggestion
from dljob.api.views import entries, nested
from dljob.errors import DeadlineError, NotFoundError, UnreachableError
from dljob.spec.status import TERMINAL

if TYPE_CHECKING:
    from dljob.kube.api import Kube

Json = dict[str, Any]
INSTALL = "is dljob installed there? `helm install` its chart, then `dljob doctor`"

_UID8 = 8
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_STEPS = frozenset({"Accepted", "QuotaReserved", "ClusterReady", "MasterReady", "PlacementReady", "RolesReady"})
"""Conditions of a starting job, which become true one after the other."""
POLL_S = 1.0
PATIENCE_S = 120.0
"""Longest absence of the API server, in seconds, that the following of a job survives."""


def status_of(job: Mapping[str, Any]) -> Json:
    """Return the status; empty before the operator has seen the job."""
    return nested(job, "status")


def phase_of(job: Mapping[str, Any]) -> str:
    """Return the phase; Pending before the operator has seen the job."""
    return str(status_of(job).get("phase") or "Pending")


def ended(job: Mapping[str, Any]) -> bool:
    """Whether the phase is final: nothing of the job changes any more."""
    return phase_of(job) in TERMINAL


def begun(job: Mapping[str, Any]) -> int:
    """Return the attempt whose notes and logs can be read; 0 when there is none."""
    status = status_of(job)
    # The operator counts the next attempt while the last one's head still answers: the number is valid once the new
    # attempt is submitted.
    return int(status.get("attempt") or 1) if status.get("submissionId") else 0


def place_of(job: Mapping[str, Any]) -> str:
    """Describe a job for messages: `hello in namespace team`."""
    return f"{job['metadata']['name']} in namespace {job['metadata']['namespace']}"


def why(job: Mapping[str, Any]) -> tuple[str, str]:
    """Return (reason, message) of the job's state: its own, else those of the first condition it waits for."""
    status = status_of(job)
    if status.get("message") or ended(job):
        return str(status.get("reason") or ""), str(status.get("message") or "")
    waits = (c for c in entries(status, "conditions") if c.get("type") in _STEPS and c.get("status") != "True")
    nothing: Json = {}
    first = next((c for c in waits if c.get("message")), nothing)
    return str(first.get("reason") or status.get("reason") or ""), str(first.get("message") or "")


def role_sizes(job: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of ranks by role: as the operator last saw it, else as in the spec."""
    # The status follows an Elastic role as it shrinks and grows; before it exists, the spec is all there is.
    sizes = {role["name"]: int(role.get("replicas", 1)) for role in job["spec"]["roles"]}
    observed_sizes = {
        role["name"]: int(role["desired"]) for role in status_of(job).get("roles") or () if "desired" in role
    }
    return {**sizes, **{name: size for name, size in observed_sizes.items() if name in sizes}}


async def find(kube: Kube, job: str, namespace: str) -> Json:
    """Find a job by name, uid, or the first 8 digits of its uid.

    Raises:
        NotFoundError: there is none; the hint lists those there are.
        UnreachableError: the cluster does not serve DLJobs.
    """
    from dljob.kube.api import DLJOBS, NotThereError

    if _NAME.fullmatch(job):  # any other text, put into the URL, would ask for another resource
        with suppress(NotThereError):
            return await kube.get(DLJOBS, job, namespace)
    everything = await list_all(kube, namespace)
    for body in everything:
        # With and without dashes: Ray's side of the job writes it without.
        uid = str(body["metadata"]["uid"])
        if job in (uid, uid.replace("-", ""), uid[:_UID8]):
            return body
    known = [body["metadata"]["name"] for body in everything]
    hint = suggestion(job, known) if known else "there is no job in this namespace; another one with -n, all with -A"
    raise NotFoundError(f"no job {job!r} in namespace {namespace}", hint=hint)


async def list_all(kube: Kube, namespace: str | None) -> list[Json]:
    """Return the jobs of a namespace, or with None of all namespaces, oldest first.

    Raises:
        UnreachableError: the cluster does not serve DLJobs.
    """
    from dljob.kube.api import DLJOBS, NotThereError

    try:
        bodies = await kube.list(DLJOBS, namespace)
    except NotThereError as error:
        raise UnreachableError("this cluster does not serve DLJobs", hint=INSTALL) from error
    # Creation times are whole seconds: the name makes the order the same at every call.
    return sorted(bodies, key=lambda body: (body["metadata"]["creationTimestamp"], body["metadata"]["name"]))


async def remove(kube: Kube, name: str, namespace: str) -> None:
    """Delete the job of that name, if any, and return when it is gone.

    Raises:
        DeadlineError: finalizers held it for longer than PATIENCE_S.
        ApiError: the API server refuses.
    """
    from dljob.kube.api import DLJOBS, NotThereError

    # The first look may find no job, and a later one none any more: both mean that the name is free.
    with suppress(NotThereError):
        uid = (await kube.get(DLJOBS, name, namespace))["metadata"]["uid"]
        # With its uid: a job made anew since the look must not be deleted.
        await kube.delete(DLJOBS, name, namespace, uid=uid)
        for _ in range(int(PATIENCE_S / POLL_S)):
            # Another uid: the old one is gone, and a new job has the name already.
            if (await kube.get(DLJOBS, name, namespace))["metadata"]["uid"] != uid:
                return
            await asyncio.sleep(POLL_S)
        raise DeadlineError(
            f"job {name} in namespace {namespace} was not gone {PATIENCE_S:g} s after its deletion",
            hint=f"kubectl get dljob {name} -n {namespace} -o yaml shows the finalizers that hold it",
        )


def passing(status: int) -> bool:
    """Whether an API server that answered with this status (0: not at all) may answer a retry."""
    return status in (0, 429) or status >= 500


async def changes(kube: Kube, job: Json, *, until_end: bool = True) -> AsyncGenerator[Json]:
    """Yield the job now and after every change, until it has ended, or for ever.

    Raises:
        NotFoundError: the job was deleted.
        ApiError: the API server was away for longer than PATIENCE_S, or refused.
    """
    from dljob.kube.api import DLJOBS, ApiError

    meta = job["metadata"]
    away = 0.0
    while True:
        try:
            # `seen`: without it, a deletion between two watches would go unnoticed.
            stream = kube.watch(DLJOBS, meta["namespace"], fields=f"metadata.name={meta['name']}", known_before=(job,))
            # Closed in any case: a generator that is left alone keeps its connection until it is collected.
            async with aclosing(stream) as events:
                async for kind, body in events:
                    away = 0.0
                    if kind == "DELETED" or body["metadata"]["uid"] != meta["uid"]:
                        raise NotFoundError(f"job {place_of(job)} was deleted")
                    yield body
                    if until_end and ended(body):
                        return
        except ApiError as error:
            away += POLL_S
            if not passing(error.status) or away > PATIENCE_S:
                raise
            await asyncio.sleep(POLL_S)


async def each_second(kube: Kube, job: Json) -> AsyncGenerator[Json]:
    """Yield the job every second, the last time when it has ended.

    Raises:
        NotFoundError: the job was deleted.
        ApiError: the API server was away for longer than PATIENCE_S, or refused.
    """
    from dljob.kube.api import DLJOBS, ApiError, NotThereError

    meta, away = job["metadata"], 0.0
    while True:
        yield job
        if ended(job):
            return
        await asyncio.sleep(POLL_S)
        try:
            job, away = await kube.get(DLJOBS, meta["name"], meta["namespace"]), 0.0
        except NotThereError:
            raise NotFoundError(f"job {place_of(job)} was deleted") from None
        except ApiError as error:
            away += POLL_S
            if not passing(error.status) or away > PATIENCE_S:
                raise
        # Deleted and created again within a second: by the name alone this would follow another job.
        if job["metadata"]["uid"] != meta["uid"]:
            raise NotFoundError(f"job {place_of(job)} was deleted and created anew")


async def wait(kube: Kube, job: Json, timeout: float | None = None) -> Json:  # noqa: ASYNC109 - a user's parameter
    """Wait for the end and return the ended job.

    Raises:
        DeadlineError: the job had not ended within `timeout` seconds.
        NotFoundError: the job was deleted, perhaps before the call.
    """
    last = job

    async def end() -> None:
        nonlocal last
        async with aclosing(changes(kube, job)) as versions:
            async for last in versions:  # noqa: B007 - the last one counts
                pass

    try:
        await asyncio.wait_for(end(), timeout)
    except TimeoutError:
        raise DeadlineError(f"job {place_of(job)} was not over after {timeout:g} s: {phase_of(last)}") from None
    return last
