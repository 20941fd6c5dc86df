"""What `make test` runs, and when: what takes helm, or is slow, or is of one room."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

TIERS = Path(__file__).parents[2] / "tiers.py"
SKIP = '<testsuite><testcase><skipped type="pytest.skip" message="{}"/></testcase></testsuite>'


class Machine:
    """Runs nothing; `lacks` is what each run of the chart's tests is skipped for."""

    def __init__(self, *lacks: str) -> None:
        self.lacks = list(lacks)
        self.ran: list[str] = []

    def run(self, command: list[str], **_: Any) -> SimpleNamespace:
        report = Path(command[-1].removeprefix("--junitxml="))
        where = next((each for each in command if each.startswith("tests/")), "house")
        self.ran.append(where)
        if where.startswith("tests/unit") and (lack := self.lacks.pop(0)):
            report.write_text(SKIP.format(lack))
        return SimpleNamespace(returncode=0)


@pytest.fixture
def tiers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("tiers", TIERS)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    monkeypatch.delenv("DLJOB_E2E", raising=False)
    built = SimpleNamespace(poll=lambda: 0, wait=lambda: 0)
    vars(made).update(build=lambda *_: built)
    return made


NO_HELM = "no helm: `make kube-build` builds it"
NO_GO = "no Go"


BOTH = ["tests/unit", "tests/kube"]


@pytest.mark.parametrize(
    ("asked", "lacks", "ran", "said"),
    [
        ("unit kube", [""], BOTH, []),
        ("unit kube", [NO_GO], BOTH, [f"unit: 1 skipped: {NO_GO}"]),
        ("unit kube", [NO_HELM, ""], [*BOTH, "tests/unit/chart"], []),
        ("unit node", [NO_HELM, NO_HELM], [*BOTH, "tests/unit/chart"], [f"chart: 1 skipped: {NO_HELM}"]),
        ("unit", [NO_HELM], ["tests/unit"], [f"unit: 1 skipped: {NO_HELM}"]),
    ],
    ids=["helm is there", "something else is not", "helm came late", "helm never came", "nothing is built"],
)
def test_tests_skipped_for_helm_run_once_helm_is_built(
    tiers: Any, capsys: Any, *, asked: str, lacks: list[str], ran: list[str], said: list[str]
) -> None:
    machine = tiers.subprocess = Machine(*lacks)
    assert tiers.main(asked.split()) == 0
    assert sorted(machine.ran) == sorted(ran), "the unit tests run beside the others"
    assert [line for line in capsys.readouterr().out.splitlines() if " skipped: " in line] == said


USUAL = ["tests/unit", "tests/ray/cli/test_without_a_namespace.py", "tests/ray", *["tests/kube"] * 2]


@pytest.mark.parametrize(
    ("asked", "ran"),
    [("", USUAL), ("slow", ["tests/unit", "tests/ray", "tests/kube"]), ("slow kube", ["tests/unit", *BOTH[1:]])],
)
def test_slow_tests_run_only_when_they_are_named(tiers: Any, capsys: Any, asked: str, ran: list[str]) -> None:
    tiers.isolated = lambda: ["unshare"]
    machine = tiers.subprocess = Machine(*[""] * 3)
    assert tiers.main(asked.split()) == 0
    assert set(ran) <= set(machine.ran)
    assert ("make test ARGS=slow" in capsys.readouterr().out) == (not asked)
    assert machine.ran.count("tests/unit") == 1


def test_all_that_tests_need_is_there_before_they_start(tiers: Any) -> None:
    waits = list[str]()

    def build(needy: list[str], _log: Path) -> SimpleNamespace:
        return SimpleNamespace(poll=lambda: None, wait=lambda: waits.append(f"{needy} before {len(machine.ran)}") or 0)

    tiers.build, tiers.isolated = build, lambda: ["unshare"]
    tiers.subprocess = machine = Machine("", "")
    assert tiers.main(["unit", "slow"]) == 0
    assert waits[0] == "['slow'] before 1"


@pytest.mark.parametrize("fails", ["", "tests/unit", "tests/kube"])
def test_unit_tests_run_beside_those_that_wait_and_are_printed_after_them(
    tiers: Any, capsys: Any, *, fails: str
) -> None:
    both = threading.Barrier(2, timeout=10)

    def run(command: list[str], *, stdout: Any, **_: Any) -> SimpleNamespace:
        where = next(each for each in command if each.startswith("tests/"))
        both.wait()  # each needs the other to be under way
        print(f"printed by {where}", file=stdout)
        return SimpleNamespace(returncode=int(where == fails))

    tiers.subprocess = SimpleNamespace(run=run)
    assert tiers.main(["unit", "kube"]) == bool(fails)
    said = capsys.readouterr().out
    assert said.index("printed by tests/kube") < said.index("printed by tests/unit")
    assert ("unit: failed" in said, "kube: failed" in said) == (fails == "tests/unit", fails == "tests/kube")


def test_each_test_is_run_once(tiers: Any) -> None:
    """Two tiers share what they collect, and part it by one marker."""
    tiers.isolated = lambda: ["unshare"]
    (unit,), (_, ray), (node,) = (tiers.commands(tier, ()) for tier in ("unit", "ray", "node"))
    searches, long, pods = tiers.commands("slow", ())
    marks = [each[each.index("-m", 3) + 1] for each in (unit, searches, ray, long, node, pods)]
    assert marks[:4] == ["not slow or live", "slow and not live", "not slow and not gpu", "slow"]
    assert marks[4:] == ["node and not slow", "node and slow"]
    assert all("tests/kube" in each for each in (node, pods))
    assert all(part in unit and part in searches for part in ("tests/unit", "tests/replay"))
    assert all("tests/ray" in each and f"--ignore={tiers.BARE}" in each for each in (ray, long))


def test_the_chart_says_that_helm_is_not_there_as_the_tiers_read_it(tiers: Any) -> None:
    assert f'"{tiers.NO_HELM.removeprefix("skipped: ")}: ' in (TIERS.parent / "unit/chart/conftest.py").read_text()


@pytest.mark.parametrize(("can", "chosen"), [(0, "-nmu"), (1, "-rnmu"), (2, "-n"), (3, "-rn")])
def test_the_ray_tier_has_the_best_network_that_can_be_had(tiers: ModuleType, can: int, chosen: str) -> None:
    tried: list[list[str]] = []

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        tried.append(command)
        return SimpleNamespace(returncode=0 if len(tried) > can else 1)

    tiers.subprocess = SimpleNamespace(run=run, TimeoutExpired=TimeoutError)
    found = tiers.isolated()
    assert found[:2] == ["unshare", chosen]
    assert any("laptop.sh" in word for word in found) == (can < 2)


def test_where_no_namespace_can_be_made_there_is_no_prefix(tiers: ModuleType) -> None:
    def run(*_: Any, **__: Any) -> SimpleNamespace:
        raise FileNotFoundError("unshare")

    tiers.subprocess = SimpleNamespace(run=run, TimeoutExpired=TimeoutError)
    assert tiers.isolated() == []


CHOSEN = {"unit": ["tests/unit/a/test_a.py"], "ray": ["tests/ray/test_b.py"], "kube": ["tests/kube/test_c.py"]}


def test_of_chosen_files_a_tier_runs_its_own_and_measures_no_coverage(tiers: Any) -> None:
    tiers.isolated = list
    for tier, (file,) in CHOSEN.items():
        (command,) = tiers.commands(tier, (), CHOSEN)
        assert [word for word in command if word.startswith("tests/")] == [file]
        assert "--cov-branch" not in command
        assert (tier in command) == (tier == "kube")


@pytest.mark.parametrize(
    ("files", "runs"),
    [
        (["a", "BARE"], [["BARE"], ["a"]]),
        (["BARE"], [["BARE"]]),
        (["a", "b"], [["a", "b"]]),
    ],
)
def test_tests_without_a_namespace_run_alone_when_chosen(tiers: Any, files: list[str], runs: list[list[str]]) -> None:
    tiers.isolated = lambda: ["unshare"]
    names = {"BARE": tiers.BARE, "a": "tests/ray/test_a.py", "b": "tests/ray/test_b.py"}
    found = tiers.commands("ray", (), {"ray": [names[file] for file in files]})
    assert [[w for w in command if w.startswith("tests/")] for command in found] == [
        [names[f] for f in r] for r in runs
    ]


@pytest.mark.parametrize(("code", "exit_code"), [(0, 0), (5, 0), (1, 1)])
def test_chosen_files_of_which_none_has_the_marker_are_no_failure(tiers: Any, code: int, exit_code: int) -> None:
    tiers.subprocess = SimpleNamespace(run=lambda *_, **__: SimpleNamespace(returncode=code))
    vars(tiers).update(choose=lambda *_: (["slow"], {"slow": ["tests/unit/a/test_a.py"]}))
    assert tiers.main(["--room", "a"]) == exit_code


def test_a_tier_without_a_file_is_left_out(tiers: Any) -> None:
    lease = "tests/kube/controller/test_operator_lease.py"
    found = tiers.by_tier(["tests/unit/house/test_tiers.py", lease], tiers.TIERS)
    assert found == {
        "unit": ["tests/unit/house/test_tiers.py"],
        "slow": ["tests/unit/house/test_tiers.py", lease],
        "kube": [lease],
    }
    assert "node" in tiers.by_tier(["tests/kube/node/test_cli_node.py"], tiers.TIERS)


def test_a_room_is_said_with_its_files_and_an_unknown_one_refused(tiers: Any, capsys: Any) -> None:
    assert tiers.main(["--list", "--room", "runtime/queues"]) == 0
    said = capsys.readouterr().out
    assert "room runtime/queues: 2 files of unit" in said
    assert " ray/controller/test_ledger.py" in said
    assert tiers.main(["--room", "runtime/queue"]) == 2
    assert "no room runtime/queue; did you mean runtime/queues? There are: api," in capsys.readouterr().err


def test_the_frameworks_run_only_when_they_are_asked_for(tiers: Any) -> None:
    assert tiers.FRAMEWORKS not in tiers.TIERS
    tiers.isolated = list
    tiers.subprocess = machine = Environments()
    assert tiers.main(["--room", "frameworks"]) == 0
    assert machine.ran == ["tests/frameworks/environment.py", "tests/frameworks", tiers.ON_NODE]
    assert "pytest.mark.frameworks" in (TIERS.parents[1] / tiers.ON_NODE).read_text()


class Environments(Machine):
    """Notes what is run, and runs nothing."""

    def run(self, command: list[str], **_: Any) -> SimpleNamespace:
        self.ran.append(next(each for each in command if each.startswith("tests/")))
        return SimpleNamespace(returncode=0)
