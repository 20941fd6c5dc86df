"""The few facts of a job that are needed to create its master, read without the spec's models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dljob.spec.standing import on_worker

CREATE_S = 600
"""Default of spec.master.createTimeoutSeconds."""


@dataclass(frozen=True, slots=True)
class Outline:
    """The facts of a job that are needed to create its master.

    PrimeMaster reads the rest: the models of the spec take half a second to import.
    """

    text: str
    """The DLJob as JSON."""
    name: str
    backend: str | None
    options: Mapping[str, Any]
    create_timeout_s: float
    on_worker: bool = False
    """Whether the master lives on a worker node, where the head is a machine of its own."""
    survives: bool = False
    """Whether Ray's tables outlive the head (gcsFaultTolerance)."""
    journal: str = ""
    """Folder of the journal; empty if the spec names none."""


def outline(text: str) -> Outline:
    """Parse a DLJob in JSON. Raises ValueError, TypeError, KeyError or AttributeError when it is none."""
    data = json.loads(text)
    spec = data["spec"]
    # `or {}` and not a default: a key that is written without a value is None.
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
