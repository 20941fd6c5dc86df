"""`dljob --help`: how long it takes, and that it imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median

from bench_common import Row, runs

HEAVY = ("ray", "torch", "kubernetes", "kopf")
LOOK = f"""
import sys
from dljob.cli.main import main
try:
    sys.argv = ["dljob", "--help"]
    main()
except SystemExit:
    pass
print(",".join(name for name in {HEAVY!r} if name in sys.modules), file=sys.stderr)
"""


def timed() -> float:
    """Seconds of one `dljob --help`, the interpreter's start included."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "dljob.cli", "--help"], check=True, capture_output=True)
    return time.perf_counter() - begin


def main() -> None:
    """One row."""
    timed()
    took = [timed() for _ in range(runs(15))]
    looked = subprocess.run([sys.executable, "-c", LOOK], check=True, capture_output=True, text=True)
    imported = looked.stderr.strip()
    Row(
        "help",
        "`dljob --help`",
        f"<= 0.8 s; imports no {', '.join(HEAVY)}",
        median(took),
        0.8,
        samples={"dljob": took},
        facts={"none of them imported": imported == ""},
        note=imported and f"imported: {imported}",
    ).emit()


if __name__ == "__main__":
    main()
