"""The process table of docs/architecture.md against the code: its classes, its programs, and who starts processes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import sources

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "architecture.md"
SOURCES = {
    **{str(p.relative_to(ROOT / "workers" / "dljob")): p for p in (ROOT / "workers" / "dljob").rglob("*.py")},
    **{str(p.relative_to(ROOT / "operator")): p for p in (ROOT / "operator").rglob("*.py")},
}
STARTS = re.compile(
    r"subprocess\.(Popen|run|call|check_call|check_output)|os\.(fork|forkpty|posix_spawnp?|system|popen|exec\w+|spawn\w+)"
    r"|pty\.(fork|spawn)|asyncio\.create_subprocess_(exec|shell)|multiprocessing\.\w+|concurrent\.futures\.ProcessPoolExecutor"
    r"|ray\.remote|ray\._private\.node\.Node|ray\.util\.placement_group\.placement_group"
)
REFERENCES = ("ray.remote", "ray._private.node.Node")
"""These start something by whatever name they are called later."""
ACTOR = re.compile(r"dljob((?:\.[a-z_0-9]+)+\.[A-Z]\w+)")
TOOLS = {"spec/generate.py"}
"""Programs of those who develop dljob."""
FORWARDS = {"runtime/launcher.py", "runtime/leave.py", "runtime/unpack.py"}
"""Old paths of programs, which stand in the commands of pods."""


def table() -> list[list[str]]:
    """The cells of the rows of the process table."""
    text = PAGE.read_text(encoding="utf-8").partition("## Processes and actors")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def quoted(column: int, pattern: str) -> set[str]:
    """What stands in backquotes in a column, where it looks so."""
    return {word for row in table() for word in re.findall(r"`([^`]+)`", row[column]) if re.fullmatch(pattern, word)}


def names_in(text: str) -> Iterator[str]:
    """The dotted names that a module calls or refers to, imports of all scopes resolved, annotations left out."""
    known: dict[str, str] = {}
    for node in sources.nodes(text):
        if isinstance(node, ast.Import):
            known |= {
                a.asname or a.name.partition(".")[0]: a.name if a.asname else a.name.partition(".")[0]
                for a in node.names
            }
        elif isinstance(node, ast.ImportFrom) and node.module:
            known |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}

    def full(node: ast.AST) -> str:
        if isinstance(node, ast.Attribute):
            return f"{full(node.value)}.{node.attr}"
        return known.get(node.id, node.id) if isinstance(node, ast.Name) else ""

    for node in sources.nodes(text):
        if isinstance(node, ast.Call):
            yield full(node.func)
        elif isinstance(node, ast.Name | ast.Attribute) and (name := full(node)) in REFERENCES:
            yield name


def starts_something(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    return ".create_resource_group(" in text or any(STARTS.fullmatch(name) for name in names_in(text))


def actor_classes(text: str) -> set[str]:
    """Classes that are given as paths to whoever makes actors, and those that are made at once."""
    made = {f".{m[1]}" for m in re.finditer(r"remote\)?\((?:[^()]|\([^()]*\))*\)\(([A-Z]\w+)\)", text)}
    paths = {
        node.value for node in sources.nodes(text) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return {m[1][1:] for path in paths if (m := ACTOR.fullmatch(path))} | made


def test_each_process_has_a_row_and_each_row_its_process() -> None:
    starters = {name for name, path in SOURCES.items() if not name.startswith("testing/") and starts_something(path)}
    assert quoted(2, r"[\w/]+\.py") == starters


def is_program(text: str) -> bool:
    """Whether a file runs as a program; the script in `dljob init` does, the file that holds it does not."""
    ends = '\nif __name__ == "__main__":'
    tests = (
        (ast.unparse(node.test) for node in ast.parse(text).body if isinstance(node, ast.If)) if ends in text else ()
    )
    return "__name__ == '__main__'" in tests


def test_each_program_has_a_row() -> None:
    programs = {
        name
        for name, path in SOURCES.items()
        if path.name == "__main__.py" or is_program(path.read_text(encoding="utf-8"))
    }
    named = quoted(1, r"[\w/]+\.py")
    assert programs - TOOLS - FORWARDS <= named
    assert named <= SOURCES.keys()


def test_each_actor_has_a_row() -> None:
    found = {
        cls
        for name, path in SOURCES.items()
        if name.startswith("runtime/")
        for cls in actor_classes(path.read_text(encoding="utf-8"))
    }
    kinds = re.findall(
        r'"dljob\.(runtime\.[\w.]+)", "(\w+)"', SOURCES["runtime/rpc/storage_actors.py"].read_text(encoding="utf-8")
    )
    found |= {f"{module}.{cls}" for module, cls in kinds}
    named = quoted(1, r"[\w.]+\.[A-Z]\w+")
    short = {cls for cls in found if cls.startswith(".")}
    assert {cls for cls in found if not cls.startswith(".")} <= named
    assert {cls for cls in short if not any(name.endswith(cls) for name in named)} == set()
    for name in named:
        module, _, cls = name.rpartition(".")
        text = SOURCES[f"{module.replace('.', '/')}.py"].read_text(encoding="utf-8")
        assert re.search(rf"^class {cls}\b", text, re.MULTILINE), name
