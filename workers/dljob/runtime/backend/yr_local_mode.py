"""A job prepared for the SDK's local mode: its options are set, and fields that local mode lacks are refused.

Commands ask here what the backend can do: they need nothing of the backend itself.
"""

from __future__ import annotations

from dljob.runtime.backend.interface import UNSUPPORTED_HINT
from dljob.spec.admission import admit
from dljob.spec.capabilities import Capability
from dljob.spec.loading.load import parse
from dljob.spec.model import DLJobManifest

NAME = "yr"
LOCAL, CLUSTER = frozenset({Capability.JOBS}), frozenset({Capability.PROCESSES})
"""What the backend can do in the SDK's local mode, and on a cluster."""


def local(manifest: DLJobManifest) -> DLJobManifest:
    """Return the job with `backend: {name: yr, options: {localMode: true}}`, without starting anything.

    Raises:
        SpecError: With every field that asks for what local mode lacks.
        UsageError: The job has `localMode: false`, which means a cluster.
    """
    admit(manifest, NAME, LOCAL, hint=UNSUPPORTED_HINT)
    data = manifest.model_dump(mode="json", by_alias=True, exclude_none=True)
    backend = manifest.spec.backend
    data["spec"]["backend"] = {"name": NAME, "options": {**(backend.options if backend else {}), "localMode": True}}
    return parse(data)
