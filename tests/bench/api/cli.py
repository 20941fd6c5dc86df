"""`dljob --help`, and `dljob status` of a running job: how long they take, and that help imports nothing heavy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Row, folder, runs, until

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


JOB = """apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata: {name: waits}
spec: {roles: [{name: worker, replicas: 2, resources: {cpu: 100m}, entrypoint: {command: [sleep, "600"]}}]}
"""


def dljob(*words: str) -> str:
    """What a command prints on stdout."""
    command = [sys.executable, "-m", "dljob.cli", *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout


def timed(*words: str) -> float:
    """Seconds of a command, the interpreter's start included."""
    begin = time.perf_counter()
    dljob(*words)
    return time.perf_counter() - begin


def status() -> list[float]:
    """Seconds of `dljob status JOB`, each while the job runs on a Ray of its own."""
    with folder() as home:
        os.environ["DLJOB_HOME"] = str(home / "state")
        file = home / "waits.yaml"
        file.write_text(JOB)
        dljob("run", str(file), "--detach")
        try:
            until(lambda: json.loads(dljob("status", "waits", "-o", "json"))["phase"] == "Running", 120, 0.5)
            return [timed("status", "waits") for _ in range(runs(15))]
        finally:
            dljob("stop", "waits", "--wait")


def main() -> None:
    """Two rows."""
    timed("--help")
    took = [timed("--help") for _ in range(runs(15))]
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
    asked = status()
    Row(
        "status", "`dljob status JOB` of a running job", "<= 0.5 s", median(asked), 0.5, samples={"dljob": asked}
    ).emit()


if __name__ == "__main__":
    main()
