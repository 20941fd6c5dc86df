"""Refuses a job on a backend that lacks a capability which the job's fields need (`capabilities.Needs`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, cast

from dljob.errors import Problem, SpecError
from dljob.spec.capabilities import Capability, Needs
from dljob.spec.text.words import path_of

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from dljob.spec.model import DLJobManifest
    from dljob.spec.text.tree import Loc


def lacking(manifest: DLJobManifest, backend: str, has: Collection[Capability]) -> tuple[Problem, ...]:
    """Return a problem for each field that needs a capability the backend lacks, in the order of the model."""
    # The backend may come from DISTRIBUTED_BACKEND or a default, and is then absent from the spec.
    spec = manifest.spec.model_copy(update={"backend": backend})
    return tuple(
        Problem(path_of(loc), f"the backend {backend} lacks {need.capability}: {need.feature}", hint=need.hint)
        for loc, need in _needs_of(spec, ("spec",))
        if need.capability not in has
    )


def admit(manifest: DLJobManifest, backend: str, has: Collection[Capability], *, hint: str = "") -> None:
    """Refuse a job that needs capabilities its backend lacks.

    Raises:
        SpecError: with every such field.
    """
    problems = lacking(manifest, backend, has)
    if problems:
        raise SpecError(problems, hint=hint)


def _needs_of(value: object, loc: Loc) -> Iterator[tuple[Loc, Needs]]:
    """Yield what a value of the spec and the models in it need, with the place of each."""
    fields: dict[str, FieldInfo] = getattr(type(value), "model_fields", {})
    for name, field in fields.items():
        field_value = getattr(value, name)
        # Without defaults: a field at its default needs nothing.
        if field_value == field.get_default(call_default_factory=True):
            continue
        field_loc = (*loc, field.alias or name)
        for need in field.metadata:
            if isinstance(need, Needs) and need.is_needed_by(field_value):
                yield field_loc, need
        yield from _needs_of(field_value, field_loc)
    if isinstance(value, tuple):
        for index, item in enumerate(cast("tuple[object, ...]", value)):
            yield from _needs_of(item, (*loc, index))
