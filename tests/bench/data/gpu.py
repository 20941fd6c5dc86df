"""Saves, restores and weights of a state on a real GPU, beside bare copies of it. Prints one JSON object.

    python tests/bench/data/gpu.py

It needs an NVIDIA GPU with 3 GiB free, 20 GiB of memory and torch with CUDA; the job is run as `dljob run` runs it. Its
object store has 15 % of /dev/shm: with less than 14 GiB there versions go over the disk.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

APP = Path(__file__).resolve().parents[1] / "apps" / "gpu_app.py"
LIMIT_S = 170
MANIFEST = """\
apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata: {name: gpu}
spec:
  faultTolerance: {backoff: {initialSeconds: 0}, spares: {processesPerNode: %d}}
  roles:
  - {name: trainer, entrypoint: {class: gpu_app.trains}, accelerator: {type: GPU, count: 1}}
  - {name: rollout, driver: false, entrypoint: {class: gpu_app.receives}}
"""


def measured(spares: int) -> dict[str, object]:
    """Run the job once; return its result, with the seconds of its recovery.

    Raises:
        RuntimeError: It failed; the message has what it said.
        TimeoutExpired: It did not end within LIMIT_S.
    """
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        shutil.copy(APP, folder)
        (folder / "job.yaml").write_text(MANIFEST % spares)
        # Without what a Ray of the caller's, such as that of the tests, is told by variables.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "DLJOB_"))}
        env = {**kept, "DLJOB_HOME": str(folder / "home")}
        run = [sys.executable, "-m", "dljob.cli", "run", "--quiet", str(folder / "job.yaml")]
        done = subprocess.run(run, env=env, capture_output=True, text=True, check=False, timeout=LIMIT_S)
        if done.returncode:
            raise RuntimeError(f"the job ended with exit code {done.returncode}: {done.stderr.strip()[-4000:]}")
        (events,) = folder.glob("home/jobs/*/events.jsonl")
        notes = [json.loads(line) for line in events.read_text().splitlines()]
        recovered = next(note["seconds"] for note in notes if note["reason"] == "Recovered")
        told = json.loads(done.stdout.splitlines()[-1]) | {"spares": spares, "recovered": recovered}
        return told | {"save in bare copies": round(told["save"] / told["copy to pinned memory"], 2)}


if __name__ == "__main__":
    gpu = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    name = subprocess.run(gpu, capture_output=True, text=True, check=True).stdout.strip()
    print(json.dumps({"gpu": name, "cpus": os.cpu_count(), "runs": [measured(0), measured(1)]}, indent=1))
