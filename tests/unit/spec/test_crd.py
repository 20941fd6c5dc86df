"""The CRD is structural, bounded, and says what the models say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from ruamel.yaml import YAML

from dljob.errors import ExitCode
from dljob.spec import cel
from dljob.spec.crd import crd, crd_yaml, schema_of
from dljob.spec.generate import generated, main
from dljob.spec.loading.load import load
from dljob.spec.model import DLJobManifest
from dljob.spec.status import COLUMNS, PHASES

ROOT = Path(__file__).parents[3]
SCHEMA = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
WORDS = {
    *("type", "format", "description", "default", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength"),
    *("minItems", "maxItems", "minProperties", "maxProperties", "required", "properties", "items"),
    *("additionalProperties", "x-kubernetes-int-or-string", "x-kubernetes-list-type", "x-kubernetes-list-map-keys"),
    *("x-kubernetes-preserve-unknown-fields", "x-kubernetes-validations"),
}
INT_OR_STRING = "x-kubernetes-int-or-string"
FREE = "x-kubernetes-preserve-unknown-fields"


def nodes(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, field in node.get("properties", {}).items():
        yield from nodes(field, f"{path}.{name}")
    if "items" in node:
        yield from nodes(node["items"], f"{path}[]")
    if "additionalProperties" in node:
        yield from nodes(node["additionalProperties"], f"{path}[*]")


NODES = dict(nodes(SCHEMA))
SPEC = {path: node for path, node in NODES.items() if path.startswith(".spec")}


def test_the_walk_reaches_every_corner() -> None:
    assert {".spec.roles[].entrypoint.class", ".spec.nodeGroups[].labels[*]", ".spec.env[].value"} <= set(SPEC)
    assert len(SPEC) > 90


def test_every_node_is_structural() -> None:
    for path, node in NODES.items():
        assert set(node) <= WORDS, path
        assert (INT_OR_STRING in node) != ("type" in node), f"{path}: exactly one type"
        assert not ("properties" in node and "additionalProperties" in node), path
        assert set(node.get("required", ())) <= set(node.get("properties", {})), path
        # That of the status is for kstatus, which takes an object without a status for one that is as it should be.
        assert path == ".status" or not isinstance(node.get("default"), dict | list), path
        assert node.get("properties") != {}, f"{path}: the API server drops it, and helm would never agree with it"


def test_every_list_map_and_text_is_bounded_and_described() -> None:
    for path, node in SPEC.items():
        if node.get("type") == "array":
            assert node["maxItems"] <= 256, path
        if "additionalProperties" in node:
            assert node["maxProperties"] <= 64, path
        if node.get("type") == "string" or INT_OR_STRING in node:
            assert "enum" in node or node["maxLength"] <= 32768, path
        if node.get("type") == "integer":
            assert {"minimum", "maximum"} <= set(node), path
        if not path.endswith("]"):
            assert len(node["description"]) > 8, path


@pytest.mark.parametrize("path", [path for path, node in SPEC.items() if node.get("type") == "array"])
def test_every_list_says_how_it_merges(path: str) -> None:
    node = SPEC[path]
    kind, item = node["x-kubernetes-list-type"], node["items"]
    keys = node.get("x-kubernetes-list-map-keys", [])
    if path.endswith("envFrom"):
        assert (kind, keys) == ("atomic", []), "as in a pod"
    elif "properties" in item:
        assert kind == "map"
        assert keys == (["role"] if path.endswith("dependsOn") else ["name"])
        assert set(keys) <= set(item["required"])
    else:
        expected = "atomic" if path.endswith(("args", "command")) else "set"
        assert (kind, keys) == (expected, [])


def test_the_rules_stand_where_they_belong() -> None:
    found = {
        path: [rule["message"] for rule in node.get("x-kubernetes-validations", ())] for path, node in NODES.items()
    }
    assert found[""] == [rule.message for rule in cel.ROOT]
    assert found[".spec"] == [rule.message for rule in cel.SPEC]
    assert found[".spec.roles[]"] == [rule.message for rule in cel.ROLE]
    assert found[".spec.roles[].entrypoint"] == ["exactly one of class, module, command"]
    assert sum(len(rules) for rules in found.values()) == len(cel.ROOT) + len(cel.SPEC) + len(cel.ROLE) + 19


def test_the_fields_named_in_rules_exist() -> None:
    """A misspelt field in CEL would only be found by an API server."""
    names = {path.rsplit(".", 1)[-1].removesuffix("[]") for path in NODES}
    for path, node in NODES.items():
        for rule in node.get("x-kubernetes-validations", ()):
            expression = rule["rule"]
            for word in expression.replace("(", " ").replace(")", " ").replace("!", " ").split():
                if word.startswith(("self.", "oldSelf.", "r.", "c.", "d.", "g.", "x.")) and word.count(".") == 1:
                    assert word.rstrip(",").split(".")[1] in {*names, "metadata", "filter", "all"}, (path, word)


def test_only_scalars_have_defaults_in_the_crd() -> None:
    role = SPEC[".spec.roles[]"]["properties"]
    assert (role["replicas"]["default"], role["driver"]["default"], role["type"]["default"]) == (1, True, "Actor")
    assert "default" not in role["comm"]
    assert SPEC[".spec.roles[].accelerator.count"] == {
        INT_OR_STRING: True,
        "default": "1",
        "maxLength": 16,
        "pattern": r"^(0\.[0-9]{1,4}|[0-9]+)$",
        "description": SPEC[".spec.roles[].accelerator.count"]["description"],
    }
    assert SPEC[".spec.config"][FREE] is True


def test_the_crd_has_its_names_and_printer_columns() -> None:
    made = crd()
    version = made["spec"]["versions"][0]
    assert made["metadata"]["name"] == "dljobs.dljob.io"
    assert made["spec"]["names"]["shortNames"] == ["dlj"]
    assert [column["name"] for column in version["additionalPrinterColumns"]] == [column["name"] for column in COLUMNS]
    assert version["subresources"] == {"status": {}}
    assert NODES[".status"][FREE] is True


def test_the_status_is_typed_and_what_is_printed_is_in_it() -> None:
    status = {path: node for path, node in NODES.items() if path.startswith(".status")}
    for path, node in status.items():
        assert len(node["description"]) > 4, path
        assert node["type"] != "array" or node["maxItems"] <= 50
        assert node["type"] != "string" or "enum" in node or "format" in node or node["maxLength"] <= 32768
        kept = "additionalProperties" in node or node.get(FREE) is True
        assert node["type"] != "object" or kept, f"{path}: an older CRD must lose nothing"
    for column in COLUMNS:
        where = str(column["jsonPath"])
        assert where.startswith(".metadata.") or NODES[where]["type"] == column["type"]
    assert status[".status.conditions"]["x-kubernetes-list-map-keys"] == ["type"]
    assert status[".status.phase"]["enum"] == list(PHASES)


def test_the_yaml_of_the_crd_parses_to_its_data() -> None:
    assert YAML(typ="safe", pure=True).load(crd_yaml()) == crd()


def test_models_without_a_structural_form_are_refused() -> None:
    class Union(BaseModel):
        either: int | str

    class Pair(BaseModel):
        things: tuple[int, str]

    class Anything(BaseModel):
        thing: Any

    class Number(BaseModel):
        ratio: float

    for model, words in (
        (Union, ".either: a union has no structural form"),
        (Pair, ".things: a list needs one type of item"),
        (Anything, ".thing: a value of any type has no structural form"),
        (Number, ".ratio: number has no structural form"),
    ):
        with pytest.raises(ValueError, match=words):
            schema_of(model)


def test_literals_free_objects_and_optionals_have_structural_schemas() -> None:
    class Small(BaseModel):
        kind: Literal["one"] = "one"
        free: dict[str, Any] = {}
        typed: Annotated[dict[str, int], Field(max_length=2)] = {}
        maybe: Annotated[str, Field(max_length=3)] | None = None

    fields = schema_of(Small)["properties"]
    assert fields["kind"] == {"type": "string", "enum": ["one"], "default": "one"}
    assert fields["free"] == {"type": "object", FREE: True}
    assert fields["typed"] == {"type": "object", "maxProperties": 2, "additionalProperties": {"type": "integer"}}
    assert fields["maybe"] == {"type": "string", "maxLength": 3}


def test_committed_files_match_the_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"], ROOT) == ExitCode.OK
    assert main(["--check"], tmp_path) == ExitCode.JOB_FAILED
    assert "docs/reference/spec.md is out of date: run python -m dljob.spec.generate" in capsys.readouterr().err
    assert main([], tmp_path) == ExitCode.OK
    assert {path: (tmp_path / path).read_text(encoding="utf-8") for path in generated()} == generated()
    assert main(["--check"], tmp_path) == ExitCode.OK
    assert main(["--chek"], tmp_path) == ExitCode.USAGE
    assert "unknown arguments --chek: only --check is known" in capsys.readouterr().err


def test_the_example_of_the_reference_loads() -> None:
    example = generated()["docs/reference/spec.md"].split("```yaml\n")[1].split("```")[0]
    assert load(example).spec.roles[0].replicas == 2


def test_the_reference_names_every_field() -> None:
    page = generated()["docs/reference/spec.md"]
    for path in SPEC:
        name = path.removesuffix("[]").rsplit(".", 1)[-1]
        if "[" not in name:
            assert f"`{name}`" in page
    assert DLJobManifest.__doc__
    assert DLJobManifest.__doc__.split("\n")[0] in page
