"""`python docs/generate.py [--check]`: write the pages of docs/reference that are made from the code.

docs/references.py makes those for users. This module draws the rooms and their import arrows into rooms.md: a room is a
package or a module directly below `dljob`, or the package `dljob_operator`. Imports inside functions count; imports
only for type checkers do not. With --check the pages are compared instead of written; the exit code is 1 when one is
out of date.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grimp
import references

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/reference/rooms.md"
PRODUCT, OPERATOR = "dljob", "dljob_operator"
LOOSE = "(its own modules)"
HEAD = """# Rooms

This page shows developers which package imports which: the arrows are the imports in the code. `make house` makes
it, and `make verify` fails when it is out of date. [Architecture](../architecture.md) describes rooms and processes.

"""


@dataclass(slots=True)
class Room:
    """One room: the first line of its docstring, its modules, and the rooms that they import."""

    name: str
    about: str
    modules: list[str] = field(default_factory=list[str])
    arrows: set[str] = field(default_factory=set[str])


def room_of(module: str) -> str:
    """Return the room of a module: the package below `dljob`, or the operator's package."""
    parts = module.split(".")
    return parts[1] if parts[0] == PRODUCT and len(parts) > 1 else parts[0]


def inner_of(module: str, room: str) -> str:
    """Return the package inside a room that holds a module; modules directly in the room share `LOOSE`."""
    parts = module.split(".")
    below = parts[1:] if room == OPERATOR else parts[2:]
    return below[0] if len(below) > 1 or (below and _is_package(module)) else LOOSE


def measured(graph: grimp.ImportGraph, modules: Iterable[str], split: Mapping[str, str]) -> dict[str, Room]:
    """Return the rooms of modules and their imports; `split` maps each module to the name of its room."""
    rooms: dict[str, Room] = {}
    for module in sorted(modules):
        room = rooms.setdefault(split[module], Room(split[module], ""))
        room.modules.append(module)
        imported = graph.find_modules_directly_imported_by(module)
        room.arrows |= {split[other] for other in imported if other in split} - {room.name}
    return rooms


def floors(rooms: Mapping[str, Room]) -> list[list[str]]:
    """Return the rooms in layers from the top: each room is above all that it imports; a cycle shares a layer."""
    height: dict[str, int] = dict.fromkeys(rooms, 0)
    for _ in rooms:  # longest paths; in a cycle they would grow for ever, so there are as many rounds as rooms
        for name, room in rooms.items():
            below = [height[other] + 1 for other in room.arrows if name not in rooms[other].arrows]
            height[name] = max([height[name], *below])
    return [sorted(n for n in rooms if height[n] == floor) for floor in sorted(set(height.values()), reverse=True)]


def drawing(rooms: Mapping[str, Room]) -> list[str]:
    """Return the rooms and arrows for mermaid, without arrows that a longer path implies; the table has all."""
    lines = ["```mermaid", "flowchart TD"]
    named = [name for floor in floors(rooms) for name in floor]
    lines += [f'  {_id(name)}["{name}"]' for name in named]
    for name, room in sorted(rooms.items()):
        lines += [f"  {_id(name)} --> {_id(other)}" for other in sorted(room.arrows) if not _longer(rooms, name, other)]
    return [*lines, "```", ""]


def table(rooms: Mapping[str, Room]) -> list[str]:
    """Return the rooms from the top down, with all their arrows, as a table."""
    lines = ["| room | purpose | files | imports |", "| --- | --- | --- | --- |"]
    for floor in floors(rooms):
        for name in floor:
            room = rooms[name]
            lines.append(f"| {name} | {room.about} | {len(room.modules)} | {', '.join(sorted(room.arrows)) or '-'} |")
    return [*lines, ""]


def page() -> str:
    """Return the text of the page."""
    graph = grimp.build_graph(PRODUCT, OPERATOR, exclude_type_checking_imports=True, cache_dir=None)
    modules = [module for module in graph.modules if module != PRODUCT]
    rooms = measured(graph, modules, {module: room_of(module) for module in modules})
    for room in rooms.values():
        room.about = _about(room.name if room.name == OPERATOR else f"{PRODUCT}.{room.name}")
    text = [*drawing(rooms), *table(rooms)]
    for name, room in sorted(rooms.items()):
        split = {module: inner_of(module, name) for module in room.modules}
        inner = measured(graph, room.modules, split)
        if len(inner) > 1:
            base = name if name == OPERATOR else f"{PRODUCT}.{name}"
            for one in inner.values():
                one.about = "" if one.name == LOOSE else _about(f"{base}.{one.name}")
            text += [f"## Inside {name}", "", *table(inner)]
    return HEAD + "\n".join(text).rstrip() + "\n"


def _longer(rooms: Mapping[str, Room], name: str, other: str) -> bool:
    """Return whether another path leads from `name` to `other`, through a room between them."""
    seen, todo = set[str](), [near for near in rooms[name].arrows if near != other]
    while todo:
        near = todo.pop()
        if near == other:
            return True
        if near not in seen and near != name:
            seen.add(near)
            todo += rooms[near].arrows
    return False


def _id(name: str) -> str:
    return name.strip("()").replace(" ", "_")


def _path(module: str) -> Path:
    found = importlib.util.find_spec(module)
    assert found is not None and found.origin is not None, module  # noqa: S101, PT018 - grimp has just read it
    return Path(found.origin)


def _is_package(module: str) -> bool:
    return _path(module).name == "__init__.py"


def _about(module: str) -> str:
    """Return the first line of a module's docstring."""
    said = ast.get_docstring(ast.parse(_path(module).read_text(encoding="utf-8"))) or ""
    return said.partition("\n")[0].replace("|", "\\|")


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or with --check compare them. Return 0; 1 when one is out of date; 2 for wrong arguments."""
    if list(arguments) not in ([], ["--check"]):
        sys.stderr.write(f"unknown arguments {' '.join(arguments)}: only --check is known\n")
        return 2
    stale = [(path, text) for path, text in generated().items() if _present(ROOT / path) != text]
    for path, text in stale:
        if arguments:
            sys.stderr.write(f"{path} is out of date: run make house\n")
        else:
            (ROOT / path).write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {path}\n")
    return 1 if stale and arguments else 0


def generated() -> dict[str, str]:
    """Return path -> text of each page."""
    return {PAGE: page(), **references.generated()}


def _present(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
