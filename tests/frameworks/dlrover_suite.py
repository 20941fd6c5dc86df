"""DLRover's own unified tests of what dljob serves, run on dljob: counts them for docs/reference/dlrover.md.

    git clone https://github.com/intelligent-machine-learning/dlrover && git -C dlrover checkout 7c3e9648
    .venv/bin/python tests/frameworks/dlrover_suite.py dlrover [FOLDER ON PYTHONPATH ...]

The Python needs what they import beside dljob: omegaconf, deprecated, pynvml, pytest-mock; in folders that are named,
or installed. Without a difference to the page's table the exit code is 0.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

# Not by a statement: `docs` is no package, and found by the path above.
SUITE: tuple[tuple[str, int, int, str], ...] = import_module("dlrover_page").SUITE
LIMIT_S = 60


def passed_tests(checkout: Path, file: str, folders: list[str]) -> int:
    """Return how many tests of a file pass; what pytest says of the others is printed."""
    path = os.pathsep.join([str(checkout), *folders, str(ROOT / "workers")])
    # The one that starts a Ray of its own to mock its DataLoader takes minutes to fail.
    words = ["-q", "-p", "no:cacheprovider", f"--timeout={LIMIT_S}", "--tb=line", "--deselect", _STARTS_RAY]
    done = subprocess.run(
        [sys.executable, "-m", "dljob.compat", "--dlrover", "-m", "pytest", *words, f"{_TESTS}/{file}.py"],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    sys.stdout.write(done.stdout)
    count = re.search(r"(\d+) passed", done.stdout)
    return int(count[1]) if count else 0


_TESTS = "dlrover/python/unified/tests"
_STARTS_RAY = f"{_TESTS}/api/test_runtime.py::test_ray_dataloader"


def main(checkout: str, *folders: str) -> int:
    """Run all files of the table; return 1 where it is wrong."""
    wrong = False
    for file, count, expected, _ in SUITE:
        passed = passed_tests(Path(checkout).resolve(), file, list(folders))
        wrong |= passed != expected
        print(f"{file}: {passed} of {count} pass; the page says {expected}")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
