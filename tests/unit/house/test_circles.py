"""No files of the product import each other in a circle, so that each can be read after those that it imports.

Imports inside functions and those for type checkers alone count: a reader follows them, too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[3]
HOMES = (ROOT / "workers", ROOT / "operator")


def modules() -> dict[str, str]:
    """Return the text of each module of the product by its dotted name; a package goes by the name of its folder."""
    found: dict[str, str] = {}
    for home in HOMES:
        for path in home.rglob("*.py"):
            name = ".".join(path.relative_to(home).with_suffix("").parts).removesuffix(".__init__")
            found[name] = path.read_text(encoding="utf-8")
    return found


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield all statements, those inside others too; expressions hold no imports and are left out, for speed."""
    for statement in body:
        yield statement
        for inner in ("body", "orelse", "finalbody"):
            yield from statements(getattr(statement, inner, []))
        for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            yield from statements(part.body)


def imported(text: str) -> Iterator[str]:
    """Yield the names that a module may import. `from package import name` counts as an import of the package, too."""
    for statement in statements(ast.parse(text).body):
        if isinstance(statement, ast.Import):
            yield from (each.name for each in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            assert statement.level == 0, "the product has no relative imports"
            yield str(statement.module)
            yield from (f"{statement.module}.{each.name}" for each in statement.names)


def circle(sources: Mapping[str, str]) -> list[str]:
    """Return the modules of one circle, each of which imports the next and the last one the first; empty: none."""
    arrows = {name: {other for other in imported(text) if other in sources} - {name} for name, text in sources.items()}
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return error.args[1][:0:-1]
    return []


def test_no_files_import_each_other_in_a_circle() -> None:
    sources = modules()
    assert len(sources) > 500, "the product has many modules"
    found = circle(sources)
    assert not found, " imports ".join([*found, found[0]])


def test_imports_in_functions_and_for_type_checkers_count() -> None:
    in_function = {"a.one": "def f():\n    with g:\n        from a.two import x\n", "a.two": "import a.three\n"}
    for_types = "if TYPE_CHECKING:\n    pass\nelse:\n    from a.one import y\n"
    found = circle({**in_function, "a.three": for_types})
    assert sorted(found) == ["a.one", "a.three", "a.two"]
    assert found[(found.index("a.one") + 1) % 3] == "a.two", "in the order of the imports"
    assert circle({**in_function, "a.three": "import b\n"}) == []


def test_a_submodule_that_imports_from_its_package_is_in_a_circle_with_it() -> None:
    face = {"a": "from a.one import x\n", "a.two": ""}
    assert sorted(circle({**face, "a.one": "from a import two\n"})) == ["a", "a.one"]
    assert circle({**face, "a.one": "from a.two import y\n"}) == []
    caught = "try:\n    pass\nexcept E:\n    match x:\n        case 1:\n            from a import two\n"
    assert sorted(circle({**face, "a.one": caught})) == ["a", "a.one"]
