"""The test files of a room, and those that a change can reach.

A room has its folder of tests/unit, and the files of tests/ray and tests/kube that exercise it. A change is `git diff`
against where the branch left, and what is not committed yet.
"""

from __future__ import annotations

import difflib
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath

from selection.graph import ROOT, Graph
from selection.source import PRODUCT

COMMON = 1 / 4
"""A kit that a larger share of a tier's files leads to is how that tier starts jobs: it says nothing about a file."""
TIERS = {"unit": "tests/unit/", "ray": "tests/ray/", "kube": "tests/kube/", "replay": "tests/replay/"}
OPERATOR = "dljob_operator"
FOLDERS = {OPERATOR: "operator_shell"}
"""Rooms whose folder in tests/unit is not named as they are."""
OPERATORS = ("kube/test_operator_*", "kube/test_sweep_*", "kube/test_observability_operator")
ATTEMPTS = ("kube/test_operator_attempts", "kube/test_operator_faults", "kube/test_bad_kuberay_plane")
ELSEWHERE = {
    # The command runs as a process, and imports a command's module once it has read its name.
    "cli/commands": ("ray/test_cli_run", "ray/test_cli_orders", "kube/test_cli_*"),
    "cli/commands/observe": ("ray/test_cli_run", "ray/test_cli_orders", "kube/test_cli_*"),
    "cli/kubernetes": ("kube/test_cli_*", "kube/test_dlrover_run_node"),
    "cli/machine": ("ray/test_ordinary_machine",),
    "api/kubernetes": ("kube/test_cli_*", "kube/test_node_jobs"),
    "api/local": ("ray/test_python_api",),
    "convert": ("ray/test_converted",),  # texts in, texts out: what they run as is seen there
    "compat": ("ray/test_frameworks", "ray/test_yr", "ray/test_dlrover"),
    "compat/dlrover_api": ("ray/test_dlrover",),
    # So does the operator.
    "dljob_operator": (*OPERATORS, "kube/test_chart_node"),
    "dljob_operator/controller": OPERATORS,
    "dljob_operator/leader": ("kube/test_operator_lease", "kube/test_operator_upgrade", "kube/test_operator_outage"),
    "runtime/serving": ("ray/test_host_fork",),
    "dljob_operator/testing": (),
    "cli/top": (),
    "report": ("ray/test_examples",),
    "report/live": ("ray/test_examples",),
    "report/advice": ("ray/test_examples",),  # what a real job leaves for it
    "dljob_operator/watch": ("kube/test_operator_outage", "kube/test_operator_proxy", "kube/test_operator_large"),
    "dljob_operator/webhook": ("kube/test_webhook", "kube/test_bad_input_plane"),
    "kube": ("kube/test_operator_proxy", "kube/test_rights"),
    "kube/kuberay_client": ("kube/test_operator_apply", "kube/test_bad_kuberay_plane"),
    "raycluster": ("kube/test_operator_apply", "kube/test_pods_node"),
    "reconcile": OPERATORS,
    "reconcile/children": ("kube/test_operator_apply", "kube/test_operator_names", "kube/test_operator_reference"),
    "reconcile/leadership": ("kube/test_operator_lease", "kube/test_operator_upgrade"),
    "reconcile/policies": (
        *ATTEMPTS,
        "kube/test_operator_nodes",
        "kube/test_operator_suspend",
        "kube/test_operator_elastic",
    ),
    "reconcile/state": ("kube/test_operator_attempts", "kube/test_operator_upgrade"),
    "reconcile/status": (*ATTEMPTS, "kube/test_node_reference", "kube/test_health"),
    # PrimeMaster is an actor that the launcher names by its class path; the rooms of its decisions have their stories.
    "master/failure": ("ray/test_exam_here", "ray/test_ends_that_repeat", "ray/test_in_process", "ray/test_memory"),
    "master/ledger": ("ray/test_ledger",),
    "master/persistence": ("ray/test_upgrades", "ray/test_master_deaths"),
    "master/placement": ("ray/test_elastic_nodes", "ray/test_resize", "ray/test_domains", "ray/test_leaving"),
    "master/start": ("ray/test_prime_slice", "ray/test_checks_before_start", "ray/test_accelerators"),
    "master/state": ("ray/test_hangs", "ray/test_ledger"),
    "runtime/control_socket": ("ray/test_cli_orders",),
    "runtime/controller": ("ray/test_prime_*", "ray/test_master_deaths", "ray/test_upgrades", "ray/test_hangs"),
    "runtime/controller/services": ("ray/test_cuts", "ray/test_checkpoint_jobs", "ray/test_checkpoint_peers"),
    "runtime/faults": ("ray/test_faults",),
    "runtime/job": ("ray/test_prime_slice", "ray/test_gateway", "kube/test_node_jobs"),
    "logs": ("ray/test_readers", "ray/test_cli_orders"),
    "runtime/node": ("ray/test_node_agent", "ray/test_node_reports", "ray/test_readers", "ray/test_leaving"),
    "spec/rules": ("kube/test_crd_server", "kube/test_webhook"),
    "spec/text": ("kube/test_bad_input_plane",),
    # Of the simulators one is told beside a real job; the rest is unit tests, most of them slow.
    "testing": ("ray/test_faults",),
    "testing/explore": (),
    "testing/simulate": ("ray/test_faults",),
    "testing/world": (),
}
"""What no import tells: rooms -> files of tests/ray and tests/kube, or none, that exercise them beside those found."""


EVERYTHING = ("pyproject.toml", "uv.lock", "Makefile", ".importlinter", "tests/conftest.py", "tests/laptop.sh")
"""What any test may depend on without a trace: the environment, how tests are run."""
NOTHING = (
    "LICENSE",
    ".gitignore",
    ".ci/",
    ".pre-commit-config.yaml",
    "tests/bench/",
    "tests/planted-faults",
    "docs/img/",
)
"""What no test reads; the house tier checks the form, and the guard the costs of tests/bench."""


def is_test(name: str) -> bool:
    """Whether pytest collects this file."""
    return PurePosixPath(name).match("tests/**/test_*.py") or PurePosixPath(name).match("test_*.py")


@dataclass
class Rooms:
    """The packages of the product, by their paths in it, and the tests of each."""

    graph: Graph = field(default_factory=Graph)
    _known: dict[str, set[str]] = field(default_factory=dict)

    @cached_property
    def names(self) -> dict[str, str]:
        """Room -> its folder."""
        found: dict[str, str] = {}
        for package, folder in PRODUCT.items():
            for name in self.graph.below[folder]:
                path = PurePosixPath(name)
                if path.name != "__init__.py" or str(path.parent) == PRODUCT["dljob"]:
                    continue
                inside = str(path.parent.relative_to(folder))
                outer = "" if package == "dljob" else package
                found["/".join(filter(None, [outer, inside.strip(".")]))] = str(path.parent)
        return dict(sorted(found.items()))

    @cached_property
    def tests(self) -> list[str]:
        """All test files."""
        return [name for name in self.graph.files if name.startswith("tests/") and is_test(name)]

    def of_tier(self, tier: str) -> list[str]:
        """The test files in a tier's folder."""
        return [name for name in self.tests if name.startswith(TIERS[tier])]

    def resolve(self, asked: str) -> str:
        """The room that is meant: by its path in the product, by dots, or by its path in the repository.

        Raises KeyError with the rooms there are, and the nearest.
        """
        room = asked.strip("/").replace(".", "/")
        for package, folder in PRODUCT.items():
            outer = "" if package == "dljob" else package
            for prefix in (folder, package):
                if room == prefix or room.startswith(f"{prefix}/"):
                    room = "/".join(filter(None, [outer, room.removeprefix(prefix).strip("/")]))
        if room in self.names:
            return room
        near = [n for n in self.names if n.endswith(f"/{room}")] or difflib.get_close_matches(room, self.names, 1, 0.5)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise KeyError(f"no room {asked}{meant} There are: {', '.join(self.names)}")

    def unit(self, room: str) -> list[str]:
        """What tests/unit mirrors of it; of a room without a folder there, the files that import it."""
        first, _, rest = room.partition("/")
        inside = "/".join(filter(None, [FOLDERS.get(first, first), rest]))
        mirrored = [name for name in self.of_tier("unit") if name.startswith(f"tests/unit/{inside}/")]
        folder = f"{self.names[room]}/"
        importing = (n for n in self.of_tier("unit") if any(e.startswith(folder) for e in self.graph.edges(n)))
        return mirrored or sorted(importing)

    @cached_property
    def _direct(self) -> dict[str, set[str]]:
        """Test file of Ray, kube and replay -> what of the product it, its kits and its applications import."""
        found: dict[str, set[str]] = {}
        for tier in ("ray", "kube", "replay"):
            files = self.of_tier(tier)
            sides = {name: self._side(name) for name in files}
            shared = Counter(kit for side in sides.values() for kit in side)
            for name, side in sides.items():
                own = [kit for kit in side if shared[kit] <= max(2, COMMON * len(files))]
                found[name] = {e for kit in own for e in self._names(kit) if e.startswith(tuple(PRODUCT.values()))}
        return found

    def _names(self, name: str) -> set[str]:
        if name not in self._known:
            self._known[name] = self.graph.names(name)
        return self._known[name]

    def _side(self, name: str) -> set[str]:
        """A test file, its kits and its applications, but no conftest."""
        seen, todo = {name}, [name]
        while todo:
            for other in self._names(todo.pop()) - seen:
                if other.startswith(("tests/", "examples/")) and not is_test(other) and "conftest" not in other:
                    seen.add(other)
                    todo.append(other)
        return seen

    def exercising(self, room: str) -> list[str]:
        """The files of the other tiers that exercise it."""
        folder = f"{self.names[room]}/"
        seen = {name for name, product in self._direct.items() if any(p.startswith(folder) for p in product)}
        inside = [name for name in ELSEWHERE if f"{name}/".startswith(f"{room}/")]
        return sorted(seen | {file for name in inside for told in ELSEWHERE[name] for file in self.told(told)})

    def told(self, pattern: str) -> list[str]:
        """The test files that an entry of `ELSEWHERE` names."""
        tier, name = pattern.split("/")
        return [test for test in self.tests if PurePosixPath(test).match(f"tests/{tier}/*/{name}.py")]

    def select(self, asked: str) -> list[str]:
        """All test files of a room."""
        room = self.resolve(asked)
        return [*self.unit(room), *self.exercising(room)]


PARTS = {"docs": "docs", "README.md": "docs", "CONTRIBUTING.md": "docs", "charts": "chart", "crds": "spec"}
"""What is no product -> the folder of tests/unit that is about it, where it is not named as that."""


def near(rooms: Rooms, names: Iterable[str]) -> list[str]:
    """The unit tests of the rooms that these files are in, and those of the house: a part of what they reach."""
    found: set[str] = {test for test in rooms.of_tier("unit") if test.startswith("tests/unit/house/")}
    folders = sorted(rooms.names, key=lambda room: -len(rooms.names[room]))
    for name in names:
        room = next((room for room in folders if name.startswith(f"{rooms.names[room]}/")), None)
        first = name.partition("/")[0]
        if room:
            found.update(rooms.unit(room))
        elif is_test(name):
            found.update({name} & set(rooms.of_tier("unit")))
        elif name.startswith("tests/unit/"):  # a kit, a conftest
            folder = f"{PurePosixPath(name).parent}/"
            found.update(test for test in rooms.of_tier("unit") if test.startswith(folder))
        else:
            about = f"tests/unit/{PARTS.get(first, first)}/"
            found.update(test for test in rooms.of_tier("unit") if test.startswith(about))
    return sorted(found)


@dataclass(frozen=True)
class Selected:
    """Test files, and why these."""

    tests: list[str]
    changed: list[str]
    why: str = ""


def git(*words: str) -> list[str]:
    """The NUL-separated answer of a git command in the repository."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"git {' '.join(words)}: {done.stderr.strip()}")
    return [each for each in done.stdout.strip("\n").split("\0") if each]


def changed(base: str) -> tuple[list[str], list[str]]:
    """The files that differ from where HEAD and `base` part: those there are, and those that are gone."""
    (start,) = git("merge-base", "HEAD", base)
    words = git("diff", "--no-renames", "--name-status", "-z", start)
    found = dict(zip(words[1::2], words[::2], strict=True))
    found |= dict.fromkeys(git("ls-files", "--others", "--exclude-standard", "-z"), "A")
    return sorted(f for f, how in found.items() if how != "D"), sorted(f for f, how in found.items() if how == "D")


def reached(graph: Graph, there: Iterable[str], gone: Iterable[str] = ()) -> Selected:
    """The tests that files can reach: those that lead to one of them. All, where nothing tells who reads a file."""
    tests = [name for name in graph.files if name.startswith("tests/") and is_test(name)]
    there, gone = list(there), list(gone)
    every = [*there, *gone]
    lost = [name for name in gone if name.startswith(tuple(PRODUCT.values())) and name.endswith(".py")]
    if whole := [name for name in every if name in EVERYTHING] or lost:
        return Selected(tests, every, f"all: {whole[0]} {'is gone' if whole == lost else 'changed'}")
    reach = {test: graph.reach(test) for test in tests}
    found: set[str] = set()
    for name in every:
        if name.startswith(NOTHING):
            continue
        if name in graph.all:
            readers = {test for test, seen in reach.items() if name in seen}
        else:  # those who read another file of its folder may have read it
            beside = set(graph.below.get(str(PurePosixPath(name).parent), ()))
            readers = {test for test, seen in reach.items() if beside & seen}
        if not readers and not name.endswith(".py"):
            return Selected(tests, every, f"all: nothing tells who reads {name}")
        found |= readers
    return Selected(sorted(found), every)
