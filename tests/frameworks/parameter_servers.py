"""The example tf-ps on the real TensorFlow, with its faults file: what the run said.

.venv/bin/python tests/frameworks/parameter_servers.py    # seconds from a kill until the loss goes on
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environment import make

EXAMPLE = Path(__file__).parents[2] / "examples" / "tf-ps"
LONG = 1500
"""Seconds: each start of a process imports TensorFlow, which takes a minute of a machine in full use."""
_STEP = re.compile(r"^\[ *([\d.]+)s\] step (\d+)  loss", re.MULTILINE)
_FAULT = re.compile(r"^\[ *([\d.]+)s\] fault: kill (\S+) at step (\d+)", re.MULTILINE)
_AGAIN = re.compile(r"^\[ *([\d.]+)s\] CheckpointRestored chief/0", re.MULTILINE)


@dataclass(frozen=True)
class FaultyRun:
    """What a run of the example said."""

    said: str

    @property
    def result(self) -> dict[str, Any]:
        """The last line of `dljob run`."""
        return json.loads(next(line for line in reversed(self.said.splitlines()) if line.startswith("{")))

    @property
    def goes_on(self) -> dict[str, float]:
        """Target of each kill -> seconds until the next step is told, of one that was restored where it had to be."""
        found: dict[str, float] = {}
        for at, target, _ in _FAULT.findall(self.said):
            begin = float(at)
            if not target.startswith("worker"):
                begin = min(float(time) for time in _AGAIN.findall(self.said) if float(time) > begin)
            found[target] = min(float(time) for time, _ in _STEP.findall(self.said) if float(time) > begin) - float(at)
        return found


def run(folder: Path) -> FaultyRun:
    """Run the example with its faults, each role by the Python of the environment with TensorFlow."""
    python = make("tensorflow")
    here = folder / "tf-ps"
    shutil.copytree(EXAMPLE, here)
    text = (here / "dljob.yaml").read_text()
    (here / "dljob.yaml").write_text(text.replace("    entrypoint:", f"    python: {python}\n    entrypoint:"))
    env = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        "DLJOB_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "NO_COLOR": "1",
        "RAY_USAGE_STATS_ENABLED": "0", "TF_CPP_MIN_LOG_LEVEL": "2",
    }  # fmt: skip
    command = [sys.executable, "-m", "dljob.cli", "run", here / "dljob.yaml", "--faults", here / "faults.yaml"]
    done = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LONG, check=False
    )
    return FaultyRun(done.stdout)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as work:
        for target, seconds in run(Path(work)).goes_on.items():
            print(f"{target} killed -> loss goes on: {seconds:.1f} s")
