"""Generator of the CustomResourceDefinition from the models: a structural schema with bounds and CEL rules.

`structural` converts JSON Schema to the subset that the API server accepts (no $ref, one type per node, no unions but
int-or-string). It never guesses: a model without a structural form raises ValueError.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from pydantic import BaseModel

from dljob.spec.model import DLJobManifest
from dljob.spec.status import COLUMNS, status_schema
from dljob.spec.text.emit import to_yaml

Schema: TypeAlias = dict[str, Any]

GROUP = "dljob.io"
VERSION = "v1alpha1"
KIND = "DLJob"
PLURAL = "dljobs"

_SCALARS = {"string", "integer", "boolean"}
# Keywords that mean the same in a structural schema; all others are converted, or dropped.
_KEEP = ("description", "type", "format", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength")
_KEEP_LISTS = ("minItems", "maxItems", "minProperties", "maxProperties", "required")


def crd() -> Schema:
    """Return the CRD as data."""
    version: Schema = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": list(COLUMNS),
        "schema": {"openAPIV3Schema": _root()},
        "subresources": {"status": {}},
    }
    names = {
        "kind": KIND,
        "listKind": f"{KIND}List",
        "plural": PLURAL,
        "singular": KIND.lower(),
        "shortNames": ["dlj"],
        "categories": ["all", "ml"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {"group": GROUP, "names": names, "scope": "Namespaced", "versions": [version]},
    }


def crd_yaml() -> str:
    """Return the text of the CRD's file in `crds/`."""
    return "# Made by `python -m dljob.spec.generate`; change the models, not this file.\n" + to_yaml(crd())


def schema_of(model: type[BaseModel]) -> Schema:
    """Return the structural schema of a model."""
    # The form of input, in which fields with a default may be left out.
    raw = model.model_json_schema(by_alias=True, mode="validation")
    return structural(raw, raw.get("$defs", {}))


def structural(node: Schema, defs: dict[str, Schema], path: str = "") -> Schema:
    """Convert a node of pydantic's JSON Schema to a node of a structural schema.

    Raises:
        ValueError: the node has no structural form; the message names its `path`.
    """
    node = _folded(node, defs, path)
    extras = {key: value for key, value in node.items() if key.startswith("x-kubernetes-")}
    structural_node = {key: node[key] for key in _KEEP if key in node}
    if "description" in structural_node:
        # Line breaks of the source would break lines of `kubectl explain`, which wraps by itself.
        structural_node["description"] = " ".join(structural_node["description"].split())
    if "const" in node:
        structural_node["enum"] = [node["const"]]
    structural_node |= _default(node)
    # The API server refuses a type beside int-or-string.
    if extras.get("x-kubernetes-int-or-string"):
        return {key: value for key, value in structural_node.items() if key != "type"} | extras
    structural_node |= {key: node[key] for key in _KEEP_LISTS if node.get(key)}
    kind = node.get("type")
    if kind == "object":
        structural_node |= _object(node, defs, path)
    elif kind == "array":
        # Extras override it: lists keyed by a field merge item by item.
        structural_node |= {
            "x-kubernetes-list-type": "atomic",
            "items": structural(_items(node, path), defs, f"{path}[]"),
        }
    elif kind not in _SCALARS:
        raise ValueError(f"{path}: {kind or 'a value of any type'} has no structural form")
    return structural_node | extras


def _root() -> Schema:
    root = schema_of(DLJobManifest)
    # The API server fixes the schema of apiVersion, kind and metadata; the CEL rule NAME checks the name.
    words = {name: {"type": "string", "description": root["properties"][name]["description"]} for name in _NAMES}
    # The status is no part of the manifest's model: only the operator writes it.
    root["properties"] = {
        **words,
        "metadata": {"type": "object"},
        "spec": root["properties"]["spec"],
        # kstatus takes an object without a status for one that is as it should be; no generation is 0.
        "status": {**status_schema(), "default": {"observedGeneration": 0}},
    }
    root["required"] = ["spec"]
    return root


_NAMES = ("apiVersion", "kind")


def _folded(node: Schema, defs: dict[str, Schema], path: str) -> Schema:
    """Resolve $ref and `| None` of a node; keys beside them win."""
    while "$ref" in node or "anyOf" in node:
        # Keys beside `$ref` belong to the field itself, such as its description.
        rest = {key: value for key, value in node.items() if key not in ("$ref", "anyOf")}
        if "$ref" in node:
            node = {**defs[node["$ref"].rsplit("/", 1)[-1]], **rest}
            continue
        # `| None` means that the field may be left out, which structural schemas express by `required`.
        options = [option for option in node["anyOf"] if option.get("type") != "null"]
        if len(options) != 1:
            raise ValueError(f"{path}: a union has no structural form")
        node = {**options[0], **rest}
    return node


def _default(node: Schema) -> Schema:
    """Return the default of a scalar. Absent objects, lists and texts stay absent in the stored DLJob."""
    # The API server would store a default of an object in every DLJob, as if the user had written it.
    value = node.get("default")
    return {} if value is None or value == "" or isinstance(value, dict | list) else {"default": value}


def _object(node: Schema, defs: dict[str, Schema], path: str) -> Schema:
    if "properties" in node:
        fields: dict[str, Schema] = node["properties"]
        return {"properties": {name: structural(field, defs, f"{path}.{name}") for name, field in fields.items()}}
    patterns: dict[str, Schema] = node.get("patternProperties", {})  # structural schemas have no pattern for keys
    values: Schema | bool = next(iter(patterns.values()), node.get("additionalProperties", True))
    if isinstance(values, bool):
        # A free object: the API server would drop its fields otherwise.
        return {"x-kubernetes-preserve-unknown-fields": True}
    return {"additionalProperties": structural(values, defs, f"{path}[*]")}


def _items(node: Schema, path: str) -> Schema:
    if "items" not in node:
        raise ValueError(f"{path}: a list needs one type of item")
    return node["items"]
