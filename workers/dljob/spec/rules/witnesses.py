"""The rules about outside witnesses: a witness without a preset is complete, and there are node agents to read it."""

from __future__ import annotations

from collections.abc import Iterator

from dljob.spec import cel
from dljob.spec.model import DLJobSpec
from dljob.spec.rules.findings import Check, Finding, one_each
from dljob.spec.text.tree import Loc

_WITNESSES: Loc = ("spec", "faultTolerance", "witnesses")
_ACTION: Loc = ("spec", "faultTolerance", "node", "action")
_FIELDS = ("port", "metric", "means", "when", "value")


def _complete(spec: DLJobSpec) -> Iterator[Finding]:
    yield from one_each(_WITNESSES, [witness.name for witness in spec.fault_tolerance.witnesses], "witnesses")
    for i, witness in enumerate(spec.fault_tolerance.witnesses):
        missing = [name for name in _FIELDS if getattr(witness, name) is None]
        # A recorder has nothing to read before a hang is found.
        recorder = witness.dump is not None and len(missing) == len(_FIELDS) and not witness.act
        if witness.preset is None and missing and not recorder:
            witness_loc = (*_WITNESSES, i)
            reads = tuple((*witness_loc, name) for name in ("preset", *_FIELDS))
            yield Finding(witness_loc, cel.WITNESS.message, f"add {', '.join(missing)}, or a preset", reads)


def _read(spec: DLJobSpec) -> Iterator[Finding]:
    """Refuse witnesses that nobody would read: node agents do, and `Ignore` starts none."""
    if spec.fault_tolerance.witnesses and spec.fault_tolerance.node.action == "Ignore":
        hint = "leave node.action out"
        yield Finding(
            _WITNESSES, "nobody reads witnesses where node.action is Ignore", hint, (_WITNESSES, _ACTION), at_key=True
        )


WITNESS_RULES: tuple[Check, ...] = (_complete, _read)
