"""The scalar types of the spec: names, texts, quantities, free objects, and the messages for invalid values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from dljob.spec import quantity

NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
ENV_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
# With a dot: a module, and a name in it.
CLASS_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+$"
LABEL_PATTERN = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
QUALIFIED_PATTERN = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
RAY_PATTERN = r"^[A-Za-z]([-A-Za-z0-9_.:]*[A-Za-z0-9])?$"
VERSION_PATTERN = r"^[0-9]+\.[0-9]+\.[0-9]+$"
OBJECT_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
# Without a colon, which Kubernetes refuses in mount paths.
ABSOLUTE_PATTERN = r"^/[^\x00:]+$"
TEXT_PATTERN = r"^[^\x00]*$"
# The grammar of github.com/distribution/reference: host and port, path, tag, digest. Only a host may have capitals.
IMAGE_PATTERN = (
    r"^(([A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?)*|\[[0-9A-Fa-f:]+\])"
    r"(:[0-9]+)?/)?[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*"
    r"(:[A-Za-z0-9_][-A-Za-z0-9_.]{0,127})?"
    r"(@[A-Za-z][A-Za-z0-9]*([-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9A-Fa-f]{32,})?$"
)
KEY_PATTERN = r"^[-._a-zA-Z0-9]+$"
# A metric as Prometheus names it, and a number without an exponent.
SERIES_PATTERN = r"^[A-Za-z_:][A-Za-z0-9_:]*$"
NUMBER_PATTERN = r"^-?[0-9]{1,15}(\.[0-9]{1,9})?$"
METRIC_PATTERN = r"^[A-Za-z_][-A-Za-z0-9_./]*$"
BACKEND_PATTERN = r"^[A-Za-z][A-Za-z0-9_]*$"
HOST_PORT_PATTERN = r"^[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?:[0-9]{1,5}$"
# A port by its name or its number.
PORT_PATTERN = r"^([a-z]([-a-z0-9]*[a-z0-9])?|[1-9][0-9]{0,4})$"
URL_PATH_PATTERN = r"^/[\x21-\x7e]*$"
HEADER_PATTERN = r"^[-!#$%&'*+.^_`|~0-9A-Za-z]+$"
LINE_PATTERN = r"^[^\x00\r\n]*$"
# A shell of Ray's reads it too: no character that it would expand.
PYTHON_PATTERN = r"^(/[-A-Za-z0-9._+@/]+|[A-Za-z0-9][-A-Za-z0-9._+]*)$"

WORDS = {
    NAME_PATTERN: "lower-case letters, digits and '-', a letter first, no '-' last",
    ENV_PATTERN: "letters, digits and '_', no digit first",
    CLASS_PATTERN: 'a dotted path such as "pkg.module.Name"',
    LABEL_PATTERN: "letters, digits, '-', '_' and '.', a letter or digit first and last",
    QUALIFIED_PATTERN: 'a name such as "rack" or "example.com/rack", at most 63 after the "/"',
    RAY_PATTERN: "letters, digits, '-', '_', '.' and ':', a letter first",
    VERSION_PATTERN: 'a version such as "2.60.0"',
    OBJECT_PATTERN: "lower-case letters, digits, '-' and '.', a letter or digit first and last",
    ABSOLUTE_PATTERN: 'an absolute path such as "/ckpt", without ":"',
    TEXT_PATTERN: "text without NUL characters",
    IMAGE_PATTERN: 'the name of an image such as "registry.example:5000/team/train:1": capitals only in host and tag',
    KEY_PATTERN: "letters, digits, '-', '_' and '.'",
    METRIC_PATTERN: "letters, digits, '_', '-', '.' and '/', a letter or '_' first",
    SERIES_PATTERN: "letters, digits, '_' and ':', no digit first",
    NUMBER_PATTERN: 'a number such as 0 or "0.5"',
    BACKEND_PATTERN: "letters, digits and '_', a letter first",
    HOST_PORT_PATTERN: 'a host and a port, such as "redis:6379"',
    PORT_PATTERN: "the name of a port, or a number from 1 to 65535",
    URL_PATH_PATTERN: 'a path such as "/health", without spaces',
    HEADER_PATTERN: "the name of an HTTP header",
    PYTHON_PATTERN: 'an absolute path such as "/opt/env/bin/python", or a name on PATH such as "python3.12"',
    LINE_PATTERN: "one line of text",
    quantity.FACTOR_PATTERN: 'a number above 1 and below 10, such as "1.5"',
}
"""Pattern -> description for error messages."""

MAX_CONFIG = 262_144
"""Upper bound of one config, in characters of JSON."""

# Lists keyed by a field: a server-side apply then merges items instead of replacing the list.
MAP_BY_NAME: dict[str, Any] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
MAP_BY_ROLE: dict[str, Any] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["role"]}
SET: dict[str, Any] = {"x-kubernetes-list-type": "set"}
INT_OR_STRING: dict[str, Any] = {"x-kubernetes-int-or-string": True}


def refuse(message: str, hint: str = "") -> PydanticCustomError:
    """Return an error whose message and hint reach the user unchanged."""
    return PydanticCustomError("dljob", "{message}", {"message": message, "hint": hint})


# The CRD declares quantities as int-or-string; the models hold text alone, so that `2` and "2" are equal specs.
def _number_as_text(parse: Callable[[str], int]) -> Callable[[object], object]:
    """Accept whole numbers as texts: `2` as "2". Floats are refused, since a binary float is not exactly 0.1."""

    def check(value: object) -> object:
        if isinstance(value, float):
            hint = f'write "{value}"' if _parses(parse, str(value)) else ""
            raise refuse(f"must be a whole number or a quoted text, not the float {value}", hint)
        if isinstance(value, bool):
            raise refuse(f"must be a whole number or a quoted text, not {str(value).lower()}")
        # Before int: a bool is an int in Python.
        if isinstance(value, int):
            return str(value)
        return value

    return check


def _parse_number(text: str) -> int:
    if not re.fullmatch(NUMBER_PATTERN, text):
        raise ValueError(text)
    return round(float(text))


def _parses(parse: Callable[[str], int], text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


def _parsed_by(parse: Callable[[str], int]) -> Callable[[str], str]:
    def check(text: str) -> str:
        try:
            parse(text)
        except ValueError as error:
            raise refuse(str(error)) from None
        return text

    return check


def _json_only(value: dict[str, Any]) -> dict[str, Any]:
    """Check that a free object survives JSON, in which PrimeMaster, the journal and Kubernetes carry it."""
    try:
        # The round trip finds tuples and keys that are not texts, which JSON changes silently.
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
        same = bool(json.loads(text) == value)
    except (TypeError, ValueError, RecursionError) as error:
        raise refuse(f"must hold only values that JSON has: {error}") from None
    if not same:
        raise refuse("must hold only values that JSON has: keys that are strings, lists and mappings")
    if _is_huge(value):
        raise refuse("holds a whole number of more than 64 bits, which Kubernetes would round", "write it as a text")
    if len(text) > MAX_CONFIG:
        raise refuse(f"is {len(text)} characters as JSON, at most {MAX_CONFIG}", "put large data into a file")
    return value


def _is_huge(value: Any) -> bool:  # noqa: ANN401 - any JSON
    # At any depth: these objects are free.
    if isinstance(value, dict):
        return any(_is_huge(item) for item in cast("dict[str, Any]", value).values())
    if isinstance(value, list):
        return any(_is_huge(item) for item in cast("list[Any]", value))
    return isinstance(value, int) and not -(2**63) <= value < 2**63


def dns_name(text: str, longest: int, kind: str = "job") -> str:
    """Return a text as a name by NAME_PATTERN, of at most `longest` characters; `kind` stands before a first digit."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return (plain if plain[:1].isalpha() else f"{kind}-{plain}")[:longest].strip("-")


class Model(BaseModel):
    """Base class of all models: camelCase outside, snake_case inside, frozen, unknown keys refused."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, use_attribute_docstrings=True
    )


@dataclass(frozen=True, slots=True)
class Option:
    """Marks a scalar field of a role that builder and plan take as it stands: `generate` writes them from the model."""

    argument: str = "value"
    """Name of the argument of the builder's setter."""
    setter: str = ""
    """Name of that setter, and of the draft's attribute; empty: the field's own."""


def option_of(field: FieldInfo) -> Option | None:
    """Return how an option of a role is set; None for another field."""
    return next((item for item in field.metadata if isinstance(item, Option)), None)


Text = Annotated[str, Field(max_length=32768, pattern=TEXT_PATTERN)]
Name = Annotated[str, Field(max_length=63, pattern=NAME_PATTERN)]
RoleName = Annotated[str, Field(max_length=24, pattern=NAME_PATTERN)]
MetricName = Annotated[str, Field(max_length=63, pattern=METRIC_PATTERN)]
GroupName = Annotated[str, Field(max_length=20, pattern=NAME_PATTERN)]
ObjectName = Annotated[str, Field(max_length=253, pattern=OBJECT_PATTERN)]
Path = Annotated[str, Field(min_length=1, max_length=1024, pattern=TEXT_PATTERN)]
AbsolutePath = Annotated[str, Field(max_length=1024, pattern=ABSOLUTE_PATTERN)]
LabelKey = Annotated[str, Field(max_length=253, pattern=QUALIFIED_PATTERN)]
RayName = Annotated[str, Field(max_length=63, pattern=RAY_PATTERN)]
LabelValue = Annotated[str, Field(max_length=63, pattern=LABEL_PATTERN)]
Config = Annotated[dict[str, Any], AfterValidator(_json_only)]
# Before pydantic: whole numbers become texts. After it: the text must be an amount.
Cpu = Annotated[
    str,
    BeforeValidator(_number_as_text(quantity.parse_cpu)),
    AfterValidator(_parsed_by(quantity.parse_cpu)),
    Field(max_length=32, json_schema_extra={**INT_OR_STRING, "pattern": quantity.CPU_PATTERN}),
]
Memory = Annotated[
    str,
    BeforeValidator(_number_as_text(quantity.parse_memory)),
    AfterValidator(_parsed_by(quantity.parse_memory)),
    Field(max_length=32, json_schema_extra={**INT_OR_STRING, "pattern": quantity.MEMORY_PATTERN}),
]
Number = Annotated[
    str,
    BeforeValidator(_number_as_text(_parse_number)),
    Field(max_length=32, pattern=NUMBER_PATTERN, json_schema_extra={**INT_OR_STRING, "pattern": NUMBER_PATTERN}),
]
Factor = Annotated[str, Field(max_length=4, pattern=quantity.FACTOR_PATTERN)]
Amount = Annotated[
    str,
    BeforeValidator(_number_as_text(quantity.parse_custom)),
    AfterValidator(_parsed_by(quantity.parse_custom)),
    Field(max_length=32, json_schema_extra={**INT_OR_STRING, "pattern": quantity.CUSTOM_PATTERN}),
]
Devices = Annotated[
    str,
    BeforeValidator(_number_as_text(quantity.parse_devices)),
    AfterValidator(_parsed_by(quantity.parse_devices)),
    Field(max_length=16, json_schema_extra={**INT_OR_STRING, "pattern": quantity.DEVICES_PATTERN}),
]
