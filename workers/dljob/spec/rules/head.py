"""The rules about state that survives the head: the fields of each GCS backend, and the place of the journal."""

from __future__ import annotations

from collections.abc import Iterator

from dljob.spec import cel
from dljob.spec.model import DLJobSpec
from dljob.spec.rules.findings import Check, Finding
from dljob.spec.text.tree import Loc

HINTS = {
    "Redis": "write redisAddress: <host>:6379, and leave claimName out",
    "RocksDB": "write claimName: <a PersistentVolumeClaim>, and leave the fields of Redis out",
}


def _backend(spec: DLJobSpec) -> Iterator[Finding]:
    tolerance = spec.gcs_fault_tolerance
    if tolerance is None:
        return
    redis, secret, claim = tolerance.redis_address, tolerance.redis_password_secret, tolerance.claim_name
    right = redis and not claim if tolerance.backend == "Redis" else claim and not redis and not secret
    if not right:
        loc: Loc = ("spec", "gcsFaultTolerance")
        reads = tuple((*loc, name) for name in ("backend", "redisAddress", "redisPasswordSecret", "claimName"))
        yield Finding(loc, cel.GCS_BACKEND.message, HINTS[tolerance.backend], reads)


# A PrimeMaster on a worker may come back on another one, where no folder of the first exists.
def _journal(spec: DLJobSpec) -> Iterator[Finding]:
    master = spec.master
    if master.placement == "Worker" and master.journal.path is not None:
        loc: Loc = ("spec", "master", "journal", "path")
        hint = "leave one of them out"
        yield Finding(loc, cel.MASTER_JOURNAL.message, hint, (loc, ("spec", "master", "placement")))


HEAD_RULES: tuple[Check, ...] = (_backend, _journal)
