"""Specs from YAML and JSON, with file:line:column of everything that is wrong, and back to YAML.

load_file("job.yaml")            one manifest from a file
load(text), load_all(text)       one, or all documents, of a text or bytes
parse(data)                      one from data that was made in Python
dump(manifest)                   YAML; load(dump(x)) == x
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

from pydantic import JsonValue

from dljob.errors import Problem, SpecError, UsageError
from dljob.spec.loading.validate import is_another, validate
from dljob.spec.model import DLJobManifest
from dljob.spec.rules.findings import Finding
from dljob.spec.text import tree
from dljob.spec.text.emit import to_yaml
from dljob.spec.text.tree import Document, Loc, Position
from dljob.spec.text.words import expected, path_of

Rules: TypeAlias = Callable[[DLJobManifest], Iterable[Finding]]

# A character of UTF-8 takes at most four bytes.
_MAX_BYTES = 4 * tree.MAX_CHARACTERS


def load_file(path: str | os.PathLike[str], *, rules: Rules | None = None) -> DLJobManifest:
    """Return the one DLJob of a YAML or JSON file; other objects in it, such as a ConfigMap with the code, are ignored.

    Args:
        path: the file.
        rules: further checks of a DLJob without a problem.

    Raises:
        UsageError: the file cannot be read.
        SpecError: with every problem, in the order of the file.
    """
    return load(_bytes(path), file=os.fspath(path), rules=rules)


def load_file_all(path: str | os.PathLike[str], *, rules: Rules | None = None) -> list[DLJobManifest]:
    """Return every DLJob of a YAML or JSON file; other objects are ignored. Raises as `load_file`.

    Args:
        path: the file.
        rules: further checks of a DLJob without a problem.
    """
    file = os.fspath(path)
    return _manifests(_documents(_bytes(path), file), file, rules)


def load(text: str | bytes, *, file: str = "<spec>", rules: Rules | None = None) -> DLJobManifest:
    """Return the one DLJob of a text; `rules` as in `load_file`.

    Raises:
        SpecError: with every problem, in the order of the text; also when it holds more than one DLJob.
    """
    documents = _documents(text, file)
    manifests = _manifests(documents, file, rules)
    if len(manifests) > 1:
        place = documents[1].start
        names = ", ".join(manifest.metadata.name for manifest in manifests)
        message = f"holds {len(manifests)} jobs, {names}; one is wanted"
        raise SpecError((_problem(file, place, "", message, "put each into a file of its own"),))
    return manifests[0]


def load_all(text: str | bytes, *, file: str = "<spec>") -> list[DLJobManifest]:
    """Return every DLJob of a text: at least one, with distinct names.

    Raises:
        SpecError: with every problem of all documents, in the order of the text.
    """
    return _manifests(_documents(text, file), file)


def parse(data: Mapping[str, Any], *, rules: Rules | None = None) -> DLJobManifest:
    """Return the DLJob of data made in Python, with YAML's spelling of fields; tuples may stand for lists.

    Args:
        data: the manifest.
        rules: as in `load_file`.

    Raises:
        SpecError: with every problem.
    """
    odd: list[Finding] = []
    plain = _plain(data, (), odd)
    manifest, findings = validate(plain, doubtful=[finding.loc for finding in odd])
    if manifest is None or odd:
        unread = {finding.loc for finding in odd}
        # These values were replaced by None: findings about them would be consequences.
        findings = tuple(finding for finding in findings if finding.at_key or finding.loc not in unread)
        raise SpecError(_unplaced((*odd, *findings)))
    if rules is not None and (findings := tuple(rules(manifest))):
        raise SpecError(_unplaced(findings))
    return manifest


def dump(manifest: DLJobManifest) -> str:
    """Return a manifest as YAML, without fields at their default."""
    # apiVersion and kind are defaults of the models too, but a file must say what it is (ADR 5).
    data = manifest.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return to_yaml({"apiVersion": manifest.api_version, "kind": manifest.kind, **data})


def _bytes(path: str | os.PathLike[str]) -> bytes:
    try:
        with Path(path).open("rb") as stream:
            # One byte more than allowed tells a file that is too long, without reading all of it.
            return stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {os.fspath(path)}: {error.strerror or error}") from None


def _documents(text: str | bytes, file: str) -> list[Document]:
    if isinstance(text, bytes):
        text = _decoded(text, file)
    documents = tree.read(text, kubectl="refuse")
    if not documents:
        example = "see examples/, or `dljob crd` for every field"
        raise SpecError((_problem(file, Position(1, 1), "", "is empty: there is no DLJob in it", example),))
    # A file may hold other objects beside the DLJob. If it holds nothing else, each of them is reported.
    others = [document for document in documents if is_another(document.data)]
    return [document for document in documents if document not in others] or documents


def _decoded(raw: bytes, file: str) -> str:
    if len(raw) > _MAX_BYTES:
        message = f"is longer than {_MAX_BYTES} bytes"
        raise SpecError((_problem(file, Position(1, 1), "", message, "put large data into a file of its own"),))
    try:
        # Some editors put a byte order mark first, which does not count.
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # Columns count characters, not bytes.
        before = raw[: error.start].rpartition(b"\n")
        mark = Position(raw[: error.start].count(b"\n") + 1, len(before[2].decode("utf-8", "replace")) + 1)
        message = f"is not UTF-8: byte 0x{raw[error.start]:02x} at offset {error.start}"
        raise SpecError((_problem(file, mark, "", message, "save it as UTF-8"),)) from None


def _manifests(documents: Sequence[Document], file: str, rules: Rules | None = None) -> list[DLJobManifest]:
    manifests: list[DLJobManifest] = []
    problems: list[Problem] = []
    names: dict[str, Position] = {}
    for document in documents:
        manifest, wrong = _manifest(document, file)
        # Only for a job without a problem: the rules may read any field.
        if manifest is not None and rules is not None and not wrong:
            wrong = _problems(document, file, rules(manifest))
        problems += wrong
        if manifest is None:
            continue
        name, place = manifest.metadata.name, document.value_mark(("metadata", "name"))
        # kubectl would apply the second job over the first one.
        if name in names:
            message = f"a second job of the name {name}, the first is in line {names[name].line}"
            problems.append(_problem(file, place, "metadata.name", message, "rename one of them"))
        names.setdefault(name, place)
        manifests.append(manifest)
    if problems:
        raise SpecError(tuple(sorted(problems, key=lambda problem: (problem.line, problem.column))))
    return manifests


def _manifest(document: Document, file: str) -> tuple[DLJobManifest | None, list[Problem]]:
    problems = [
        _problem(file, fault.mark, path_of(fault.loc), fault.message, _hint(fault)) for fault in document.faults
    ]
    if document.data is None:
        return None, problems
    manifest, findings = validate(document.data, doubtful=[fault.loc for fault in document.faults])
    unread = {fault.loc for fault in document.faults if fault.unread}
    # An unread value was replaced: a finding about it would be a consequence.
    read = [finding for finding in findings if finding.at_key or finding.loc not in unread]
    return manifest, problems + _problems(document, file, read)


def _problems(document: Document, file: str, findings: Iterable[Finding]) -> list[Problem]:
    return [
        _problem(file, _place(document, finding), path_of(finding.loc), finding.message, finding.hint)
        for finding in findings
    ]


def _unplaced(findings: Iterable[Finding]) -> tuple[Problem, ...]:
    """Return the problems of data that is in no file."""
    return tuple(Problem(path_of(finding.loc), finding.message, hint=finding.hint) for finding in findings)


def _hint(fault: tree.TextProblem) -> str:
    """Return the hint of a text error. For a value that kubectl reads otherwise it depends on the type of the field."""
    expected_kind = expected(fault.loc) if fault.elsewhere else ""
    # The hint names one way to write each reading, kubectl's last; the type of the field tells which one is meant.
    choices = fault.hint.removeprefix("write ").split(" or ")
    match expected_kind:
        case "a whole number" if choices[-1] in ("true", "false"):
            return "write a whole number"
        case "true or false":
            return f"write {choices[-1]}"
        case "a text":
            return f"write {choices[0]}"
        case _:
            return fault.hint


def _place(document: Document, finding: Finding) -> Position:
    return document.key_mark(finding.loc) if finding.at_key else document.value_mark(finding.loc)


def _problem(file: str, mark: Position, path: str, message: str, hint: str) -> Problem:
    return Problem(path, message, file=file, line=mark.line, column=mark.column, hint=hint)


def _plain(value: object, loc: Loc, wrong: list[Finding]) -> JsonValue:
    """Convert mappings and sequences of any type to dicts and lists; values that JSON cannot hold go to `wrong`."""
    # Deeper data would exhaust Python's stack.
    if len(loc) > tree.MAX_DEPTH:
        wrong.append(Finding(loc[:2], f"is nested deeper than {tree.MAX_DEPTH} levels"))
        return None
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value)
        odd = [key for key in items if not isinstance(key, str)]
        wrong += [Finding(loc, f"the key {key!r} is not a text", f"write {str(key)!r}") for key in odd]
        # Values under a wrong key are checked too, so that one run tells all problems.
        return {str(key): _plain(item, (*loc, str(key)), wrong) for key, item in items.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, (*loc, at), wrong) for at, item in enumerate(cast("Sequence[object]", value))]
    # Half of a pair cannot be written as UTF-8.
    if isinstance(value, str) and (half := next((letter for letter in value if "\ud800" <= letter <= "\udfff"), "")):
        wrong.append(Finding(loc, *_half_words(half)))
    elif value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    else:
        wrong.append(Finding(loc, f"holds {value!r:.40}, which JSON cannot", "use texts, numbers, lists and mappings"))
    return None


def _half_words(half: str) -> tuple[str, str]:
    """Return a message and a hint about half of a surrogate pair."""
    # Python reads a name's bytes that are no text as these halves.
    if "\udc80" <= half <= "\udcff":
        return f"holds the byte 0x{ord(half) - 0xDC00:02x}, which is no UTF-8", "rename the file, or spell it in UTF-8"
    return "holds half of a surrogate pair", "write the whole character"
