"""Run every tier of the tests that this machine can run, one after another, and end with what was not run.

    python tests/tiers.py [tier ...] [-- pytest arguments]

Tiers: `house` (format, lint, types, imports, generated files), `unit` (pure code, with branch coverage),
`ray` (a real Ray of several raylets; where namespaces may be made, in one with only loopback, since Ray listens on all
interfaces). Exits 1 when any tier fails; a tier that cannot run here is named with what it would take.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
PURE = ("dljob.spec", "dljob.plan", "dljob.master", "dljob.control", "dljob.telemetry")


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
        ]
    if tier == "unit":
        covered = [flag for room in PURE for flag in ("--cov", room)]
        report = ["--cov-branch", "--cov-fail-under=100", "--cov-report=term-missing:skip-covered"]
        return [pytest("-n", "2", "tests/unit", *covered, *report, *extra)]
    prefix = isolated()
    if not prefix:
        print("ray: no network namespace to be had; Ray listens on all interfaces, with a token", flush=True)
    return [[*prefix, *pytest("tests/ray", *extra)]]


def run(tier: str, extra: Sequence[str]) -> tuple[bool, str]:
    """Run one tier; whether it passed, and a line about it."""
    begin = time.monotonic()
    env = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    for command in commands(tier, extra):
        print(f"$ {' '.join(c.removeprefix(str(BIN) + '/') for c in command)}", flush=True)
        if code := subprocess.run(command, cwd=ROOT, env=env, check=False).returncode:
            return False, f"{tier}: failed (exit {code}): {' '.join(command)}"
    return True, f"{tier}: passed in {time.monotonic() - begin:.0f} s"


def main(argv: Sequence[str]) -> int:
    """Run the tiers named, or all."""
    cut = argv.index("--") if "--" in argv else len(argv)
    tiers, extra = list(argv[:cut]) or ["house", "unit", "ray"], argv[cut + 1 :]
    results = [run(tier, extra) for tier in tiers]
    print("\n".join(["", *(line for _, line in results)]))
    print("not run: a GPU or NPU (none here is used), Kubernetes (comes with the operator)")
    return 0 if all(ok for ok, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
