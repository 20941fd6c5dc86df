"""The outline of a job: what its master is made of before anything heavy is imported."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dljob.spec.standing import on_worker

CREATE_S = 600
"""spec.master.createTimeoutSeconds, where it is left out."""


@dataclass(frozen=True, slots=True)
class Outline:
    """What must be known of a job to make its master. It reads the rest: the models of the spec take long to load."""

    text: str
    """The DLJob as JSON."""
    name: str
    backend: str | None
    options: Mapping[str, Any]
    create_timeout_s: float
    on_worker: bool = False
    """Whether its master lives on a worker, where it has a head beside it that is a machine of its own."""
    survives: bool = False
    """Whether what Ray knows outlives its head."""
    journal: str = ""
    """The folder of the journal, if the spec names one."""


def outline(text: str) -> Outline:
    """The outline of a DLJob in JSON. Raises ValueError, TypeError, KeyError or AttributeError when it is none."""
    data = json.loads(text)
    spec = data["spec"]
    backend = spec.get("backend") or {}
    master = spec.get("master") or {}
    journal = str((master.get("journal") or {}).get("path") or "")
    survives = bool(spec.get("gcsFaultTolerance"))
    return Outline(
        text,
        str(data["metadata"]["name"]),
        backend.get("name"),
        dict(backend.get("options") or {}),
        float(master.get("createTimeoutSeconds") or CREATE_S),
        on_worker(str(master.get("placement") or "Auto"), survives=survives, journal=journal),
        survives,
        journal,
    )
