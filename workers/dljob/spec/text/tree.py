"""Parser of YAML and JSON into plain Python data with the position of each key and value.

JSON is read as YAML. Only values that JSON can hold are accepted: strings as keys, finite numbers, no tags. Aliases and
`<<` merges are resolved; MAX_VALUES bounds their expansion, so that nested aliases cannot fill the memory.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, cast

from pydantic import JsonValue

from dljob.spec.text import syntax
from dljob.spec.text.kubectl import differs

Loc: TypeAlias = tuple[str | int, ...]
"""Keys and indices from the root of a document."""

# Bounds against files that would fill the memory, such as nested anchors (ADR 5).
MAX_CHARACTERS = 524_288
MAX_VALUES = 50_000
MAX_DEPTH = 64
MAX_NODES = 50_000
"""Most keys and values of a file, aliases counted once: each takes some 50 microseconds."""
MAX_DOCUMENTS = 256
"""Most documents of a file: the checks of a job take some 10 ms."""

_TAG = "tag:yaml.org,2002:"
_SURROGATE = re.compile("[\ud800-\udfff]")
_TRUE = frozenset({"true", "yes", "on", "y"})


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a text; line and column count from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class TextProblem:
    """An error in the text itself, before any schema applies."""

    loc: Loc
    mark: Position
    message: str
    hint: str = ""
    unread: bool = False
    """Whether the value is unknown because of the error, so that later checks skip it."""
    elsewhere: bool = False
    """Whether kubectl reads the value otherwise."""


@dataclass(slots=True)
class Document:
    """One document: its data, the positions of its keys and values, and its errors."""

    data: JsonValue = None
    start: Position = Position(1, 1)
    keys: dict[Loc, Position] = field(default_factory=dict[Loc, Position])
    values: dict[Loc, Position] = field(default_factory=dict[Loc, Position])
    faults: list[TextProblem] = field(default_factory=list[TextProblem])

    def key_mark(self, loc: Loc) -> Position:
        """Return the position of the key (or the list item) at `loc`, else of the nearest enclosing value."""
        return self.keys.get(loc) or self.value_mark(loc)

    def value_mark(self, loc: Loc) -> Position:
        """Return the position of the value at `loc`, else of the nearest enclosing value."""
        while loc and loc not in self.values:
            loc = loc[:-1]
        return self.values.get(loc, self.start)


Kubectl: TypeAlias = Literal["", "refuse", "follow"]
"""What happens to scalars that kubectl reads otherwise: nothing, they are errors, or they get kubectl's value."""


def read(text: str, *, kubectl: Kubectl = "") -> list[Document]:
    """Return all non-empty documents of a text; an unreadable text gives one document with its error.

    Args:
        text: YAML or JSON.
        kubectl: what happens to scalars that kubectl reads otherwise, such as `0400` and `yes`.
    """
    from ruamel.yaml.error import MarkedYAMLError, YAMLError  # noqa: PLC0415 - PrimeMaster loads this room, not YAML

    if len(text) > MAX_CHARACTERS:
        return [_broken(Position(1, 1), f"is {len(text)} characters long, at most {MAX_CHARACTERS}")]
    nodes: list[YamlNode] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # `extend` keeps the documents before an error, so that their errors are reported as well.
            nodes.extend(_compose(text))
    except TooLargeError as error:
        return [
            *_documents(nodes, kubectl),
            _broken(error.position, str(error), "put its parts into files of their own"),
        ]
    except MarkedYAMLError as error:
        return [*_documents(nodes, kubectl), _syntax(error)]
    except (YAMLError, *_PARSER_FAILS) as error:
        return [*_documents(nodes, kubectl), _unreadable(text, error)]
    return _documents(nodes, kubectl)


def _documents(nodes: list[YamlNode], kubectl: Kubectl) -> list[Document]:
    documents = [_Builder(node, kubectl=kubectl).document for node in nodes]
    # Empty documents, as after a last `---`, are no objects.
    return [document for document in documents if document.data is not None or document.faults]


def _broken(mark: Position, message: str, hint: str = "") -> Document:
    return Document(start=mark, faults=[TextProblem((), mark, message, hint)])


def _syntax(marked: Exception) -> Document:
    """Return a document with ruamel's MarkedYAMLError."""
    error = cast("Any", marked)
    # Some errors have no place of their own, only that of the text around them.
    mark = error.problem_mark or error.context_mark
    place = Position(mark.line + 1, mark.column + 1) if mark else Position(1, 1)
    problem = str(error.problem or error.context or "not YAML")
    if "maximum depth" in problem:
        return _broken(place, f"is nested deeper than {MAX_DEPTH} levels")
    if "\\t" in problem:
        return _broken(place, "a tab cannot indent YAML", "use spaces")
    opened = error.context_mark if error.problem_mark and error.context else None
    context_text = syntax.around(error.context, opened.line + 1) if opened else ""
    words, hint = syntax.plain(problem)
    return _broken(place, f"not YAML: {context_text}{words}", hint)


def _unreadable(text: str, error: Exception) -> Document:
    """Return a document with the error of a forbidden character, or of a number or escape the parser cannot read."""
    position = getattr(error, "position", None)
    if isinstance(position, int):
        before = text[:position]
        # In the first line `rfind` gives -1, so columns count from 1 there too.
        mark = Position(before.count("\n") + 1, position - before.rfind("\n"))
        return _broken(
            mark, f"the character U+{ord(text[position]):04X} may not stand in YAML", "write it as an escape"
        )
    return _broken(Position(1, 1), f"not YAML: {error}" if str(error) else "not YAML")


_PARSER_FAILS = (
    *(ValueError, ArithmeticError, AttributeError),
    *(LookupError, TypeError, AssertionError, RecursionError),
)
"""Exceptions that ruamel raises on malformed texts, beside its own errors with a mark."""


class _FullError(Exception):
    """Raised where the document exceeds MAX_VALUES or MAX_DEPTH; building stops."""


class TooLargeError(Exception):
    """Raised where a file exceeds MAX_NODES or MAX_DOCUMENTS."""

    def __init__(self, mark: RuamelMark, message: str) -> None:
        super().__init__(message)
        self.position = Position(mark.line + 1, mark.column + 1)


class RuamelMark(Protocol):
    """Type of ruamel's marks: a position in the text; line and column count from 0."""

    line: int
    column: int


class YamlNode(Protocol):
    """ruamel's node, which has no types; `value` is text, a list of nodes, or a list of pairs, by `id`."""

    id: str
    tag: object
    ctag: Any
    style: str | None
    start_mark: RuamelMark
    value: Any


def _compose(text: str) -> Iterator[YamlNode]:
    nodes = (node for node in bounded_yaml().compose_all(text) if node is not None)
    for count, node in enumerate(nodes, 1):
        if count > MAX_DOCUMENTS:
            raise TooLargeError(node.start_mark, f"holds more than {MAX_DOCUMENTS} documents")
        yield cast("YamlNode", node)


def bounded_yaml() -> Any:  # noqa: ANN401 - ruamel has no types
    """Return a parser of YAML that raises an error where a text is nested too deep or has too many nodes."""
    from ruamel.yaml import YAML  # noqa: PLC0415 - as above
    from ruamel.yaml.events import NodeEvent  # noqa: PLC0415 - as above

    reader = cast("Any", YAML(typ="safe", pure=True))
    # ruamel itself recurses, and would end in a RecursionError without a position.
    reader.max_depth = MAX_DEPTH + 1
    nodes, next_event = 0, reader.parser.get_event

    def get_event() -> object:
        nonlocal nodes
        event = next_event()
        nodes += isinstance(event, NodeEvent)
        if nodes > MAX_NODES:
            raise TooLargeError(event.start_mark, f"holds more than {MAX_NODES} keys and values")
        return event

    reader.parser.get_event = get_event
    return reader


class _Builder:
    """Turns one tree of YAML nodes into a Document."""

    def __init__(self, root: YamlNode, *, kubectl: Kubectl) -> None:
        mark = root.start_mark
        # ruamel counts lines and columns from 0, editors from 1.
        self.document = Document(start=Position(mark.line + 1, mark.column + 1))
        self._kubectl = kubectl
        # Aliases are expanded: without a limit, a few nested ones would fill the memory ("billion laughs").
        self._left = MAX_VALUES
        # The nodes on the way from the root: one that comes up again is an alias to its own parent.
        self._open: set[int] = set()
        try:
            self.document.data = self._value(root, ())
        except _FullError:
            self.document.data = None

    def _fault(self, node: YamlNode, loc: Loc, message: str, hint: str = "", *, unread: bool = False) -> None:
        self.document.faults.append(TextProblem(loc, _mark(node), message, hint, unread))

    def _spend(self, node: YamlNode, loc: Loc) -> None:
        """Count one more value; raises _FullError when there are too many, or the value is nested too deep."""
        self._left -= 1
        if self._left < 0:
            self._fault(node, loc[:2], f"holds more than {MAX_VALUES} values", "an anchor counts wherever it is used")
            raise _FullError
        if len(loc) > MAX_DEPTH:
            self._fault(node, loc[:2], f"is nested deeper than {MAX_DEPTH} levels")
            raise _FullError

    def _value(self, node: YamlNode, loc: Loc) -> JsonValue:
        self._spend(node, loc)
        # The first position stays: keys of the mapping itself come before those of a merge.
        self.document.values.setdefault(loc, _mark(node))
        if node.id == "scalar":
            return self._scalar(node, loc)
        if id(node) in self._open:
            self._fault(node, loc, "an anchor cannot hold itself")
            return None
        if str(node.tag) not in (_TAG + "map", _TAG + "seq"):
            self._fault(node, loc, f"the tag {_short(node)} means nothing here", "leave it out")
        self._open.add(id(node))
        try:
            return self._sequence(node, loc) if node.id == "sequence" else self._mapping(node, loc)
        finally:
            self._open.discard(id(node))

    def _sequence(self, node: YamlNode, loc: Loc) -> list[JsonValue]:
        return [self._value(child, (*loc, index)) for index, child in enumerate(node.value)]

    def _mapping(self, node: YamlNode, loc: Loc) -> dict[str, JsonValue]:
        mapping: dict[str, JsonValue] = {}
        merged: list[YamlNode] = []
        key_marks: dict[str, Position] = {}
        for key_node, value_node in node.value:
            if str(key_node.tag) == _TAG + "merge":
                merged.append(value_node)
                continue
            key = self._key(key_node, loc)
            if key is None:
                continue
            key_loc = (*loc, key)
            if key in key_marks:
                self._fault(
                    key_node, key_loc, f"the key is listed twice, first in line {key_marks[key].line}", "keep one"
                )
                continue
            key_marks[key] = self.document.keys[key_loc] = _mark(key_node)
            mapping[key] = self._value(value_node, key_loc)
        # Last: keys of the mapping itself win, wherever `<<` stands in it.
        for value_node in merged:
            self._merge(mapping, value_node, loc)
        return mapping

    def _merge(self, mapping: dict[str, JsonValue], node: YamlNode, loc: Loc) -> None:
        """Add the keys of a `<<` merge; keys of the mapping itself win."""
        sources: list[YamlNode] = list(node.value) if node.id == "sequence" else [node]
        for source in sources:
            # A merge counts as well: an anchor may be merged many times.
            self._spend(source, loc)
            if source.id != "mapping":
                self._fault(source, loc, "<< takes a mapping or a list of mappings")
                continue
            if id(source) in self._open:
                self._fault(source, loc, "an anchor cannot hold itself")
                continue
            self._open.add(id(source))
            for key, value in self._mapping(source, loc).items():
                mapping.setdefault(key, value)
            self._open.discard(id(source))

    def _key(self, node: YamlNode, loc: Loc) -> str | None:
        if node.id != "scalar":
            self._fault(node, loc, "a key must be a text", "a mapping's keys are texts")
            return None
        text = str(node.value)
        if str(node.tag) not in (_TAG + "str", _TAG + "timestamp"):
            self._fault(node, (*loc, text), f"the key {text or 'null'} is not a text", f'write "{text}"')
            return None
        kubectl_value = self._elsewhere(node, (*loc, text), "the key ")
        return kubectl_value or self._text(node, text, loc)

    def _elsewhere(self, node: YamlNode, loc: Loc, key: str = "") -> str:
        """Return kubectl's value where it is another one and counts, as JSON; where it may not be, it is an error.

        It can be another one for whole numbers and plain, untagged texts.
        """
        tag, text = str(node.tag).removeprefix(_TAG), str(node.value)
        # Quoted and tagged texts mean the same to both.
        plain = not node.style and not node.ctag.handle
        if not self._kubectl or not (tag == "int" or (tag == "str" and plain)):
            return ""
        kubectl_value, hint = differs(text, number=tag == "int")
        if kubectl_value and self._kubectl == "refuse":
            hint = f'write "{text}"' if key else hint
            message = f"{key}{text} is {kubectl_value} for kubectl, which reads YAML 1.1"
            value = not key
            self.document.faults.append(TextProblem(loc, _mark(node), message, hint, unread=value, elsewhere=value))
            return ""
        return kubectl_value

    def _text(self, node: YamlNode, text: str, loc: Loc) -> str:
        if _SURROGATE.search(text):
            try:  # JSON writes a character beyond the 65,536th as two escapes
                return text.encode("utf-16", "surrogatepass").decode("utf-16")
            except UnicodeDecodeError:
                self._fault(node, loc, "holds half of a surrogate pair", "write the whole character", unread=True)
                return ""
        return text

    def _scalar(self, node: YamlNode, loc: Loc) -> JsonValue:
        text, tag = str(node.value), str(node.tag).removeprefix(_TAG)
        if kubectl_value := self._elsewhere(node, loc):
            return json.loads(kubectl_value)
        if tag in ("str", "timestamp"):
            return self._text(node, text, loc)
        if tag == "null":
            return None
        if tag == "bool":
            return text.lower() in _TRUE
        if tag not in ("int", "float"):
            self._fault(node, loc, f"the tag {_short(node)} means nothing here", "leave it out", unread=True)
            return None
        number = _number(text, is_int=tag == "int")
        if number is None:
            hint = "if a text is meant, write it in quotes"
            self._fault(node, loc, f"{text[:40]} is no number that JSON can hold", hint, unread=True)
        return number


def _number(text: str, *, is_int: bool) -> int | float | None:
    """Parse a YAML number: with `is_int` an int of at most 64 characters, else a finite float. None for other texts."""
    plain = text.replace("_", "")
    try:
        if not is_int:
            value = float(plain)
            return value if math.isfinite(value) else None
        # Python takes long to convert long numbers.
        if len(plain) > 64:
            return None
        # Base 0 reads 0x and 0o but refuses a leading 0, which YAML 1.2 reads as decimal.
        return int(plain, 10 if re.fullmatch(r"[-+]?[0-9]+", plain) else 0)
    except ValueError:
        return None


def _short(node: YamlNode) -> str:
    return str(node.tag).replace(_TAG, "!!")


def _mark(node: YamlNode) -> Position:
    return Position(node.start_mark.line + 1, node.start_mark.column + 1)
