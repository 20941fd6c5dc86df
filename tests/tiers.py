"""Run tiers of the tests, one after another, and end with what was not run.

    python tests/tiers.py [--room ROOM | --changed BASE | --near BASE] [tier ...] [-- pytest arguments]

Of a room, or of what differs from where HEAD and BASE part, only the test files that tests/selection names are run;
with `--near` the unit tests of the rooms in which something differs.

Tiers: `house` (format, lint, types, imports, generated files,
deterministic costs), `unit` (pure code, with branch coverage), `ray` (a real Ray of several raylets; where namespaces
may be made, two runs side by side, each in one with the interfaces of a laptop, since Ray listens on all of them),
`kube` (a real control plane with KubeRay, for each of three runs), `node` (a real Kubernetes node, where pods run).
Kubernetes and the images are built behind the first, and the unit tests run beside the last two where these run too.
Run only when named, or with the tests of a room or a change: `slow`, simulations and searches, and whole jobs of a
minute or more on a real Ray, of three minutes or more on a node. Run only when named: `frameworks`, scripts of
published frameworks, in an environment made for them; and `gpu`, jobs on one NVIDIA GPU, by a Python with a torch for
it. Exits 1 when any tier fails; what was skipped is named with what it takes. The unit tests of the chart, which are
skipped while helm is still being built, are run once it is.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import IO
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
PURE = (
    "dljob.spec",
    "dljob.plan",
    "dljob.raycluster",
    "dljob.master",
    "dljob.reconcile",
    "dljob.calls",
    "dljob.telemetry",
)
SLOW = "slow"
TIERS = ("house", "unit", "slow", "ray", "kube", "node")
USUAL = tuple(tier for tier in TIERS if tier != SLOW)
"""What is run where nothing is named: all that finds most faults in less than an hour on two cores."""
FOLDERS = {
    "unit": ("tests/unit/", "tests/replay/"),
    SLOW: ("tests/unit/", "tests/replay/", "tests/ray/", "tests/kube/"),
    "ray": ("tests/ray/",),
    "kube": ("tests/kube/",),
    "node": ("tests/kube/",),
}
FRAMEWORKS = "frameworks"
"""The tier of published frameworks, run when it is asked for: they take an environment of 6 GB, most of it shared."""
GPU = "gpu"
"""The tier of jobs on one GPU, run when it is asked for: the packages that it lacks come from a folder of wheels."""
ON_REQUEST = (FRAMEWORKS, GPU)
NODES = {"node", SLOW, FRAMEWORKS}
ON_NODE = "tests/kube/node/test_frameworks_node.py"
"""Of that tier, what runs on a Kubernetes node, which has namespaces of its own."""
NONE_COLLECTED = 5  # pytest's exit code; of files that were chosen, a tier's marker may leave none
CHART = "chart"  # what of the unit tier takes helm; run at the end where helm came too late for it
NO_HELM = "skipped: no helm"
# Some take a minute, most a millisecond. The same draws in each run: what fails here fails again.
PURE_TESTS = ("-n", "2", "--dist", "worksteal", "--hypothesis-seed=0")
BEHIND = ("bash", str(ROOT / "tests" / "behind.sh"))
SHARDS = 2  # of the Ray tier, which takes all of two cores
BARE = "tests/ray/cli/test_without_a_namespace.py"  # of the Ray tier, what runs in the machine's own network
PLANES = 3  # of the kube tier, in which two runs leave a quarter of two cores idle: silence must last, time must pass
WAITING = ("kube", "node")
"""The tiers that wait for pods, silence and time. What they leave of two cores runs the unit tests (ADR 73)."""
BESIDE = ("nice", "-n", "5")  # a third of the others' share where all want the processor


LAPTOP = ["bash", str(ROOT / "tests" / "laptop.sh")]
LOOPBACK = ["bash", "-c", 'ip link set lo up && exec "$@"', "_"]
NETWORKS = (["-nmu", *LAPTOP], ["-rnmu", *LAPTOP], ["-n", *LOOPBACK], ["-rn", *LOOPBACK])
"""By falling preference: the network of a laptop, as root and as a user; only loopback."""


def isolated() -> list[str]:
    """The command prefix that gives a network of its own, the best that can be had; empty where none can."""
    for network in NETWORKS:
        prefix = ["unshare", *network]
        with suppress(OSError, subprocess.TimeoutExpired):  # no such tool, or not for this user: the next one
            if subprocess.run([*prefix, "true"], capture_output=True, check=False, timeout=10).returncode == 0:
                return prefix
    return []


def pytest(*args: str) -> list[str]:
    """The command that runs pytest here."""
    return [sys.executable, "-m", "pytest", "-q", *args]


Files = Mapping[str, Sequence[str]]
"""Tier -> the test files to run, where some were chosen."""


def commands(tier: str, extra: Sequence[str], chosen: Files | None = None) -> list[list[str]]:
    """What a tier runs, in order."""
    files = chosen[tier] if chosen and tier in chosen else [f.rstrip("/") for f in FOLDERS.get(tier, ())]
    if tier == "house":
        return [
            [str(BIN / "ruff"), "format", "--check", "--quiet", "."],
            [str(BIN / "ruff"), "check", "--no-cache", "--quiet", "."],
            [str(BIN / "codespell"), "--quiet-level", "2"],
            [str(BIN / "lint-imports"), "--no-cache"],
            [str(BIN / "pyright"), "--warnings"],
            [sys.executable, "-m", "dljob.spec.generate", "--check"],
            [sys.executable, "charts/generate.py", "--check"],
            [sys.executable, "observability/generate.py", "--check"],
            [sys.executable, "docs/generate.py", "--check"],
            [sys.executable, "tests/bench/guard.py"],
        ]
    if tier == "unit" and chosen:  # a part of the tests covers a part of the rooms
        return [pytest(*PURE_TESTS, *files, "-m", "not slow or live", *extra)]
    if tier == "unit":
        covered = [flag for room in PURE for flag in ("--cov", room)]
        report = ["--cov-branch", "--cov-fail-under=100", "--cov-report=term-missing:skip-covered"]
        return [pytest(*PURE_TESTS, *files, "-m", "not slow or live", *covered, *report, *extra)]
    if tier == SLOW:
        real = [file for file in files if file.startswith("tests/ray")]
        pods = [file for file in files if file.startswith("tests/kube")]
        pure = [file for file in files if file not in (*real, *pods)]
        searches = [pytest(*PURE_TESTS, *pure, "-m", "slow and not live", "--timeout=1200", *extra)]
        on_node = [pytest(*pods, "-m", "node and slow", *extra)]
        return [*(searches if pure else []), *(on_ray(SLOW, real, extra) if real else []), *(on_node if pods else [])]
    if tier in (CHART, *ON_REQUEST):
        return on_demand(tier, extra)
    if tier == "kube":  # each run boots a control plane of its own, at ports of its own
        return [pytest(*files, "-m", tier, "-n", str(PLANES), "--dist", "loadfile", *extra)]
    if tier == "node":
        return [pytest(*files, "-m", f"{tier} and not {SLOW}", *extra)]
    whole = not chosen and not extra  # who chooses tests may choose none of that file
    rest = [file for file in files if file != BARE]
    first = [pytest(BARE, *extra)] if whole or BARE in files else []
    return [*first, *(on_ray(f"not {SLOW} and not {GPU}", rest, extra) if rest else [])]


def on_ray(mark: str, files: Sequence[str], extra: Sequence[str]) -> list[list[str]]:
    """The command that runs tests with that mark on a real Ray, of a network of its own where one can be had."""
    prefix = isolated()
    if not prefix:
        print("ray: no network namespace to be had; Ray listens on all interfaces, with a token", flush=True)
        return [pytest(*files, f"--ignore={BARE}", "-m", mark, *extra)]
    # The runs share the files (tests/ray/conftest.py, Lanes), each with a Ray and a network of its own.
    # A test has more time here than in a run alone, and so have its waits (tests/ray/kits/patience.py).
    alone = shlex.join([*prefix, sys.executable])
    side_by_side = ["--tx", f"{SHARDS}*popen//python={alone}", "--dist", "loadscope"]
    return [pytest(*files, f"--ignore={BARE}", "-m", mark, *side_by_side, *extra)]


def on_demand(tier: str, extra: Sequence[str]) -> list[list[str]]:
    """What a tier runs that is no part of all tiers."""
    if tier == CHART:
        return [pytest("tests/unit/chart", *extra)]
    if tier == GPU:  # one test at a time: some take most of the device's memory
        python = str(gpu_environment().make())
        return [[*isolated(), python, "-m", "pytest", "-q", "-n0", "tests/ray/gpu", "-m", GPU, *extra]]
    # The environment first: the tests have a network of their own. One at a time, since each has several ranks.
    made = [sys.executable, "tests/frameworks/environment.py"]
    on_node = pytest(ON_NODE, "-m", FRAMEWORKS, *extra)
    return [made, [*isolated(), *pytest("tests/frameworks", *extra)], on_node]


def gpu_environment() -> ModuleType:
    """Return the module that makes the environment of the GPU's tests; it says why there is none."""
    sys.path.insert(0, str(ROOT / "tests" / "ray" / "gpu"))
    return importlib.import_module("gpu_environment")


def run(
    tier: str, extra: Sequence[str], report: Path, chosen: Files | None = None, log: IO[str] | None = None
) -> tuple[bool, str]:
    """Run one tier, beside another where it has a log; whether it passed, and a line about it."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    try:
        todo = commands(tier, extra, chosen)
    except gpu_environment().NotToBeHadError as error:
        return error.skips, f"{tier}: {'skipped' if error.skips else 'failed'}: {error}"
    begin = time.monotonic()
    for number, command in enumerate(todo):
        print(f"$ {' '.join(c.removeprefix(str(BIN) + '/') for c in command)}", file=log, flush=True)
        noted = [*command, f"--junitxml={report.with_stem(f'{tier}-{number}')}"] if "pytest" in command else command
        told = {"stdout": log, "stderr": log}
        code = subprocess.run([*(BESIDE if log else ()), *noted], cwd=ROOT, env=env, check=False, **told).returncode
        if code and not (chosen and code == NONE_COLLECTED):
            return False, f"{tier}: failed (exit {code}): {' '.join(command)}"
    return True, f"{tier}: passed in {time.monotonic() - begin:.0f} s"


def skipped(tier: str, report: Path) -> list[str]:
    """A line for each reason for which tests of a tier were skipped, with how many."""
    files = sorted(report.parent.glob(f"{report.stem}-*{report.suffix}"))
    found = [e for file in files for e in ElementTree.parse(file).iter("skipped")]  # noqa: S314 - ours
    whys = [e.get("message", "") for e in found if e.get("type") == "pytest.skip"]
    return [f"{tier}: {whys.count(why)} skipped: {why}" for why in sorted(set(whys))]


FETCH = '{ "$0" tests/ray/kits/redis_kit.py; "$0" tests/ray/kits/verl_kit.py; "$0" tests/kits/pythons.py; true; }'
"""A Redis, verl and environments of other Pythons, for tests in a network of their own, which are skipped where these
cannot be had."""


def build(tiers: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Fetch what Ray's tests need, and build Kubernetes and the images for its node, behind everything else."""
    todo = [FETCH, '"$0" -m cluster build', '"$0" tests/kube/images/build.py operator runtime']
    parts = todo if NODES & set(tiers) else todo[:2] if "kube" in tiers else todo[:1]
    command = [
        *BEHIND,
        "sh",
        "-c",
        " && ".join(parts),
        sys.executable,
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "kube")}
    with log.open("wb") as out:
        return subprocess.Popen(command, cwd=ROOT, env=env, stdout=out, stderr=subprocess.STDOUT)


def through(
    tiers: Sequence[str], extra: Sequence[str], work: Path, chosen: Files | None = None
) -> tuple[list[tuple[bool, str]], list[str]]:
    """Run tiers, with what they need built beside them: what `run` says of each, and lines about what was not run."""
    results: list[tuple[bool, str]] = []
    lacking: list[str] = []

    def one(tier: str, log: IO[str] | None = None) -> None:
        report = work / f"{tier}.xml"
        results.append(run(tier, extra, report, chosen, log))
        lacking.extend(skipped(tier, report))

    lent = {"kube", *NODES} if os.environ.get("DLJOB_E2E") == "1" else set[str]()  # by the user, as a cluster
    needy = {SLOW, "ray", "kube", *NODES} & set(tiers) - lent
    building = build([tier for tier in tiers if tier in needy], work / "build.log") if needy else None
    later = "unit" if "unit" in tiers and set(WAITING) & set(tiers) and not chosen else ""
    with ThreadPoolExecutor(1) as pool, (work / "beside.log").open("w+") as log:
        beside: Future[None] | None = None
        for tier in tiers:
            if tier == later:
                continue
            # Ray's tests do not wait for it, but fail where it takes the processor from them.
            if tier in needy and building and building.poll() is None:
                print("waiting for what these tests need to be built (minutes, once)", flush=True)
                building.wait()
            if later and tier in WAITING and beside is None:
                print(f"{later}: beside what follows, and printed after it", flush=True)
                beside = pool.submit(one, later, log)
            one(tier)
        if beside:
            beside.result()
            print(log.seek(0) or log.read(), flush=True)
    if building and building.wait():
        lacking.append(f"the build of Kubernetes and the images: {(work / 'build.log').read_text().strip()[-1000:]}")
    if {"kube", *NODES} & needy and any(NO_HELM in line for line in lacking):
        lacking[:] = [line for line in lacking if NO_HELM not in line]
        one(CHART)
    return results, lacking


def by_tier(tests: Sequence[str], tiers: Sequence[str]) -> dict[str, list[str]]:
    """Tier -> what of these files is in it; a tier without any is left out, `node` where none asks for a node."""
    found = {tier: [test for test in tests if test.startswith(FOLDERS[tier])] for tier in tiers if tier in FOLDERS}
    on_node = re.compile(r"def \w+\([^)]*\bnode\b[:,)]")  # by its fixture, as tests/kube/conftest.py marks it
    if "node" in found:
        found["node"] = [test for test in found["node"] if on_node.search((ROOT / test).read_text(encoding="utf-8"))]
    return {tier: files for tier, files in found.items() if files}


def choose(room: str, base: str, tiers: Sequence[str], beside: str = "") -> tuple[list[str], Files]:
    """The tiers and files of a room, of a change, or of the rooms of one; says which.

    Raises KeyError for a room that there is not.
    """
    sys.path.insert(0, str(ROOT / "tests"))
    from selection.choice import Rooms, changed, near, reached
    from selection.graph import Graph

    if room:
        of = Rooms(Graph())
        told, files = f"room {of.resolve(room)}", by_tier(of.select(room), tiers)
    elif beside:
        there, gone = changed(beside)
        told = f"the rooms of {len(there) + len(gone)} files changed since {beside}, and the house"
        files = by_tier(near(Rooms(Graph()), [*there, *gone]), tiers)
    else:
        selected = reached(Graph(), *changed(base))
        told = f"{len(selected.changed)} files changed since {base}{f'; {selected.why}' if selected.why else ''}"
        files = by_tier(selected.tests, tiers)
    print(f"{told}: {', '.join(f'{len(of)} files of {tier}' for tier, of in files.items()) or 'no tests'}")
    for tier, names in files.items():
        if tier != SLOW:  # the same files as those of unit and ray
            print(f"  {tier}: {' '.join(name.removeprefix('tests/') for name in names)}")
    return [tier for tier in tiers if tier in files or (tier == "house" and not room)], files


def main(argv: Sequence[str]) -> int:
    """Run the tiers named, or all; of these what was chosen, or all."""
    cut = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(prog="tests/tiers.py", allow_abbrev=False)
    parser.add_argument("tiers", nargs="*")
    parser.add_argument("--room", default="", help="a package of the product, as runtime/rpc")
    parser.add_argument("--changed", default="", metavar="BASE", help="what differs from where HEAD and BASE part")
    parser.add_argument("--near", default="", metavar="BASE", help="of what differs the unit tests of its rooms alone")
    parser.add_argument("--list", action="store_true", help="say what would be run")
    asked = parser.parse_args(argv[:cut])
    some = asked.room or asked.changed or asked.near
    tiers, extra, chosen = asked.tiers or list(TIERS if some else USUAL), argv[cut + 1 :], None
    if asked.room == FRAMEWORKS:
        tiers, asked.room = [FRAMEWORKS], ""
    if unknown := set(tiers) - {*TIERS, *ON_REQUEST}:
        print(f"no tier {', '.join(sorted(unknown))}; there are {', '.join([*TIERS, *ON_REQUEST])}", file=sys.stderr)
        return 2
    if asked.room or asked.changed or asked.near:
        try:
            tiers, chosen = choose(asked.room, asked.changed, tiers, asked.near)
        except KeyError as error:
            print(error.args[0], file=sys.stderr)
            return 2
    if asked.list:
        return 0
    with tempfile.TemporaryDirectory() as work:
        results, lacking = through(tiers, extra, Path(work), chosen)
    print("\n".join(["", *(line for _, line in results), *lacking]))
    if GPU not in tiers:
        print("not run: a GPU or NPU (the real node declares both, and none is used): make test ARGS=gpu, on one GPU")
    if not chosen and not {SLOW, GPU} & set(tiers):
        print("not run: searches and long jobs: make test ARGS=slow")
    return 0 if all(ok for ok, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
