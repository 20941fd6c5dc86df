"""Refusal of jobs that ask for more than their backend can do, before a PrimeMaster is created."""

from __future__ import annotations

import json

from dljob.runtime.backend.interface import UNSUPPORTED_HINT, Backend
from dljob.spec.capabilities import ALL


def check(text: str, backend: Backend) -> None:
    """Check whether a backend supports all that a DLJob in JSON asks for.

    The spec's models are loaded only for a backend that lacks something: they take half a second.

    Raises:
        SpecError: With every field that asks for what the backend lacks.
    """
    if not backend.capabilities >= ALL:
        from dljob.spec.admission import admit
        from dljob.spec.model import DLJobManifest

        admit(DLJobManifest.model_validate(json.loads(text)), backend.name, backend.capabilities, hint=UNSUPPORTED_HINT)
