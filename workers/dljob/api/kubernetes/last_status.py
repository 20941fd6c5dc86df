"""The last status that a job's PrimeMaster gave: it has more than the DLJob's, such as ledger and evidence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dljob.api.kubernetes import gateway, whole_logs
from dljob.api.kubernetes.jobs import place_of
from dljob.errors import NotFoundError

if TYPE_CHECKING:
    from dljob.kube.api import Kube

Json = dict[str, Any]


async def find(kube: Kube, job: Mapping[str, Any]) -> Json:
    """Return it from PrimeMaster, else from the volume of the job's checkpoints, if this machine has that too.

    Raises:
        NotFoundError: nothing of the job has run, or PrimeMaster is gone and nothing was kept.
    """
    try:
        return await (await gateway.reach(kube, job)).status()
    except gateway.NotYetError:
        raise
    except gateway.SilentError as error:
        # In a thread: a volume may be slow, and the event loop must go on.
        if kept := await asyncio.to_thread(_on_volume, job):
            return kept
        hint = whole_logs.whereabouts(job) or "with spec.checkpoint.path, a job's folder is kept on that volume"
        raise NotFoundError(
            f"PrimeMaster of job {place_of(job)} does not answer, and its last status is not kept: {error.message}",
            hint=hint,
        ) from error


def _on_volume(job: Mapping[str, Any]) -> Json:
    logs = whole_logs.place(job)
    return {} if logs is None else _read(logs.parent / "status.json")


def _read(file: Path) -> Json:
    with suppress(OSError, ValueError):  # the volume is not here, or has none of this job: the caller says so
        return dict(json.loads(file.read_text(encoding="utf-8")))
    return {}
