"""Run every tier of the tests that this machine can run, one after another, and end with what was not run.

    python tests/tiers.py [tier ...] [-- pytest arguments]

Tiers: `house` (format, lint, types, imports, generated files), `unit` (pure code, with branch coverage), `slow`
(simulations and searches, of seconds each), `ray` (a real Ray of several raylets; where namespaces may be made, two
runs side by side, each in one with only loopback, since Ray listens on all interfaces), `kube` (a real control plane
with KubeRay, for each of three runs), `node` (a real Kubernetes node, where pods run). Kubernetes and the images are
built beside the first two; `slow` runs behind `kube` and `node`, in the time in which these wait. Exits 1 when any
tier fails; what was skipped is named with what it takes. The unit tests of the chart, which are skipped while helm is
still being built, are run once it is.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
PURE = ("dljob.spec", "dljob.plan", "dljob.master", "dljob.control", "dljob.calls", "dljob.telemetry")
TIERS = ("house", "unit", "slow", "ray", "kube", "node")
CHART = "chart"  # what of the unit tier takes helm; run at the end where helm came too late for it
NO_HELM = "skipped: no helm"
# Some take a minute, most a millisecond. The same draws in each run: what fails here fails again.
PURE_TESTS = ("-n", "2", "--dist", "worksteal", "--hypothesis-seed=0", "tests/unit", "tests/replay")
# Ray's workers are nice themselves (15): beside them only who is idle gets out of the way.
BEHIND = ("chrt", "--idle", "0") if shutil.which("chrt") else ("nice", "-n", "19")
SHARDS = 2  # of the Ray tier, which takes all of two cores
PLANES = 3  # of the kube tier, in which two runs leave a quarter of two cores idle: silence must last, time must pass


def isolated() -> list[str]:
    """The command prefix that gives a network of its own with only loopback; empty where that cannot be had."""
    up = ["bash", "-c", 'ip link set lo up && exec "$@"', "_"]
    for flags in (["-n"], ["-rn"]):
        prefix = ["unshare", *flags, *up]
        try:
            if subprocess.run([*prefix, "true"], capture_output=True, check=False, timeout=10).returncode == 0:
                return prefix
        except (OSError, subprocess.TimeoutExpired):
            break
    return []


def pytest(*args: str) -> list[str]:
    """The command that runs pytest here."""
    return [sys.executable, "-m", "pytest", "-q", *args]


def commands(tier: str, extra: Sequence[str]) -> list[list[str]]:
    """What a tier runs, in order."""
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
        ]
    if tier == "unit":
        covered = [flag for room in PURE for flag in ("--cov", room)]
        report = ["--cov-branch", "--cov-fail-under=100", "--cov-report=term-missing:skip-covered"]
        return [pytest(*PURE_TESTS, "-m", "not slow or live", *covered, *report, *extra)]
    if tier == "slow":  # what it is behind may take all of the processor for minutes
        return [pytest(*PURE_TESTS, "-m", "slow and not live", "--timeout=1200", *extra)]
    if tier == CHART:
        return [pytest("tests/unit/chart", *extra)]
    if tier == "kube":  # each run boots a control plane of its own, at ports of its own
        return [pytest("tests/kube", "-m", tier, "-n", str(PLANES), "--dist", "loadfile", *extra)]
    if tier == "node":
        return [pytest("tests/kube", "-m", tier, *extra)]
    prefix = isolated()
    if not prefix:
        print("ray: no network namespace to be had; Ray listens on all interfaces, with a token", flush=True)
        return [pytest("tests/ray", *extra)]
    # The runs share the files (tests/ray/conftest.py, Lanes), each with a Ray and a network of its own.
    # What ends a test that hangs is more than it is for a run alone; so is what tests wait (tests/ray/patience.py).
    alone = shlex.join([*prefix, sys.executable])
    side_by_side = ["--tx", f"{SHARDS}*popen//python={alone}", "--dist", "loadscope", "--timeout=300"]
    return [pytest("tests/ray", *side_by_side, *extra)]


def run(tier: str, extra: Sequence[str], report: Path, log: Path | None = None) -> tuple[bool, str]:
    """Run one tier; whether it passed, and a line about it. One with a log of its own runs behind all else."""
    begin = time.monotonic()
    env = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    with log.open("w") if log else nullcontext() as out:
        for command in commands(tier, extra):
            print(f"$ {' '.join(c.removeprefix(str(BIN) + '/') for c in command)}", file=out, flush=True)
            noted = [*command, f"--junitxml={report}"] if "pytest" in command else command
            noted = [*BEHIND, *noted] if log else noted
            if code := subprocess.run(noted, cwd=ROOT, env=env, stdout=out, stderr=out, check=False).returncode:
                return False, f"{tier}: failed (exit {code}): {' '.join(command)}"
    return True, f"{tier}: passed in {time.monotonic() - begin:.0f} s"


def skipped(tier: str, report: Path) -> list[str]:
    """A line for each reason for which tests of a tier were skipped, with how many."""
    if not report.exists():
        return []
    found = [e for e in ElementTree.parse(report).iter("skipped") if e.get("type") == "pytest.skip"]  # noqa: S314 - ours
    whys = [e.get("message", "") for e in found]
    return [f"{tier}: {whys.count(why)} skipped: {why}" for why in sorted(set(whys))]


def build(tiers: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Build Kubernetes, and the images for its node, behind everything else that this machine does.

    A Redis and verl are fetched first, for tests in a network of their own, which are skipped where they cannot be had.
    """
    todo = [
        '{ "$0" tests/ray/redis_kit.py; "$0" tests/ray/verl_kit.py || true; } && "$0" -m cluster build',
        '"$0" tests/kube/images/build.py operator runtime',
    ]
    command = [*BEHIND, "sh", "-c", " && ".join(todo if "node" in tiers else todo[:1]), sys.executable]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "kube")}
    with log.open("wb") as out:
        return subprocess.Popen(command, cwd=ROOT, env=env, stdout=out, stderr=subprocess.STDOUT)


def through(tiers: Sequence[str], extra: Sequence[str], work: Path) -> tuple[list[tuple[bool, str]], list[str]]:
    """Run tiers, with what they need built beside them: what `run` says of each, and lines about what was not run."""
    results: list[tuple[bool, str]] = []
    lacking: list[str] = []

    def one(tier: str, log: Path | None = None) -> None:
        report = work / f"{tier}.xml"
        results.append(run(tier, extra, report, log))
        lacking.extend(skipped(tier, report))

    ours = {"kube", "node"} & set(tiers) and os.environ.get("DLJOB_E2E") != "1"  # else the user lends a cluster
    building = build(tiers, work / "build.log") if ours else None
    behind = threading.Thread(target=one, args=("slow", work / "slow.log")) if ours and "slow" in tiers else None
    for tier in tiers:
        # Ray's tests do not wait for it, but fail where it takes the processor from them.
        if tier in ("ray", "kube", "node") and building and building.poll() is None:
            print("waiting for Kubernetes and the images to be built (minutes, once)", flush=True)
            building.wait()
        if behind and not behind.ident and tier in ("kube", "node"):
            behind.start()
        if tier != "slow" or not behind:
            one(tier)
    if behind:
        behind.join()
        print((work / "slow.log").read_text(), flush=True)
    if building and building.wait():
        lacking.append(f"the build of Kubernetes and the images: {(work / 'build.log').read_text().strip()[-1000:]}")
    if building and any(NO_HELM in line for line in lacking):
        lacking[:] = [line for line in lacking if NO_HELM not in line]
        one(CHART)
    return results, lacking


def main(argv: Sequence[str]) -> int:
    """Run the tiers named, or all."""
    cut = argv.index("--") if "--" in argv else len(argv)
    tiers, extra = list(argv[:cut]) or list(TIERS), argv[cut + 1 :]
    if unknown := set(tiers) - set(TIERS):
        print(f"no tier {', '.join(sorted(unknown))}; there are {', '.join(TIERS)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as work:
        results, lacking = through(tiers, extra, Path(work))
    print("\n".join(["", *(line for _, line in results), *lacking]))
    print("not run: a GPU or NPU (the real node declares both, and none is used)")
    return 0 if all(ok for ok, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
