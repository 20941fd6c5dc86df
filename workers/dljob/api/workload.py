"""One role of a draft; its attributes, defaults and spelling are those of the spec's model of a role."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args

from dljob.api.values import suggestion
from dljob.errors import UsageError

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

    from dljob.spec.model import Role

# Parts of a role whose fields are attributes of the draft, each under its own name or the one given here.
_FLAT: dict[str, dict[str, str]] = {
    "accelerator": {"count": "accelerator", "type": "accelerator_type"},
    "resources": {},
}
# Lists of pairs that are dicts on the draft: key and value of an item.
_PAIRS = {"env": ("name", "value"), "depends_on": ("role", "condition")}
# Properties, which are not among the attributes; DLRover's scripts set them.
_PROPERTIES = ("comm_pre_check", "rank_based_gpu_selection")
# Free-form objects, where None and {} are the user's own and may mean something.
_FREE = ("config", "options", "template", "rayClusterTemplate", "runtimeEnv")


class _Attribute(NamedTuple):
    path: tuple[str, ...]
    """Its keys in the manifest."""
    default: Any
    choices: tuple[str, ...] = ()
    """The words that it may hold, if the model has a list of them."""


class Workload:
    """One role of a draft. Every attribute may be changed until the job is submitted.

    The attributes are the fields of a role in the spec, in the spec's values: `replicas`, `restart_policy`, ... Only
    `env` and `depends_on` are dicts, and the fields of `resources` and `accelerator` are attributes of the role itself:
    `cpu`, `memory`, `custom`; `accelerator` (the devices of one rank, as "0.4" or "2"; None: no device),
    `accelerator_type`, and each option under the name of its setter, such as `numa_binding`.
    """

    def __init__(self, name: str, **settings: object) -> None:
        defaults = {key: copy.copy(attribute.default) for key, attribute in attributes().items()}
        for key, value in {**defaults, "name": name, **settings}.items():
            setattr(self, key, value)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # noqa: ANN401 - the type is the model's

    def __repr__(self) -> str:
        return f"Workload({', '.join(f'{key}={value!r}' for key, value in vars(self).items())})"

    def __eq__(self, value: object) -> bool:
        return isinstance(value, Workload) and vars(self) == vars(value)

    __hash__ = None  # pyright: ignore[reportAssignmentType] - a draft may change at any time

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse attributes that a role does not have, so that a misspelt patch fails instead of being ignored."""
        if name == "backend":
            raise UsageError(
                f"backend of role {self.name!r} is read-only: it follows from the role's type", hint="set .type"
            )
        known = attributes()
        if name not in known and name not in _PROPERTIES:
            raise UsageError(f"a workload has no attribute {name!r}", hint=suggestion(name, known))
        object.__setattr__(self, name, value)

    @property
    def backend(self) -> str:
        """The role's type in DLRover's spelling: "elastic" or "actor"."""
        return str(self.type).lower()

    @property
    def rank_based_gpu_selection(self) -> bool:
        """Whether ranks see the devices of all ranks of the role on their host, and use the one at LOCAL_RANK."""
        return bool(self.visibility == "Shared")

    @rank_based_gpu_selection.setter
    def rank_based_gpu_selection(self, value: object) -> None:
        if not isinstance(value, bool):
            raise UsageError(f"rank_based_gpu_selection={value!r} on role {self.name!r}", hint="True or False")
        self.visibility = "Shared" if value else "Isolated"

    @property
    def comm_pre_check(self) -> bool | None:
        """Whether nodes are checked before the role starts; None: only for nccl and hccl."""
        return self.comm.get("preCheck")

    @comm_pre_check.setter
    def comm_pre_check(self, value: object) -> None:
        if value is not None and not isinstance(value, bool):
            raise UsageError(f"comm_pre_check={value!r} on role {self.name!r}", hint="True, False, or None")
        self.comm = {**self.comm, "preCheck": value}

    def to_dict(self) -> dict[str, Any]:
        """Return the role in the manifest's spelling, without what was not set or equals the spec's default."""
        manifest_role: dict[str, Any] = {}
        for key, attribute in attributes().items():
            value = getattr(self, key)
            # `to_yaml()` is meant to be read.
            if value == attribute.default:
                continue
            if key in _PAIRS:
                first, second = _PAIRS[key]
                value = [{first: k, second: v} for k, v in value.items()]
            *parents, last = attribute.path
            inner = manifest_role
            for parent in parents:
                inner = inner.setdefault(parent, {})
            inner[last] = value
        # A type without a count, as .resource(gpu=0) leaves it, asks for no device.
        if not self.accelerator:
            manifest_role.pop("accelerator", None)
        return pruned(manifest_role)


def attributes() -> Mapping[str, _Attribute]:
    """Return the attributes of a draft's role, in the order of the manifest."""
    # Imported at the first role: the models take longer to import than all of the builder.
    from dljob.spec import model

    return _attributes(model.Role)


@cache
def _attributes(role: type[Role]) -> Mapping[str, _Attribute]:
    from dljob.spec.scalars import option_of

    attribute_by_name: dict[str, _Attribute] = {}
    for name, info in role.model_fields.items():
        key = info.alias or name
        default: Any = {} if info.is_required() else info.get_default(call_default_factory=True)
        if name not in _FLAT:
            attribute_by_name[name] = _Attribute((key,), {} if name in _PAIRS else _plain(default), _words(info))
            continue
        part = next(
            field_type
            for field_type in (info.annotation, *get_args(info.annotation))
            if hasattr(field_type, "model_fields")
        )
        for inner, field_info in cast("type[BaseModel]", part).model_fields.items():
            # Without the part, its values are not set either.
            value = None if default is None else _plain(field_info.get_default(call_default_factory=True))
            option = option_of(field_info)
            attribute = _FLAT[name].get(inner) or (option and option.setter) or inner
            attribute_by_name[attribute] = _Attribute((key, field_info.alias or inner), value, _words(field_info))
    return attribute_by_name


def _plain(default: Any) -> Any:  # noqa: ANN401 - any value of the spec
    """Return a default of a model as the draft holds it: parts and lists are empty, to be filled."""
    if isinstance(default, tuple):
        return list(cast("tuple[Any, ...]", default))
    return {} if hasattr(default, "model_fields_set") else default


def choices(model: str, field: str) -> tuple[str, ...]:
    """Return the words that a field of one of the spec's models may hold."""
    from dljob.spec import model as models

    return _words(getattr(models, model).model_fields[field])


def _words(field: FieldInfo) -> tuple[str, ...]:
    # The words stand in a Literal, or in the Literal of an optional field.
    parts = (field.annotation, *get_args(field.annotation))
    return tuple(word for part in parts for word in get_args(part) if type(word) is str)


def pruned(value: dict[str, Any], *, keep: tuple[str, ...] = _FREE) -> dict[str, Any]:
    """Return a copy without None and empty parts; objects under the keys `keep` are copied whole, unless empty."""
    clean_copy: dict[str, Any] = {}
    for key, part in value.items():
        clean = part
        if key not in keep and isinstance(part, dict):
            clean = pruned(cast("dict[str, Any]", part), keep=keep)
        # Not by truth: False and 0 are values.
        if clean is not None and clean not in ({}, [], ()):
            clean_copy[key] = copy.deepcopy(clean)  # patching the draft later must not change a document made before
    return clean_copy
