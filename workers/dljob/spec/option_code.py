"""The code that is made from the scalar options of a role (`scalars.Option`): the builder's setters, the plan's fields.

So an option is added in the model and in the code that obeys it, and nowhere else.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel

from dljob.spec.model import Role
from dljob.spec.scalars import Option, option_of

_MADE = "Made by `python -m dljob.spec.generate`; change the model, not this file."
_SETTERS = f'''"""Setters of a role's scalar options. {_MADE}"""

from __future__ import annotations

from typing import Literal, Self

from dljob.api.role import RoleSetters


class RoleOptionSetters(RoleSetters):
    """All setters of a role under construction."""
'''
_PLAN = f'''"""A role's scalar options. {_MADE}"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleOptions:
    """Options that a plan has as the spec has them, which describes them; empty or 0 where they are left out."""

'''


class _Field(NamedTuple):
    path: str
    """As in the spec: "accelerator.numaBinding"."""
    name: str
    kind: str
    """Its type in Python's spelling, without None."""
    default: Any
    description: str
    option: Option


def setters() -> str:
    """Return the module of the builder's setters."""
    return _SETTERS + "".join(_setter(field) for field in _options(Role))


def plan_fields() -> str:
    """Return the module of the plan's options: those of the role itself, as its parts are resolved by hand."""
    return _PLAN + "".join(_plan_field(field) for field in _options(Role) if "." not in field.path)


def _options(model: type[BaseModel], path: str = "") -> Iterator[_Field]:
    for name, field in model.model_fields.items():
        key = f"{path}{field.alias or name}"
        if (option := option_of(field)) is not None:
            yield _Field(key, name, _kind(field.annotation), field.default, field.description or "", option)
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from _options(part, f"{key}.")


def _kind(annotation: Any) -> str:  # noqa: ANN401 - of any field
    if get_origin(annotation) is Literal:
        return f"Literal[{', '.join(_quoted(word) for word in get_args(annotation))}]"
    inner = get_args(annotation)
    # The first part of `X | None` and of Annotated is the type.
    return _kind(inner[0]) if inner else str(annotation.__name__)


def _plan_field(field: _Field) -> str:
    kind, default = "str" if field.kind.startswith("Literal") else field.kind, field.default
    if default is None:
        default = 0 if kind == "int" else ""
    return f"    {field.name}: {kind} = {_quoted(default) if kind == 'str' else default}\n"


def _quoted(text: object) -> str:
    return f'"{text}"'


def _setter(field: _Field) -> str:
    setter, argument = field.option.setter or field.name, f"{field.option.argument}: {field.kind}"
    note = ""
    if field.kind == "bool":
        argument, note = f"{argument} = True", "  # noqa: FBT001, FBT002 - a switch, as the field is"
    margin = " " * 8
    description = textwrap.fill(
        field.description, 120, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False
    )
    return f'''
    def {setter}(self, {argument}) -> Self:{note}
        """Set `{field.path}` of the role.

{description}
        """
        return self._set("{setter}", {field.option.argument})
'''
