"""How faults are planted: which are drawn, which tests are tried first, and what counts as caught."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
if str(TESTS) not in sys.path:
    sys.path.append(str(TESTS))

# ruff: noqa: E402 - found by the path above
import mutants
from mutants import Runner
from selection.choice import Rooms
from selection.graph import Graph

FILES = {
    "workers/dljob/__init__.py": "",
    "workers/dljob/low/__init__.py": "",
    "workers/dljob/low/one.py": "def larger(value):\n    return value + 1\n\n\ndef unseen():\n    return 7\n",
    "workers/dljob/low/two.py": "LIMIT = 3\nOTHER = 4\nTHIRD = 5\n",
    "workers/dljob/high/__init__.py": "",
    "workers/dljob/high/top.py": "from dljob.low import one\n\nif True:\n    FOUND = one.larger(1)\n",
    "tests/unit/low/test_early.py": "from dljob.low import one\n\ndef test_it_can_be_imported():\n    assert one\n",
    "tests/unit/low/test_one.py": "from dljob.low import one\n\ndef test_broken():\n    assert not one.larger\n",
    "tests/unit/low/test_sums.py": "from dljob.low import one\n\ndef test_larger():\n    assert one.larger(1) == 2\n",
    "tests/unit/high/test_top.py": "from dljob.high import top\n\ndef test_top():\n    assert top.FOUND == 2\n",
    "tests/unit/house/test_names.py": "from dljob.low import one\n\ndef test_larger():\n    assert one.larger\n",
}
RUN = """
import json, sys
from pathlib import Path
sys.path.append(sys.argv[1])
import mutants
from selection.choice import Rooms
from selection.graph import Graph
root = Path.cwd()
rooms = Rooms(Graph(root, json.loads(sys.argv[2])))
for each in mutants.statements(rooms):
    for fault in each.faults():
        if each.file.endswith("one.py") and fault.operator == "return None":
            print(json.dumps(mutants.Runner(root, rooms).run(fault)))
"""


@pytest.fixture
def rooms(tmp_path: Path) -> Rooms:
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return Rooms(Graph(tmp_path, FILES))


def drawn(rooms: Rooms, *equivalent: mutants.Key) -> dict[str, list[mutants.Key]]:
    faults, _ = mutants.draw(mutants.statements(rooms), 1, frozenset(equivalent))
    keys = [(each.room, each.key((rooms.graph.root / each.file).read_bytes())) for each in faults]
    return {room: [key for where, key in keys if where == room] for room in rooms.names}


def test_each_room_has_two_faults_whatever_changes_in_another(rooms: Rooms):
    before = drawn(rooms)
    assert [len(ids) for ids in before.values()] == [1, 2], "the upper room has one statement that can be changed"
    (rooms.graph.root / "workers/dljob/high/top.py").write_text("A = 1\nB = 2\nC = 3\n")
    after = drawn(rooms)
    assert after["low"] == before["low"]
    assert len(after["high"]) == 2


def test_an_equivalent_fault_is_replaced_by_the_next_draw(rooms: Rooms):
    first, second = drawn(rooms)["low"]
    again = drawn(rooms, first)["low"]
    assert again[:2] == [first, second]
    assert len(again) == 3


def test_a_fault_is_found_again_where_its_statement_has_moved(rooms: Rooms):
    file = rooms.graph.root / "workers/dljob/low/two.py"
    (fault,) = (f for each in mutants.statements(rooms) for f in each.faults() if f.line == 2 and f.operator == "drop")
    rows: dict[mutants.Key, mutants.Row] = {fault.key(file.read_bytes()): {}}
    file.write_text(f"import os\n\n{file.read_text()}")
    (found,) = mutants.standing(mutants.statements(rooms), rows)
    assert (found.line, found.text) == (4, "pass")


def test_tests_that_name_the_function_are_tried_first_and_those_of_the_house_last(rooms: Rooms):
    (fault,) = (
        f
        for each in mutants.statements(rooms)
        for f in each.faults()
        if f.function == "larger" and f.line == 2 and f.operator == "return None"
    )
    assert [Path(test).name for test in Runner(rooms.graph.root, rooms).order(fault)] == [
        "test_one.py",
        "test_sums.py",
        "test_early.py",
        "test_top.py",
        "test_names.py",
    ]


def test_a_fault_is_caught_by_the_test_that_fails_only_with_it(rooms: Rooms):
    command = [sys.executable, "-c", RUN, str(TESTS), json.dumps(list(FILES))]
    done = subprocess.run(command, cwd=rooms.graph.root, capture_output=True, text=True, check=True)
    seen, unseen = (json.loads(line) for line in done.stdout.splitlines())
    assert seen["function"] == "larger"
    assert seen["by"] == "tests/unit/low/test_sums.py::test_larger"
    assert seen["failing anyway"] == ["tests/unit/low/test_one.py::test_broken"]
    assert (unseen["function"], unseen["caught"]) == ("unseen", False)
    one = rooms.graph.root / "workers/dljob/low/one.py"
    assert one.read_text() == FILES["workers/dljob/low/one.py"], "the file is as before"
