"""Error messages for pydantic's findings: path, given value, allowed values, and the nearest right spelling."""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from dljob.spec.model import DLJobManifest
from dljob.spec.scalars import IMAGE_PATTERN, NAME_PATTERN, WORDS, dns_name
from dljob.spec.text.tree import Loc
from dljob.telemetry.wording import counted

Words: TypeAlias = tuple[str, str]
"""(message, hint)."""


def path_of(loc: Loc) -> str:
    """Format a location for people: ("spec", "roles", 0, "name") is spec.roles[0].name."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc]
    return "".join(parts).removeprefix(".")


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known word nearest to `word`, or ""; snake_case and capitals are forgiven."""
    # Case, dashes and underscores are left out of the comparison: tools spell names differently.
    by_plain = {_plain(name): name for name in known}
    if _plain(word) in by_plain:
        return by_plain[_plain(word)]
    close = difflib.get_close_matches(_plain(word), by_plain, n=3, cutoff=0.7)
    return next((by_plain[name] for name in close if not _qualified(_plain(word), name)), "")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint with the nearest known word, or ""."""
    nearest_word = nearest(word, known)
    return f"did you mean {nearest_word}?" if nearest_word else ""


def one_of(word: str, known: Sequence[str]) -> str:
    """Return a hint with the nearest known name, else with the first eight known names."""
    names = ", ".join(dict.fromkeys(known[:8])) + (", ..." if len(known) > 8 else "")
    return did_you_mean(word, known) or f"there is {names}"


def nearest_field(loc: Loc, root: type[BaseModel] = DLJobManifest) -> str:
    """Return the field nearest to the unknown key `loc[-1]` in the object at `loc[:-1]`, or ""."""
    return nearest(str(loc[-1]), aliases(_model(loc[:-1], root)))


def describe(error: ErrorDetails, loc: Loc, root: type[BaseModel] = DLJobManifest) -> Words:
    """Return message and hint of one of pydantic's errors; `root` is the model of the whole document."""
    context: Mapping[str, Any] = error.get("ctx", {})
    kind = error["type"]
    if kind == "extra_forbidden":
        return "unknown field", _unknown(loc, root)
    if kind == "missing":
        return "is missing", _NEEDS.get(str(loc[-1]), "")
    # A key without a value reads as null, for fields of any type.
    if error["input"] is None and kind != "dljob":
        return _empty(context, None)
    if kind in ("model_type", "model_attributes_type"):
        return f"must be a mapping, not {_short_json(error['input'])}", _shape(loc, error["input"], root)
    if kind in _SAYS:
        return _SAYS[kind](context, error["input"])
    return error["msg"], ""


def expected(loc: Loc, root: type[BaseModel] = DLJobManifest) -> str:
    """Return the type of the value at `loc` in words (boolean, whole number or text); "" where several are allowed."""
    field = _field(loc, root)
    kinds = {word for leaf in _leaves(field and field.annotation) for kind, word in _EXPECTED if leaf is kind}
    return kinds.pop() if len(kinds) == 1 else ""


def is_required(loc: Loc, root: type[BaseModel] = DLJobManifest) -> bool:
    """Return whether the field at `loc` cannot be left out."""
    field = _field(loc, root)
    return field is not None and field.is_required()


def annotated(field: FieldInfo) -> Any:  # noqa: ANN401 - an annotation
    """Return the type of a field with its bounds."""
    return Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation


def kind_of(loc: Loc, root: type[BaseModel] = DLJobManifest) -> Any:  # noqa: ANN401 - an annotation
    """Return the type of the field at `loc`, or of the item of a list; None where the models have none."""
    field = _field(loc, root)
    if field is None or not isinstance(loc[-1], int):
        return field and annotated(field)
    return next(iter(get_args(field.annotation)), None)


def most_items(loc: Loc, root: type[BaseModel] = DLJobManifest) -> int | None:
    """Return the greatest length of the list at `loc`; None where it has no bound."""
    field = _field(loc, root)
    bounds = (getattr(constraint, "max_length", None) for constraint in (field.metadata if field else ()))
    return next((most for most in bounds if most is not None), None)


def model_in(annotation: object) -> type[BaseModel] | None:
    """Return the model inside an annotation such as `tuple[Role, ...]` or `Comm | None`; None when there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, (model_in(argument) for argument in get_args(annotation))), None)


def aliases(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of a model by their names in YAML."""
    return {info.alias or name: info for name, info in model.model_fields.items()}


def _unknown(loc: Loc, root: type[BaseModel]) -> str:
    word, fields_here = str(loc[-1]), aliases(_model(loc[:-1], root))
    # Kubernetes has the field; a probe that goes elsewhere says nothing about the rank.
    if word == "host" and str(loc[-2]) in ("httpGet", "tcpSocket"):
        return "a probe goes to the rank itself: take host out"
    # First names from other tools, then misspellings, then fields of another object.
    field, example = _OTHER_NAMES.get(_plain(word), ("", ""))
    if field in fields_here:
        return f"write {field}: {example}"
    near = nearest_field(loc, root)
    if near:
        return f"did you mean {near}?"
    # Exact names only: a misspelling of a field elsewhere would be a guess on a guess.
    home, inner = _homes(root).get(word, ("", None))
    if not home:
        return ""
    fields_of_inner = [name for name in aliases(inner) if name in fields_here] if inner else []
    if fields_of_inner:
        return f"write {' and '.join(fields_of_inner)} here; {word} is a field of {home}"
    return f"{word} is a field of {home}"


def _shape(loc: Loc, value: object, root: type[BaseModel]) -> str:
    """Return a hint on the form of the mapping at `loc`; with one required field, the given text becomes its value."""
    if str(loc[-1]) in _NEEDS:
        return _NEEDS[str(loc[-1])]
    known = aliases(_model(loc, root))
    needed = [name for name, info in known.items() if info.is_required()]
    if len(needed) == 1 and isinstance(value, str):
        return f"write {{{needed[0]}: {value}}}"
    return f"its fields are {', '.join([*known][:6])}" if known else ""


def _model(loc: Loc, root: type[BaseModel]) -> type[BaseModel]:
    """Return the model of the object at `loc`."""
    model = root
    for part in loc:
        if isinstance(part, str):
            # A free object has no model: stay at the nearest one.
            model = model_in(aliases(model)[part].annotation) or model
    return model


def _field(loc: Loc, root: type[BaseModel]) -> FieldInfo | None:
    """Return the field at `loc`; None where the models have none."""
    names = [part for part in loc if isinstance(part, str)]
    model: type[BaseModel] | None = root
    for name in names[:-1]:
        known = aliases(model) if model else {}
        model = model_in(known[name].annotation) if name in known else None
    known = aliases(model) if model and names else {}
    return known.get(names[-1]) if names else None


def _leaves(annotation: object) -> Iterable[object]:
    """Yield the types of which an annotation consists."""
    inner = get_args(annotation)
    if not inner:
        yield annotation
    for part in inner:
        yield from _leaves(part)


# Kept: a spec can be wrong in thousands of places, and all of them ask.
@functools.cache
def _homes(root: type[BaseModel]) -> Mapping[str, tuple[str, type[BaseModel] | None]]:
    """Return the fields below a model: field -> (path of the first object that has it, model of its value)."""
    homes: dict[str, tuple[str, type[BaseModel] | None]] = {}
    for home, name, inner in _fields_below(root, ""):
        homes.setdefault(name, (home, inner))
    return homes


def _fields_below(model: type[BaseModel], path: str) -> Iterable[tuple[str, str, type[BaseModel] | None]]:
    """Yield (path of the object, field, model of its value) of every field below a model."""
    for name, info in aliases(model).items():
        inner = model_in(info.annotation)
        yield path or "the document", name, inner
        if inner:
            many = "[]" if "tuple" in str(info.annotation) else ""
            yield from _fields_below(inner, f"{path}.{name}{many}".removeprefix("."))


def _plain(word: str) -> str:
    return word.replace("_", "").replace("-", "").lower()


def _qualified(word: str, name: str) -> bool:
    """Return whether one word is the other with a prefix or suffix, as minReplicas and replicas: no misspelling."""
    return abs(len(word) - len(name)) >= 3 and (word in name or name in word)


def _short_json(value: object) -> str:
    """Format a value as JSON, at most 60 characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _quoted(_: Mapping[str, Any], value: object) -> Words:
    scalar = isinstance(value, int | float) and not isinstance(value, bool)
    return f"must be a text, not {_short_json(value)}", f'write "{_short_json(value)}"' if scalar or isinstance(
        value, bool
    ) else ""


def _integer(_: Mapping[str, Any], value: object) -> Words:
    text = value.strip() if isinstance(value, str) else ""
    digits = text.lstrip("+-").isdecimal()
    return f"must be a whole number, not {_short_json(value)}", f"write {text}, without quotes" if digits else ""


def _boolean(_: Mapping[str, Any], value: object) -> Words:
    guess = {"yes": "true", "on": "true", "true": "true", "no": "false", "off": "false", "false": "false"}
    word = guess.get(str(value).lower(), "")
    return f"must be true or false, not {_short_json(value)}", f"write {word}" if word else ""


def _choice(context: Mapping[str, Any], value: object) -> Words:
    # pydantic gives the choices as one text: 'a', 'b' or 'c'.
    known = [item.strip("'") for item in str(context["expected"]).replace(" or ", ", ").split(", ")]
    must_be = "must be" if len(known) == 1 else "must be one of"
    return f"{must_be} {', '.join(known)}; not {_short_json(value)}", did_you_mean(str(value), known) if len(
        known
    ) > 1 else ""


def _list(_: Mapping[str, Any], value: object) -> Words:
    return f"must be a list, not {_short_json(value)}", f"write [{value}]" if isinstance(value, str) else ""


def _pattern(context: Mapping[str, Any], value: object) -> Words:
    message = f"{_short_json(value)} is not {WORDS[context['pattern']]}"
    if context["pattern"] == IMAGE_PATTERN:
        scheme, _, name = str(value).partition("://")
        return message, f"leave out {scheme}://: write {name}" if re.fullmatch(IMAGE_PATTERN, name) else ""
    if context["pattern"] != NAME_PATTERN:
        return message, ""
    return f"{message}, as it becomes a part of host names", f"write {_short_json(dns_name(str(value), 63, 'x'))}"


def _mapping(_: Mapping[str, Any], value: object) -> Words:
    return f"must be a mapping, not {_short_json(value)}", ""


def _own_message(context: Mapping[str, Any], _: object) -> Words:
    return context["message"], context["hint"]


def _empty(_: Mapping[str, Any], __: object) -> Words:
    return "is empty", "give a value, or leave the key out"


def _long(context: Mapping[str, Any], _: object) -> Words:
    return f"is {context['actual_length']} characters long, at most {context['max_length']}", ""


def _too_many(context: Mapping[str, Any], _: object) -> Words:
    return f"has {counted(context['actual_length'], 'item')}, at most {context['max_length']}", ""


def _too_few(context: Mapping[str, Any], _: object) -> Words:
    return f"has {counted(context['actual_length'], 'item')}, at least {context['min_length']}", ""


def _small(context: Mapping[str, Any], value: object) -> Words:
    return f"must be at least {context['ge']}, not {value}", ""


def _large(context: Mapping[str, Any], value: object) -> Words:
    return f"must be at most {context['le']}, not {value}", ""


_OTHER_NAMES = {
    **dict.fromkeys(("gpu", "gpus", "numgpus", "nvidia.com/gpu"), ("accelerator", "{type: GPU, count: 1}")),
    **dict.fromkeys(("npu", "npus", "numnpus"), ("accelerator", "{type: NPU, count: 1}")),
    **dict.fromkeys(("cpus", "numcpus"), ("resources", '{cpu: "1"}')),
    **dict.fromkeys(("mem", "memory"), ("resources", "{memory: 1Gi}")),
    **dict.fromkeys(("workers", "numworkers", "worldsize"), ("replicas", "2")),
    **dict.fromkeys(("nprocpernode", "ppn"), ("replicasPerGroup", "2")),
    **dict.fromkeys(("script", "main"), ("entrypoint", "{module: train.py}")),
}
"""Names of fields in other tools, in plain spelling -> (the field of DLJob, an example of its value)."""

_EXPECTED = ((bool, "true or false"), (int, "a whole number"), (str, "a text"))

_NEEDS = {
    "metadata": "write metadata: {name: my-job}",
    "spec": "write spec: with at least roles",
    "roles": "a job needs at least one role",
    "entrypoint": "write entrypoint: {class: pkg.module.Name}, {module: train.py} or {command: [program, argument]}",
    "level": "Device, Host or Separate",
}
"""Field -> hint for where it is missing."""

# By pydantic's type of error; `describe` keeps pydantic's own message for all others.
_SAYS: dict[str, Callable[[Mapping[str, Any], object], Words]] = {
    "dljob": _own_message,
    "string_type": _quoted,
    "string_pattern_mismatch": _pattern,
    "string_too_long": _long,
    "string_too_short": _empty,
    "too_long": _too_many,
    "too_short": _too_few,
    "greater_than_equal": _small,
    "less_than_equal": _large,
    "int_type": _integer,
    "int_from_float": _integer,
    "int_parsing": _integer,
    "int_parsing_size": _integer,
    "bool_type": _boolean,
    "bool_parsing": _boolean,
    "literal_error": _choice,
    "tuple_type": _list,
    "dict_type": _mapping,
}
