"""The last status that a job's PrimeMaster gave: it has more than the DLJob's, such as ledger and evidence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from dljob.api.kubernetes import gateway, jobs, logs, whole_logs
from dljob.errors import NotFoundError, UnreachableError
from dljob.reconcile.state import names

if TYPE_CHECKING:
    from dljob.kube.api import Kube

Json = dict[str, Any]


async def find(kube: Kube, job: Mapping[str, Any]) -> Json:
    """Return it from PrimeMaster, else from what is kept: the ConfigMap of its logs, or the volume of its checkpoints.

    Raises:
        NotFoundError: nothing of the job has run, or PrimeMaster is gone and nothing was kept.
        UnreachableError: this user may not ask.
    """
    # The head of an ended job may be gone, and the ConfigMap is written before that.
    if jobs.ended(job) and (kept_status := await _in_config_map(kube, job)):
        return kept_status
    try:
        return await (await gateway.reach(kube, job)).status()
    except gateway.NotYetError:
        raise
    except gateway.SilentError as error:
        # In a thread: a volume may be slow, and the event loop must go on.
        if kept_status := await asyncio.to_thread(_on_volume, job):
            return kept_status
        hint = whole_logs.whereabouts(job) or "with spec.checkpoint.path, a job's folder is kept on that volume"
        raise NotFoundError(
            f"PrimeMaster of job {jobs.place_of(job)} does not answer, and its last status is not kept: "
            f"{error.message}",
            hint=hint,
        ) from error


async def find_if_any(kube: Kube, job: Mapping[str, Any]) -> Json:
    """Return the same, or nothing where it cannot be had: for what the DLJob's own status tells in part."""
    with suppress(NotFoundError, UnreachableError):  # the caller shows the DLJob's status without it
        return await find(kube, job)
    return {}


async def _in_config_map(kube: Kube, job: Mapping[str, Any]) -> Json:
    return parsed((await logs.kept_files(kube, job) or {}).get(names.LAST_STATUS, ""))


def _on_volume(job: Mapping[str, Any]) -> Json:
    place = whole_logs.place(job)
    if place is None:
        return {}
    with suppress(OSError):  # the volume is not here, or has none of this job: the caller says so
        return parsed((place.parent / "status.json").read_text(encoding="utf-8"))
    return {}


def parsed(text: str) -> Json:
    """Return the status in a text; empty for a damaged one."""
    with suppress(ValueError):  # as if nothing had been kept
        document = json.loads(text)
        return cast("Json", document) if isinstance(document, dict) else {}
    return {}
