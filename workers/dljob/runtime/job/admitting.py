"""A job that asks for more than its backend can do is refused here, before its PrimeMaster is made."""

from __future__ import annotations

import json

from dljob.runtime.backend.interface import Backend
from dljob.spec.capabilities import ALL, admit

HINT = "run it on Ray (no spec.backend, no DISTRIBUTED_BACKEND); docs/howto/yuanrong.md has what yr carries"


def check(text: str, backend: Backend) -> None:
    """Whether a backend carries a DLJob in JSON; its models are loaded only where they matter.

    Raises:
        SpecError: with every field that asks for what it lacks.
    """
    if not backend.capabilities >= ALL:
        from dljob.spec.model import DLJobManifest

        admit(DLJobManifest.model_validate(json.loads(text)), backend.name, backend.capabilities, hint=HINT)
