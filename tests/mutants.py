"""Plant faults in the product and see which tests catch them: `python tests/mutants.py [--run] [--seed 1]`.

Two faults are drawn in each room, uniformly over its statements; the same seed draws the same ones from the same
sources. A row of the table that is noted as `equivalent` is replaced by the room's next draw. Alone it lists them.
With `--run` each is put into a copy of HEAD in turn, and of the unit tests that its file can reach the 60 nearest files
run without slow tests, those that name its function first, to the first failure. That test is run alone twice: only one
that fails again with the fault and passes without it has caught it. The results go to `tests/planted-faults.jsonl`, a
line each, and from there to `tests/planted-faults.md`; one that is caught or equivalent there is planted again only
with `--anew`. A row of an earlier draw stays while its statement stands.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import multiprocessing
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.util import cache_from_source
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any, cast

import forked_pytest
from selection.choice import Rooms
from selection.graph import Graph

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TABLE = HERE / "planted-faults.jsonl"
PAGE = HERE / "planted-faults.md"
BOUNDS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
}
SIGNS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
LOGS = re.compile(r"^(await )?(self\.)?_?(log|logger|logging|LOG|warnings)\.\w+\(")
HEADS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
DROPPED = (ast.Expr, ast.Assign, ast.AugAssign, ast.Raise, ast.Delete, ast.Break, ast.Continue, ast.Assert)
LIMIT_S, ALONE_S = 600, 200  # a test has 120 s; what it hangs in may hang its end, too
OPTIONS = ("-v", "-x", "-p", "no:cacheprovider", "--hypothesis-seed=0", "-m", "not slow and not live")
PER_ROOM = 2
CHUNKS = (0, 2, 6, 12, 60)
"""How many tests are run at first, and then: most faults are caught by the files that name them."""

Row = dict[str, Any]
"""A line of the table."""
Key = tuple[str, str, str, str]
"""File, function, operator and diff."""


@dataclass(frozen=True)
class Fault:
    """One change of one statement."""

    room: str
    file: str
    line: int
    function: str
    operator: str
    start: int  # offsets into the file's bytes
    end: int
    text: str

    @property
    def place(self) -> str:
        """Where it is, and what is done there."""
        return f"{self.file}:{self.line} {self.operator} {self.text}"

    def key(self, source: bytes) -> Key:
        """What it is known by in the table, wherever its line is by now."""
        return self.file, self.function, self.operator, self.diff(source)

    def planted(self, source: bytes) -> bytes:
        """The file with it."""
        return source[: self.start] + self.text.encode() + source[self.end :]

    def diff(self, source: bytes) -> str:
        """What it changes, as `-` and `+` lines."""
        first, last = source.rfind(b"\n", 0, self.start) + 1, source.find(b"\n", self.end)
        after = source[first : self.start] + self.text.encode() + source[self.end : last]
        both = source[first:last].decode().splitlines(), after.decode().splitlines()
        found = difflib.unified_diff(*both, n=0, lineterm="")
        return "\n".join(line for line in found if not line.startswith(("---", "+++", "@@")))


@dataclass(frozen=True)
class Drawn:
    """A statement of the product."""

    room: str
    file: str
    node: ast.stmt
    source: bytes
    lines: tuple[int, ...]  # where each line starts
    function: str
    typing: bool

    def skipped(self) -> str:
        """Why no fault is planted in it; empty where one is."""
        text = self.text(self.node)
        if self.typing or (isinstance(self.node, ast.AnnAssign) and self.node.value is None):
            return "for type checkers alone"
        if LOGS.match(text):
            return "writes a log line"
        return "" if list(self.faults()) else "no operator fits"

    def text(self, node: ast.AST) -> str:
        """A node's source."""
        start, end = self.span(node)
        return self.source[start:end].decode()

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Where a node is, in bytes."""
        assert isinstance(node, ast.expr | ast.stmt)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.lines[node.lineno - 1] + node.col_offset, self.lines[node.end_lineno - 1] + node.end_col_offset

    def _fault(self, operator: str, node: ast.AST, text: str) -> Fault:
        start, end = self.span(node)
        return Fault(self.room, self.file, getattr(node, "lineno", 0), self.function, operator, start, end, text)

    def own(self) -> Iterator[ast.expr]:
        """The expressions of the statement itself, not those of statements in it, nor annotations and f-strings."""
        todo = [
            value
            for name, value in ast.iter_fields(self.node)
            if name not in ("annotation", "returns", "decorator_list")
        ]
        while todo:
            value = todo.pop()
            if isinstance(value, list):
                todo.extend(cast("list[ast.AST]", value))
            elif isinstance(value, ast.withitem | ast.keyword | ast.comprehension):
                todo.extend(child for _, child in ast.iter_fields(value))
            elif isinstance(value, ast.expr) and not isinstance(value, ast.JoinedStr):
                yield value
                todo.extend(child for _, child in ast.iter_fields(value))

    def faults(self) -> Iterator[Fault]:
        """Each fault that this statement can have."""
        node = self.node
        if isinstance(node, HEADS):
            return
        if isinstance(node, ast.If | ast.While) and not _constant(node.test):
            yield self._fault("negate", node.test, f"not ({self.text(node.test)})")
        if isinstance(node, DROPPED):
            yield self._fault("drop", node, "pass")
        if isinstance(node, ast.Return) and node.value is not None and not _constant(node.value, None):
            yield self._fault("return None", node, "return None")
        for each in self.own():
            yield from self._in(each)

    def _in(self, each: ast.expr) -> Iterator[Fault]:
        if isinstance(each, ast.IfExp):
            yield self._fault("negate", each.test, f"not ({self.text(each.test)})")
        elif isinstance(each, ast.Compare) and len(each.ops) == 1 and type(each.ops[0]) in BOUNDS:
            left, right = self.text(each.left), self.text(each.comparators[0])
            whole, sign = self.text(each), SIGNS[type(each.ops[0])]
            if whole == f"{left} {sign} {right}":
                yield self._fault("bound", each, f"{left} {BOUNDS[type(each.ops[0])]} {right}")
        elif isinstance(each, ast.BoolOp):
            old, new = ("and", "or") if isinstance(each.op, ast.And) else ("or", "and")
            parts = [self.text(value) for value in each.values]
            if self.text(each) == f" {old} ".join(parts):
                yield self._fault("and/or", each, f" {new} ".join(parts))
        elif (
            isinstance(each, ast.Constant) and isinstance(each.value, int | float) and not isinstance(each.value, bool)
        ):
            yield self._fault("off by one", each, repr(each.value + 1))


def _constant(node: ast.expr, *values: object) -> bool:
    return isinstance(node, ast.Constant) and (not values or node.value in values)


def statements(rooms: Rooms) -> list[Drawn]:
    """All statements of the product but imports, definitions' heads and docstrings."""
    found: list[Drawn] = []
    folders = sorted(((folder, room) for room, folder in rooms.names.items()), key=lambda each: -len(each[0]))
    for file in rooms.graph.files:
        room = next((room for folder, room in folders if file.startswith(f"{folder}/")), None)
        if room is None or not file.endswith(".py"):
            continue
        source = (rooms.graph.root / file).read_bytes()
        lines, at = [0], 0
        for line in source.splitlines(keepends=True):
            at += len(line)
            lines.append(at)
        for node, function, typing in _all(ast.parse(source)):
            found.append(Drawn(room, file, node, source, tuple(lines), function, typing))
    return found


def _all(node: ast.AST, function: str = "", *, typing: bool = False) -> Iterator[tuple[ast.stmt, str, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom | ast.Pass | ast.Global | ast.Nonlocal):
            continue
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue
        inside = typing or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
        if isinstance(child, ast.stmt) and not isinstance(child, HEADS):
            yield child, function, inside
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            name = child.name if isinstance(child, HEADS) else ""
            yield from _all(child, ".".join(filter(None, (function, name))), typing=inside)


def draw(found: Sequence[Drawn], seed: int, equivalent: frozenset[Key]) -> tuple[list[Fault], list[str]]:
    """Two faults of each room and those they replace, and why statements that were drawn have none."""
    by_room: dict[str, list[Drawn]] = defaultdict(list)
    for each in found:
        by_room[each.room].append(each)
    taken: list[Fault] = []
    skipped: list[str] = []
    for room in sorted(by_room):
        chance = random.Random(f"{seed} {room}")  # noqa: S311 - to be drawn again, whatever changes in other rooms
        wanted = PER_ROOM
        for each in chance.sample(by_room[room], len(by_room[room])):
            if why := each.skipped():
                skipped.append(f"{each.file}:{each.node.lineno}: {why}")
                continue
            taken.append(chance.choice(list(each.faults())))
            wanted -= taken[-1].key(each.source) not in equivalent
            if not wanted:
                break
    return taken, skipped


def standing(found: Sequence[Drawn], rows: Mapping[Key, Row]) -> list[Fault]:
    """The faults of the table whose statements are still there."""
    files = {file for file, *_ in rows}
    return [f for each in found if each.file in files for f in each.faults() if f.key(each.source) in rows]


@contextmanager
def copy_of_head() -> Generator[Path]:
    """A worktree of HEAD, removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        scratch = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", scratch], cwd=ROOT, check=True)
        try:
            yield scratch
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", scratch], cwd=ROOT, check=True)


@dataclass
class Runner:
    """Runs tests in the copy, with a fault or without."""

    scratch: Path
    rooms: Rooms

    @cached_property
    def texts(self) -> dict[str, str]:
        """The unit tests, by their paths."""
        tests = [*self.rooms.of_tier("unit"), *self.rooms.of_tier("replay")]
        return {name: (self.scratch / name).read_text(encoding="utf-8") for name in tests}

    def order(self, fault: Fault) -> list[str]:
        """The tests that its file can reach, the likeliest to catch it first."""
        ours = set(self.rooms.unit(fault.room))
        stem = PurePosixPath(fault.file).stem.strip("_")
        name = fault.function.rpartition(".")[2].strip("_")
        module = fault.file.removesuffix(".py").replace("/", ".").partition(".")[2]

        def rank(test: str) -> tuple[int, str]:
            text = self.texts[test]
            named = bool(name) and re.search(rf"\b{re.escape(name)}\b", text) is not None
            imported = module in text or re.search(rf"\b{re.escape(stem)}\b", text) is not None
            score = 4 * (stem in PurePosixPath(test).stem) + 3 * (named and imported) + named + imported
            return -(score + 4 * (test in ours)) + 100 * test.startswith("tests/unit/house/"), test

        return sorted(ours | {test for test in self.texts if fault.file in self.rooms.graph.reach(test)}, key=rank)

    def pytest(self, *words: str, limit_s: float = LIMIT_S) -> str:
        """The first test that fails or does not end, or nothing."""
        code, printed = forked_pytest.run(self.scratch, [*OPTIONS, *words], limit_s)
        if code in (0, 5):  # all passed; none was collected
            return ""
        failed = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", printed, re.MULTILINE)
        begun = re.findall(r"^(tests/[^ ]+::.+?) ?$", printed, re.MULTILINE)
        return failed[1] if failed else begun[-1] if begun else f"exit {code}: {printed[-300:]}"

    def planted(self, fault: Fault, *words: str, limit_s: float = LIMIT_S) -> str:
        """The same, with the fault."""
        file = self.scratch / fault.file
        source = file.read_bytes()
        try:
            self._write(file, fault.planted(source))
            return self.pytest(*words, limit_s=limit_s)
        finally:
            self._write(file, source)

    def run(self, fault: Fault) -> Row:
        """The line of the table."""
        source, begin = (self.scratch / fault.file).read_bytes(), time.monotonic()
        tests, ignored, by = self.order(fault), list[str](), ""
        for start, end in pairwise(CHUNKS):
            while not by and (chunk := tests[start:end]):
                failed = self.planted(fault, *chunk, *(f"--deselect={each}" for each in ignored))
                if not failed:
                    break
                if not self.pytest(failed, limit_s=ALONE_S) and self.planted(fault, failed, limit_s=ALONE_S):
                    by = failed
                elif failed in ignored:
                    break
                else:
                    ignored.append(failed)
        made = {key: value for key, value in asdict(fault).items() if key not in ("start", "end", "text")}
        seconds = round(time.monotonic() - begin)
        return {
            **made,
            "diff": fault.diff(source),
            "caught": bool(by),
            "by": by,
            "seconds": seconds,
            "failing anyway": ignored,
        }

    def _write(self, file: Path, text: bytes) -> None:
        file.write_bytes(text)
        Path(cache_from_source(str(file))).unlink(missing_ok=True)  # by size and second it may seem the same


def work(runner: Runner, faults: Sequence[Fault]) -> None:
    """Try these faults, and add each to the table as soon as it is known who catches it."""
    for each in faults:
        made = runner.run(each)
        with TABLE.open("a", encoding="utf-8") as table:
            table.write(json.dumps(made, ensure_ascii=False) + "\n")
        found = f"caught by {made['by']}" if made["caught"] else "NOT CAUGHT"
        print(f"{each.place}: {found}, {made['seconds']} s, {made['failing anyway'] or ''}", flush=True)


def run_all(faults: Sequence[Fault], rooms: Rooms, jobs: int) -> None:
    """Try these faults side by side; each job has a copy of HEAD."""
    forked_pytest.prepare()
    context = multiprocessing.get_context("fork")
    with ExitStack() as stack:
        runners = [Runner(stack.enter_context(copy_of_head()), rooms) for _ in range(jobs)]
        workers = [context.Process(target=work, args=(each, faults[i::jobs])) for i, each in enumerate(runners)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


def known() -> dict[Key, Row]:
    """The lines of the table, by fault; the last of each."""
    lines = TABLE.read_text(encoding="utf-8").splitlines() if TABLE.exists() else []
    return {(row["file"], row["function"], row["operator"], row["diff"]): row for row in map(json.loads, lines)}


def page(rows: Sequence[Row], skipped: Sequence[str], seed: int) -> str:
    """The table for readers."""
    missed = [row for row in rows if not row["caught"]]
    same = sum(_equivalent(row) for row in missed)
    rooms = {str(row["room"]) for row in rows}
    head = [
        "# Planted faults",
        "",
        "Made by `python tests/mutants.py --run`; notes are added in `planted-faults.jsonl`. Each row is one changed",
        f"statement. {len(rows)} faults in {len(rooms)} rooms: seed {seed} drew {PER_ROOM} in each, the others are of",
        f"earlier draws. {len(skipped)} statements were drawn and replaced by the next, since they only write a log",
        "line, are for type checkers alone, or no operator fits them.",
        "",
        f"A fault was tried against the {CHUNKS[-1]} nearest files of unit tests that can reach it, without the tests",
        "marked `slow`; the test named fails with the fault and passes without it.",
        "",
        f"{len(rows) - len(missed)} of {len(rows)} were caught; {len(missed)} were not, {same} of these are noted as",
        "equivalent: they have no effect that anyone could see, and were replaced by the next draw.",
        "",
        "| fault | change | caught by | s | note |",
        "| --- | --- | --- | --- | --- |",
    ]
    return "\n".join([*head, *map(_row, rows), ""])


def _equivalent(row: Row) -> bool:
    return str(row.get("note", "")).startswith("equivalent")


def _row(made: Row) -> str:
    lines = [line[1:].strip() for line in str(made["diff"]).splitlines() if line.startswith("+")]
    change = " ".join(lines)[:90].replace("|", "\\|").replace("`", "'")
    by = str(made["by"]).removeprefix("tests/").replace("|", "\\|")[:110]
    where = f"{made['file']}:{made['line']}".removeprefix("workers/dljob/").removeprefix("operator/")
    caught = by if made["caught"] else "**nothing**"
    fault = f"{where} {made['function']} ({made['operator']})".replace("  ", " ")
    return f"| {fault} | `{change}` | {caught} | {made['seconds']} | {made.get('note', '')} |"


def main(argv: Sequence[str]) -> int:
    """List the faults, or run those not in the table yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--anew", action="store_true", help="also those that are caught in the table")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--room", help="only those of this room")
    asked = parser.parse_args(argv)
    rooms, rows = Rooms(Graph()), known()
    found = statements(rooms)
    sources = {each.file: each.source for each in found}
    drawn, skipped = draw(found, asked.seed, frozenset(key for key, row in rows.items() if _equivalent(row)))
    faults = {each.key(sources[each.file]): each for each in (*standing(found, rows), *drawn)}
    mine = {key: each for key, each in faults.items() if asked.room in (None, each.room)}
    if not asked.run:
        for (*_, diff), each in mine.items():
            print(each.place, f"[{each.room}] {each.function}", diff, sep="\n")
        print(*(f"skipped: {line}" for line in skipped), f"{len(mine)} faults, seed {asked.seed}", sep="\n")
        return 0
    done = {key for key, row in rows.items() if (row["caught"] or _equivalent(row)) and not asked.anew}
    run_all([each for key, each in mine.items() if key not in done], rooms, asked.jobs)
    rows = known()
    table = [rows[key] | {"line": each.line} for key, each in faults.items() if key in rows]
    table.sort(key=lambda row: (row["room"], row["file"], row["line"]))
    TABLE.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in table), encoding="utf-8")
    PAGE.write_text(page(table, skipped, asked.seed), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
