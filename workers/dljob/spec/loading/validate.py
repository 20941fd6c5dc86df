"""Validation of data into a manifest: reports all problems at once, of single fields and between fields."""

from __future__ import annotations

import functools
import json
from collections.abc import Container, Iterable, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, JsonValue, TypeAdapter, ValidationError

from dljob.errors import Problem, SpecError
from dljob.spec.model import DLJobManifest
from dljob.spec.rules.findings import NAMES, Finding
from dljob.spec.rules.rules import findings
from dljob.spec.text.tree import Loc
from dljob.spec.text.words import (
    aliases,
    annotated,
    describe,
    did_you_mean,
    is_required,
    kind_of,
    most_items,
    nearest_field,
    path_of,
)
from dljob.telemetry.wording import counted

API_VERSION = "dljob.io/v1alpha1"
KIND = "DLJob"
PRIVATE = "env"
"""Field that may hold secrets: errors in it do not repeat the value, since they may end in a log or a condition."""
_WORDS = ("unread", "unset")
"""Beginnings of texts in the place of wrong ones: what rules say of both is about other fields."""


def check(manifest: DLJobManifest) -> None:
    """Check a manifest that was made in Python against the rules between fields.

    Raises:
        SpecError: with every broken rule.
    """
    spec_findings = findings(manifest.spec)
    if spec_findings:
        raise SpecError(tuple(Problem(path_of(f.loc), f.message, hint=f.hint) for f in spec_findings))


def validate(data: JsonValue, doubtful: Iterable[Loc] = ()) -> tuple[DLJobManifest | None, tuple[Finding, ...]]:
    """Return the manifest of `data` and no finding, or None and all findings.

    Args:
        data: the data of a document.
        doubtful: fields whose value is uncertain, such as those given twice; rules that read them are skipped.
    """
    if not isinstance(data, dict):
        field_findings = "a list" if isinstance(data, list) else "a text" if isinstance(data, str) else f"{data!r:.40}"
        return None, (Finding((), f"is {field_findings}: a DLJob is a mapping of apiVersion, kind, metadata and spec"),)
    # An object of another kind would fail in every field: its kind is the only useful finding.
    foreign = _kind(data)
    # Without `kind` or `apiVersion` it may still be meant as a DLJob, so its fields are checked too.
    if foreign and not any(finding.message == "is missing" for finding in foreign):
        return None, foreign
    wrong: list[Finding] = list(foreign)
    unsure = list(doubtful)
    try:
        manifests = [_strict(data)]
    except ValidationError as error:
        field_findings = _with_lengths(list(details(error)), data)
        # The kind beside a missing apiVersion is told already.
        wrong += [
            finding
            for _, finding in field_findings
            if finding.loc not in {kind_finding.loc for kind_finding in foreign}
        ]
        # The rest is still checked by the rules between fields, so that a user sees all problems at once.
        manifests, left_out = _without(data, [finding for _, finding in field_findings])
        unsure += [*left_out, *(_about(kind, finding, data) for kind, finding in field_findings)]
    broken = [findings(manifest.spec) for manifest in manifests]
    # Findings that rest on an uncertain field are dropped: they might be mere consequences.
    wrong += [
        finding
        for finding in (broken[0] if broken else ())
        if finding in broken[-1] and not any(finding.touches(field) for field in unsure)
    ]
    return (None if wrong else manifests[0]), tuple(wrong)


def is_another(data: JsonValue) -> bool:
    """Return whether the data is clearly an object of another kind, which a file may hold beside a DLJob."""
    if not isinstance(data, dict):
        return False
    version, kind = data.get("apiVersion"), data.get("kind")
    if not isinstance(version, str) or not isinstance(kind, str):
        return False
    # A misspelt kind, or another version of our group, is meant as a DLJob and must be reported.
    return not version.startswith("dljob.io") and not did_you_mean(kind, [KIND])


def _kind(data: dict[str, JsonValue]) -> tuple[Finding, ...]:
    """Return findings on apiVersion and kind."""
    kind_findings: list[Finding] = []
    for key, expected_value in (("apiVersion", API_VERSION), ("kind", KIND)):
        if key not in data:
            kind_findings.append(Finding((key,), "is missing", f"write {key}: {expected_value}"))
        elif data[key] != expected_value:
            hint = did_you_mean(str(data[key]), [expected_value])
            kind_findings.append(Finding((key,), f"must be {expected_value}, not {json.dumps(data[key])[:60]}", hint))
    return tuple(kind_findings)


def _strict(data: JsonValue) -> DLJobManifest:
    """Validate as strictly as the API server: no "2" for 2, no snake_case."""
    # As JSON: strict mode takes a list for a tuple there, and not in Python data.
    return DLJobManifest.model_validate_json(json.dumps(data), strict=True, by_alias=True, by_name=False)


def details(error: ValidationError, root: type[BaseModel] = DLJobManifest) -> Iterable[tuple[str, Finding]]:
    """Yield (pydantic's kind of error, finding) for each error of a document of model `root`."""
    for detail in error.errors(include_url=False):
        if detail["type"] == "too_short" and len(detail["input"]) >= detail.get("ctx", {})["min_length"]:
            continue  # pydantic counts only the items that are right
        # pydantic appends "[key]" where the key of a mapping is wrong, not its value.
        loc: Loc = tuple(part for part in detail["loc"] if part != "[key]")
        if detail["type"] == "string_too_long":
            detail["ctx"] = {
                **detail.get("ctx", {}),
                "actual_length": len(detail["input"]),
            }  # of the value that is hidden next
        # The name of a variable is no secret, and the user needs it to find the place.
        if PRIVATE in loc and loc[-1] != "name":
            detail["input"] = _hidden(detail["input"])
        message, hint = describe(detail, loc, root)
        key = detail["type"] == "extra_forbidden" or len(loc) < len(detail["loc"])
        yield detail["type"], Finding(loc, message, hint, at_key=key)


def _hidden(value: object) -> object:
    """Return a placeholder of the same type, which reveals nothing."""
    if isinstance(value, str):
        return "…"
    if isinstance(value, list):
        return ["…"]
    return {"…": "…"} if isinstance(value, dict) else value


def _with_lengths(pairs: Sequence[tuple[str, Finding]], data: JsonValue) -> list[tuple[str, Finding]]:
    """Return the findings, with one about each list that is too long in the place of those about its items."""
    lists = {
        finding.loc[:at]: None for _, finding in pairs for at, part in enumerate(finding.loc) if isinstance(part, int)
    }
    long: dict[Loc, tuple[str, Finding]] = {}
    for loc in lists:
        most, items = most_items(loc), _value(data, loc)
        if most is not None and len(items) > most:
            message = f"has {counted(len(items), 'item')}, at most {most}"
            long[loc] = ("too_long", Finding(loc, message))
    rest = [(kind, finding) for kind, finding in pairs if not _within(finding.loc, long)]
    return [*long.values(), *rest]


def _value(data: Any, loc: Loc) -> Any:  # noqa: ANN401 - any value of JSON
    for part in loc:
        data = data[part]
    return data


def _without(data: JsonValue, wrong: Sequence[Finding]) -> tuple[list[DLJobManifest], set[Loc]]:
    """Return manifests without what is wrong, for rules between the rest, and what was left out or replaced.

    What cannot be left out has another value in each manifest. None: it can be neither left out nor replaced.
    """
    left_out: set[Loc] = set()
    manifests: list[DLJobManifest] = []
    for variant in range(len(_WORDS)):
        rest: Any = json.loads(json.dumps(data))
        replaced: set[Loc] = set()
        for finding in wrong:
            loc, value = _replacement(finding.loc, variant)
            if not loc:
                return [], left_out
            if _within(loc, replaced):
                continue
            replaced.add(loc)
            parent, name = _value(rest, loc[:-1]), loc[-1]
            if value is None:
                parent.pop(name, None)
                continue
            parent[name] = value
            if name == "name" or isinstance(name, int):
                # Another field may refer to it by a name that is not known.
                left_out.add((*loc[: -2 if name == "name" else -1], NAMES))
        left_out |= replaced
        try:
            manifests.append(_strict(rest))
        except ValidationError:
            # The remaining fields are wrong too, so no rule between fields applies.
            return [], left_out
    return manifests, left_out


def _within(loc: Loc, places: Container[Loc]) -> bool:
    """Return whether one of the places contains `loc`, or is it."""
    return any(loc[:length] in places for length in range(1, len(loc) + 1))


def _replacement(loc: Loc, variant: int) -> tuple[Loc, JsonValue]:
    """Return the smallest part around a wrong value that can be left out, or replaced by the value; () without one."""
    word = _WORDS[variant] + "".join(str(part) for part in loc if isinstance(part, int))
    while loc and (isinstance(loc[-1], int) or is_required(loc)):
        if (kind := kind_of(loc)) is not None:
            return loc, _stand_in(kind, word, variant)
        loc = loc[:-1]
    return loc, None


def _stand_in(kind: Any, word: str, variant: int) -> JsonValue:  # noqa: ANN401 - an annotation
    """Return a value of a type, with as few fields as it needs; None where nothing fits."""
    inner = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    values: list[JsonValue] = [word, f"{word}.x", f"{variant + 1}", variant + 1, {"command": ["true"]}]
    if get_origin(inner) is Literal:
        values = [get_args(inner)[-variant]]
    elif get_origin(inner) is tuple:
        items = [_stand_in(get_args(inner)[0], f"{word}{suffix}", variant) for suffix in ("", "x")]
        values = [items[:1], items]
    elif isinstance(inner, type) and issubclass(inner, BaseModel):
        needed = {name: info for name, info in aliases(inner).items() if info.is_required()}
        fields = {name: _stand_in(annotated(info), word, variant) for name, info in needed.items()}
        values = [{"command": ["true"]}, fields]
    return next((value for value in values if _fits(kind, value)), None)


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:  # noqa: ANN401 - an annotation
    return TypeAdapter(kind)


def _fits(kind: Any, value: JsonValue) -> bool:  # noqa: ANN401 - an annotation
    try:
        _adapter(kind).validate_json(json.dumps(value), strict=True)
    except ValidationError:
        return False
    return True


def _about(kind: str, finding: Finding, data: JsonValue) -> Loc:
    """Return the field whose value is unknown because of a finding; for an unknown key, the field nearest to it."""
    name = nearest_field(finding.loc) if kind == "extra_forbidden" else None
    return (*finding.loc[:-1], name) if name and name not in _value(data, finding.loc[:-1]) else finding.loc
