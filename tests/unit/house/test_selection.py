"""Which tests `make test ROOM=...` and `make test CHANGED=1` run: what a file leads to; no room is left out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
if str(ROOT / "tests") not in sys.path:
    sys.path.append(str(ROOT / "tests"))

# ruff: noqa: E402 - found by the path above
from selection import choice
from selection.choice import ELSEWHERE, Rooms, Selected, near, reached
from selection.graph import UNSEEN, Graph

PRODUCT = "workers/dljob"


def tree(folder: Path, **more: str) -> Graph:
    """A small repository: path with `__` for `/` -> text."""
    files = {
        "pyproject.toml": '[project.scripts]\ndljob = "dljob.cli:main"\n'
        '[project.entry-points."dljob.backends"]\nray = "dljob.low:Ray"\nyr = "dljob.yr:Yr"\n',
        f"{PRODUCT}/__init__.py": '_HOMES = {"dljob.low": ("thing",)}\ndef __getattr__(name): ...\n',
        f"{PRODUCT}/low.py": "",
        f"{PRODUCT}/mid.py": "def f():\n    from dljob.low import thing\n",
        f"{PRODUCT}/yr.py": "",
        f"{PRODUCT}/cli.py": "",
        f"{PRODUCT}/room/__init__.py": "",
        f"{PRODUCT}/room/one.py": "from . import two\n",
        f"{PRODUCT}/room/two.py": "",
        "tests/conftest.py": "",
        "tests/kits/kit.py": "from dljob.mid import f\n",
        "tests/ray/user.py": "import dljob.room.one\n",
        "docs/page.md": "",
        "docs/deep/case.json": "",
        "docs/deep/tool.py": "",
        **{path.replace("__", "/") if "/" not in path else path: text for path, text in more.items()},
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return Graph(folder, files)


CASES = {
    "an import in a function": ("def f():\n    import dljob.mid", "mid.py low.py"),
    "a kit": ("from kit import f", "mid.py low.py"),
    "under TYPE_CHECKING alone": ("if TYPE_CHECKING:\n    import dljob.mid", ""),
    "a docstring": ('"""As dljob.mid."""', ""),
    "a class path": ('A = "dljob.room.one.Host"', "room/one.py room/two.py"),
    "code in a string": ('A = "import dljob.low; dljob.low.x()"', "low.py"),
    "a name that comes when first used": ("from dljob import thing", "low.py"),
    "an attribute that comes when first used": ("import dljob\ndljob.thing()", "low.py"),
    "such a package as a value": ("import dljob\ngetattr(dljob, x)", "low.py"),
    "such a name in code in a string": ('A = "from dljob import thing"', "low.py"),
    "a module only known when it runs": ('A = f"dljob.room.{x}"', "room/one.py room/two.py"),
    "a user module of a job": ('A = {"class": "user:Trainer"}', "room/one.py room/two.py"),
    "a command": ('A = ["dljob", "run"]', "cli.py"),
    "a command line": ('A = "cd x; dljob run y"', "cli.py"),
    "a label": ('A = {"app": "dljob"}', ""),
    "a backend by its name": ('A = {"name": "yr"}', "yr.py"),
    "nothing": ("import json", ""),
}


@pytest.mark.parametrize(("code", "leads"), CASES.values(), ids=CASES)
def test_a_tests_imports_and_paths_lead_to_the_modules_it_uses(tmp_path: Path, code: str, leads: str) -> None:
    graph = tree(tmp_path, **{"tests/ray/test_a.py": code})
    found = {name for name in graph.reach("tests/ray/test_a.py") if name.startswith(PRODUCT) and "__init__" not in name}
    assert found == {f"{PRODUCT}/{name}" for name in leads.split()}


READS = {
    "a file": ('A = Path(__file__).parents[2] / "docs" / "page.md"', "page.md"),
    "a file, in one string": ('A = ROOT / "docs/page.md"', "page.md"),
    "a folder's data": ('A = (ROOT / "docs").glob("*.json")', "page.md deep/case.json"),
    "a folder's code": ('A = (ROOT / "docs").rglob("*.py")', "page.md deep/case.json deep/tool.py"),
    "a folder, listed": ('A = (ROOT / "docs").iterdir()', "page.md deep/case.json deep/tool.py"),
    "a name that is chosen": ('for a in ("docs", "x"):\n    ROOT / a', "page.md deep/case.json"),
    "a word": ('A = "docs"', ""),
}


@pytest.mark.parametrize(("code", "reads"), READS.values(), ids=READS)
def test_the_pages_that_a_test_reads_are_found(tmp_path: Path, code: str, reads: str) -> None:
    graph = tree(tmp_path, **{"tests/ray/test_a.py": code})
    found = {name for name in graph.reach("tests/ray/test_a.py") if name.startswith("docs/")}
    assert found == {f"docs/{name}" for name in reads.split()}


def chosen(tmp_path: Path, *changed: str, gone: tuple[str, ...] = ()) -> Selected:
    graph = tree(
        tmp_path,
        **{
            "tests/ray/test_mid.py": "import kit",
            "tests/ray/test_room.py": "import dljob.room.two",
            "tests/unit/test_page.py": 'A = ROOT / "docs" / "page.md"',
            "tests/unit/conftest.py": "",
            "odd.cfg": "",
        },
    )
    return reached(graph, changed, gone)


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        (f"{PRODUCT}/low.py", "ray/test_mid.py"),
        (f"{PRODUCT}/room/two.py", "ray/test_room.py"),
        (f"{PRODUCT}/room/one.py", ""),
        ("tests/kits/kit.py", "ray/test_mid.py"),
        ("tests/ray/test_room.py", "ray/test_room.py"),
        ("tests/unit/conftest.py", "unit/test_page.py"),
        ("docs/page.md", "unit/test_page.py"),
    ],
)
def test_a_change_selects_the_tests_that_reach_it(tmp_path: Path, changed: str, tests: str) -> None:
    assert chosen(tmp_path, changed).tests == [f"tests/{name}" for name in tests.split()]


@pytest.mark.parametrize("changed", ["uv.lock", "Makefile", "pyproject.toml", "tests/conftest.py", "odd.cfg"])
def test_a_change_that_may_concern_all_tests_selects_all(tmp_path: Path, changed: str) -> None:
    found = chosen(tmp_path, changed)
    assert len(found.tests) == 3
    assert changed in found.why


def test_a_module_that_is_gone_selects_all_and_a_page_its_readers(tmp_path: Path) -> None:
    assert chosen(tmp_path, gone=(f"{PRODUCT}/old.py",)).why == f"all: {PRODUCT}/old.py is gone"
    assert chosen(tmp_path, gone=("docs/old.md",)).tests == ["tests/unit/test_page.py"]


def test_changes_are_those_since_the_branch_left_and_those_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        "merge-base": ["c0ffee"],
        "diff": ["M", "a.py", "D", "b.py", "A", "c.md"],
        "ls-files": ["new.py"],
    }
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(choice, "git", lambda *words: asked.append(words) or answers[words[0]])
    assert choice.changed("main") == (["a.py", "c.md", "new.py"], ["b.py"])
    assert asked[:2] == [
        ("merge-base", "HEAD", "main"),
        ("diff", "--no-renames", "--name-status", "-z", "c0ffee"),
    ]


@pytest.fixture(scope="module")
def rooms() -> Rooms:
    return Rooms(Graph())


@pytest.mark.parametrize("asked", ["runtime/rpc", "runtime.rpc", "dljob.runtime.rpc", "workers/dljob/runtime/rpc/"])
def test_a_room_has_some_names(rooms: Rooms, asked: str) -> None:
    assert rooms.resolve(asked) == "runtime/rpc"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("runtime/rcp", "did you mean runtime/rpc? There are: api,"),
        ("rpc", "did you mean runtime/rpc?"),
        ("zzzzzz", "no room zzzzzz There are: api,"),
    ],
)
def test_a_room_that_there_is_not_is_refused_with_the_nearest(rooms: Rooms, asked: str, said: str) -> None:
    with pytest.raises(KeyError) as refused:
        rooms.resolve(asked)
    assert said in refused.value.args[0]


@pytest.mark.parametrize(
    ("changed", "test"),
    [
        ("workers/dljob/runtime/queues/keeper.py", "tests/unit/runtime/queues/test_data_queue.py"),
        ("operator/dljob_operator/watch/cache.py", "tests/unit/operator_shell/watch/test_cache.py"),
        ("tests/unit/plan/plan_kit.py", "tests/unit/plan/test_packing.py"),
        ("tests/unit/plan/test_packing.py", "tests/unit/plan/test_packing.py"),
        ("tests/ray/backend/test_yr.py", ""),
        ("charts/dljob/values.yaml", "tests/unit/chart/test_chart_values.py"),
        ("docs/hangs.md", "tests/unit/docs/test_code_blocks.py"),
        ("examples/ppo-tiny/actor.py", "tests/unit/examples/test_ppo_tiny.py"),
    ],
)
def test_a_check_runs_the_unit_tests_of_the_rooms_that_differ_and_of_the_house(
    rooms: Rooms, changed: str, test: str
) -> None:
    found = [name for name in near(rooms, [changed]) if not name.startswith("tests/unit/house/")]
    assert (test in found) if test else (found == [])
    assert all(name.startswith(test.rpartition("/")[0]) for name in found)
    assert set(near(rooms, [])) <= set(near(rooms, [changed]))


def test_the_operator_is_a_room_too(rooms: Rooms) -> None:
    assert rooms.resolve("operator/dljob_operator/watch") == "dljob_operator/watch"
    assert "tests/unit/operator_shell/watch/test_cache.py" in rooms.select("dljob_operator/watch")


def test_a_room_has_its_folder_its_users_and_no_others(rooms: Rooms) -> None:
    found = rooms.select("runtime/faults")
    own = [f"tests/unit/runtime/faults/{name}.py" for name in ("test_harm", "test_in_pod", "test_inflict")]
    assert found == [*own, "tests/ray/controller/test_faults.py"]


def test_each_room_has_unit_tests_and_files_of_other_tiers_or_says_none(rooms: Rooms) -> None:
    assert [room for room in rooms.names if not rooms.unit(room)] == []
    assert [room for room in rooms.names if not rooms.exercising(room) and ELSEWHERE.get(room) != ()] == []


def test_each_file_of_the_ray_and_kubernetes_tiers_is_in_a_room(rooms: Rooms) -> None:
    found = {test for room in rooms.names for test in rooms.exercising(room)}
    assert {*rooms.of_tier("ray"), *rooms.of_tier("kube")} - found == set()


def test_each_listed_test_and_file_outside_the_imports_exists(rooms: Rooms) -> None:
    assert ELSEWHERE.keys() <= rooms.names.keys()
    assert [told for entry in ELSEWHERE.values() for told in entry if not rooms.told(told)] == []
    graph = rooms.graph
    assert [name for name in UNSEEN if name not in graph.all] == []
    assert [to for each in UNSEEN.values() for to in each if to not in graph.all and to not in graph.below] == []


def test_the_backend_of_a_job_that_names_none_is_the_one_that_is_always_reached() -> None:
    from dljob.runtime.backend.interface import chosen as backend
    from dljob.runtime.backend.interface import installed

    module = installed()[backend(None, None, {})].value.partition(":")[0]
    path = f"workers/{module.replace('.', '/')}.py"
    assert UNSEEN["workers/dljob/runtime/backend/interface.py"] == (path,)


@pytest.mark.slow
@pytest.mark.parametrize("room", ["runtime/yr", "raycluster"])
def test_a_change_off_the_path_of_most_jobs_leaves_most_of_the_ray_tier_out(rooms: Rooms, room: str) -> None:
    module = "backend.py" if room == "runtime/yr" else "render.py"
    found = reached(rooms.graph, [f"{PRODUCT}/{room}/{module}"]).tests
    of_ray = [test for test in found if test.startswith("tests/ray/")]
    assert 0 < len(of_ray) < len(rooms.of_tier("ray")) / 2


@pytest.mark.slow
def test_a_change_of_code_that_every_job_runs_selects_the_whole_ray_tier(rooms: Rooms) -> None:
    found = set(reached(rooms.graph, [f"{PRODUCT}/runtime/controller/prime.py"]).tests)
    assert set(rooms.of_tier("ray")) - found <= {"tests/ray/worker/test_break_off.py"}
