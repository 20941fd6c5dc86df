"""Plant faults in the product and see which tests catch them: `python tests/mutants.py [--run] [--seed 1]`.

Faults are drawn uniformly over the product's statements, after two for each room; the same seed draws the same ones
from the same sources. Alone it lists them. With `--run` each is put into a copy of HEAD in turn, the unit tests of its
room run to their first failure, then all other unit tests that its file can reach, with `--tiers` Ray's and Kubernetes'
too. What fails is run once more without the fault: only a test that passes then has caught it. The results go to
`tests/planted-faults.jsonl`, a line each, and from there to `tests/planted-faults.md`; those there are not run again.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import cache_from_source
from pathlib import Path

from selection.choice import Rooms
from selection.graph import Graph
from tiers import isolated

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TABLE = HERE / "planted-faults.jsonl"
PAGE = HERE / "planted-faults.md"
BOUNDS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="}
SIGNS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
LOGS = re.compile(r"^(await )?(self\.)?_?(log|logger|logging|LOG|warnings)\.\w+\(")
HEADS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
DROPPED = (ast.Expr, ast.Assign, ast.AugAssign, ast.Raise, ast.Delete, ast.Break, ast.Continue, ast.Assert)
LIMIT_S = 900


@dataclass(frozen=True)
class Fault:
    """One change of one statement."""

    room: str
    file: str
    line: int
    operator: str
    start: int  # offsets into the file's bytes
    end: int
    text: str

    @property
    def id(self) -> str:
        """What it is called in the table: a place and what is done there."""
        return f"{self.file}:{self.line} {self.operator} {self.text}"

    def planted(self, source: bytes) -> bytes:
        """The file with it."""
        return source[: self.start] + self.text.encode() + source[self.end :]

    def diff(self, source: bytes) -> str:
        """What it changes, as `-` and `+` lines."""
        both = [each.decode().splitlines() for each in (source, self.planted(source))]
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
        return Fault(self.room, self.file, getattr(node, "lineno", 0), operator, start, end, text)

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
                todo.extend(value)
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
        elif isinstance(each, ast.Constant) and type(each.value) in (int, float):
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
        source = (ROOT / file).read_bytes()
        lines, at = [0], 0
        for line in source.splitlines(keepends=True):
            at += len(line)
            lines.append(at)
        for node, typing in _all(ast.parse(source), typing=False):
            found.append(Drawn(room, file, node, source, tuple(lines), typing))
    return found


def _all(node: ast.AST, *, typing: bool) -> Iterator[tuple[ast.stmt, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom | ast.Pass | ast.Global | ast.Nonlocal):
            continue
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue
        inside = typing or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
        if isinstance(child, ast.stmt) and not isinstance(child, HEADS):
            yield child, inside
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _all(child, typing=inside)


def draw(found: Sequence[Drawn], seed: int, count: int) -> tuple[list[Fault], list[str]]:
    """The faults, the first of each room first, and why statements that were drawn have none."""
    chance = random.Random(seed)  # noqa: S311 - to be drawn again
    by_room: dict[str, list[Drawn]] = defaultdict(list)
    for each in found:
        by_room[each.room].append(each)
    taken: dict[tuple[str, int], Fault] = {}
    skipped: list[str] = []

    def one(among: Sequence[Drawn]) -> None:
        for each in chance.sample(among, len(among)):
            place = (each.file, each.node.lineno)
            if place in taken:
                continue
            if why := each.skipped():
                skipped.append(f"{each.file}:{each.node.lineno}: {why}")
                continue
            taken[place] = chance.choice(list(each.faults()))
            return

    for _ in range(2):
        for room in sorted(by_room):
            one(by_room[room])
    while len(taken) < count:
        one(found)
    return list(taken.values()), skipped


@contextmanager
def copy_of_head() -> Iterator[Path]:
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
    tiers: bool = False

    def pytest(self, tests: Sequence[str], *options: str, prefix: Sequence[str] = ()) -> tuple[str, str]:
        """The first test that fails, or nothing; and the end of what was printed."""
        path = os.pathsep.join(str(self.scratch / each) for each in ("workers", "operator"))
        env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        words = [*prefix, sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
        try:
            done = subprocess.run(
                [*words, *options, *tests],
                cwd=self.scratch,
                env=env,
                capture_output=True,
                text=True,
                check=False,
                timeout=LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            return f"{LIMIT_S} s without an end", ""
        if done.returncode in (0, 5):  # all passed; none was collected
            return "", ""
        failed = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
        return failed[1] if failed else f"exit {done.returncode}", (done.stdout + done.stderr)[-1500:]

    def stages(self, fault: Fault) -> Iterator[tuple[str, list[str], list[str], list[str]]]:
        """Which tests are run for it, in order: the tier, prefix, options, files."""
        first = self.rooms.unit(fault.room)
        yield "unit of the room", [], ["-m", "not slow or live"], first
        reached = [test for test in self.rooms.tests if fault.file in self.rooms.graph.reach(test)]
        rest = [test for test in reached if test.startswith(("tests/unit/", "tests/replay/")) and test not in first]
        yield "unit", [], ["-m", "not slow or live", "-n", "2", "--dist", "worksteal"], rest
        if self.tiers:
            yield "slow", [], ["-m", "slow and not live", "--timeout=1200"], [*first, *rest]
            yield "ray", isolated(), ["--timeout=300"], [test for test in reached if test.startswith("tests/ray/")]
            yield "kube", [], ["-m", "kube"], [test for test in reached if test.startswith("tests/kube/")]

    def run(self, fault: Fault) -> dict[str, object]:
        """Plant it, run the tests to the first failure, take it out; the line of the table."""
        file = self.scratch / fault.file
        source, begin = file.read_bytes(), time.monotonic()
        by, tier, ignored = "", "", []
        for stage, prefix, options, tests in self.stages(fault):
            while tests and not by:
                deselected = [f"--deselect={each}" for each in ignored]
                try:
                    self._write(file, fault.planted(source))
                    failed, _ = self.pytest(tests, *options, *deselected, prefix=prefix)
                finally:
                    self._write(file, source)
                if not failed:
                    break
                if "::" in failed and failed not in ignored and self.pytest([failed], prefix=prefix)[0] == failed:
                    ignored.append(failed)  # it fails without the fault
                    continue
                by, tier = failed, stage
            if by:
                break
        made = asdict(fault) | {"diff": fault.diff(source), "caught": bool(by), "by": by, "tier": tier}
        made = {key: value for key, value in made.items() if key not in ("start", "end", "text")}
        return {"id": fault.id, **made, "seconds": round(time.monotonic() - begin), "failing anyway": ignored}

    def _write(self, file: Path, text: bytes) -> None:
        file.write_bytes(text)
        Path(cache_from_source(str(file))).unlink(missing_ok=True)  # by size and second it may seem the same


def known() -> dict[str, dict[str, object]]:
    """The lines of the table, by fault."""
    lines = TABLE.read_text(encoding="utf-8").splitlines() if TABLE.exists() else []
    return {made["id"]: made for made in map(json.loads, lines)}


def page(faults: Sequence[Fault], skipped: Sequence[str], seed: int) -> str:
    """The table for readers."""
    done = known()
    rows = [done[fault.id] for fault in faults if fault.id in done]
    rows += [row for key, row in done.items() if key not in {fault.id for fault in faults}]
    missed = [row for row in rows if not row["caught"]]
    same = sum(str(row.get("note", "")).startswith("equivalent") for row in missed)
    without = sorted({fault.room for fault in faults} - {str(row["room"]) for row in rows})
    head = [
        "# Planted faults",
        "",
        "Made by `python tests/mutants.py --run`; notes are added in `planted-faults.jsonl`. Each row is one changed",
        f"statement. Seed {seed}: {len(faults)} faults drawn, at least two a room, of which {len(rows)} were run,",
        f"in the order of the draw. Rooms of which none was run: {', '.join(without) or 'none'}.",
        "",
        "A fault was tried against the unit tests of its room, then against all unit tests its file can reach,",
        "without those marked `slow` alone; the Ray and Kubernetes tiers were run only where the column says so.",
        "",
        f"{len(rows) - len(missed)} of {len(rows)} were caught; {len(missed)} were not, {same} of these are noted as",
        f"without any effect. {len(skipped)} statements were drawn and replaced by the next, since they only write",
        "a log line, are for type checkers alone, or no operator fits them.",
        "",
        "| fault | change | caught by | s | note |",
        "| --- | --- | --- | --- | --- |",
    ]
    return "\n".join([*head, *map(_row, rows), ""])


def _row(made: dict[str, object]) -> str:
    lines = [line[1:].strip() for line in str(made["diff"]).splitlines() if line.startswith("+")]
    change = " ".join(lines)[:90].replace("|", "\\|").replace("`", "'")
    by = str(made["by"]).removeprefix("tests/").replace("|", "\\|")[:110]
    where = f"{made['file']}:{made['line']}".removeprefix("workers/dljob/").removeprefix("operator/")
    caught = f"{by} ({made['tier']})" if made["caught"] else "**nothing**"
    return f"| {where} ({made['operator']}) | `{change}` | {caught} | {made['seconds']} | {made.get('note', '')} |"


def main(argv: Sequence[str]) -> int:
    """List the faults, or run those not in the table yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60, help="at least; two a room may be more")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--tiers", action="store_true", help="after the unit tests the slow, Ray's and Kubernetes'")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no other fault after these")
    parser.add_argument("--room", help="only those of this room")
    asked = parser.parse_args(argv)
    rooms = Rooms(Graph())
    faults, skipped = draw(statements(rooms), asked.seed, asked.count)
    mine = [each for each in faults if asked.room in (None, each.room)]
    if not asked.run:
        for each in mine:
            print(
                f"{each.file}:{each.line} [{each.operator}] {each.room}\n{each.diff((ROOT / each.file).read_bytes())}"
            )
        print(*(f"skipped: {line}" for line in skipped), f"{len(mine)} faults, seed {asked.seed}", sep="\n")
        return 0
    until = time.monotonic() + asked.minutes * 60
    with copy_of_head() as scratch:
        runner = Runner(scratch, rooms, asked.tiers)
        for each in mine:
            if each.id in known() or time.monotonic() > until:
                continue
            made = runner.run(each)
            with TABLE.open("a", encoding="utf-8") as table:
                table.write(json.dumps(made, ensure_ascii=False) + "\n")
            print(
                f"{'caught' if made['caught'] else 'NOT CAUGHT'} {each.id} {made['by']} {made['seconds']} s", flush=True
            )
    PAGE.write_text(page(faults, skipped, asked.seed), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
