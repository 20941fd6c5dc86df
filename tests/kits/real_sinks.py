"""The metric sinks with the real packages: wandb offline, mlflow's file store, TensorBoard's own reader. Run by hand:

    .venv/bin/python tests/kits/real_sinks.py        # two minutes, 300 MB in the tests' cache

Each package has an environment of its own, keyed by its content. Two processes of one run follow each other, as after
a death of PrimeMaster, with a way back from step 6 to step 4 between them.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
UV = ROOT / ".uv" / "bin" / "uv"
KINDS = {"wandb": ("wandb==0.31.0",), "mlflow": ("mlflow-skinny==3.17.2",), "tensorboard": ("tensorboard==2.21.0",)}
KEY = "0123456789abcdef0123456789abcdef01234567"
"""It must stand in no file."""
FIRST = [[1, step, 1000.0 + step, {"loss": 1 / step, "reward": float(step)}] for step in range(1, 7)]
LATER = [[2, step, 1010.0 + step, {"loss": 10.0 + step, "reward": float(step)}] for step in range(4, 9)]
ONCE = [[n, 1 / n] for n in range(1, 7)] + [[n, 10.0 + n] for n in (7, 8)]
ANEW = [[n, 1 / n] for n in range(1, 4)] + [[n, 10.0 + n] for n in range(4, 9)]

LOOKS = {
    "tensorboard": """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
read = EventAccumulator(sys.argv[1] + "/metrics/tensorboard"); read.Reload()
assert sorted(read.Tags()["scalars"]) == ["loss", "reward"]
rows = [[one.step, one.value] for one in read.Scalars("loss")]
""",
    "mlflow": """
from mlflow.tracking import MlflowClient
client = MlflowClient()
(run,) = client.search_runs([client.get_experiment_by_name("dljob").experiment_id])
assert run.info.run_name == "told-01234567"
rows = [[one.step, one.value] for one in client.get_metric_history(run.info.run_id, "loss")]
""",
    "wandb": """
import struct
from pathlib import Path
from wandb.proto import wandb_internal_pb2

def records(data):
    # LevelDB's log format: blocks of 32 KiB, and records of CRC, length and type (1 whole, 2 first, 3 middle, 4 last).
    at, parts = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""

rows, ids = [], set()
for path in sorted(Path(sys.argv[1]).glob("metrics/wandb/wandb/offline-run-*/*.wandb")):
    for data in records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.run.run_id:
            ids.add(record.run.run_id)
        values = {(i.key or i.nested_key[0]): json.loads(i.value_json) for i in record.history.item}
        if "loss" in values:
            rows.append([record.history.step.num, values["loss"]])
assert ids == {"told-01234567"}, ids
""",
}


def environment(kind: str) -> Path:
    """The python of a package's environment, made once."""
    cache = Path(os.environ.get("DLJOB_CACHE") or Path.home() / ".cache" / "dljob")
    packages = [*KINDS[kind], "pydantic>=2.11", "immutables>=0.21", "ruamel.yaml>=0.18"]
    home = cache / f"sinks-{kind}-{hashlib.sha256(json.dumps(packages).encode()).hexdigest()[:12]}"
    if not (home / "made").exists():
        subprocess.run([UV, "venv", "-q", "--clear", "--python", sys.executable, home], check=True)
        subprocess.run([UV, "pip", "install", "-q", "--python", home / "bin" / "python", *packages], check=True)
        (home / "made").touch()
    return home / "bin" / "python"


def feed(python: Path, folder: Path, rows: list[list[object]], attempt: int, env: dict[str, str]) -> str:
    """Run the sinks' process with these rows; what it reported."""
    order = {"name": "told", "uid": "0123456789abcdef", "attempt": attempt, "folder": str(folder), "code": ""}
    done = subprocess.run(
        [python, "-m", "dljob.runtime.sinks.process", json.dumps(order)],
        input="".join(json.dumps(row) + "\n" for row in rows),
        capture_output=True, text=True, env=env, timeout=120, check=True,
    )  # fmt: skip
    (folder / "metrics.log").open("a").write(done.stderr)
    return done.stdout


def check(kind: str, folder: Path) -> None:
    """One package: its rows after two processes."""
    python = environment(kind)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "workers"), "MLFLOW_ALLOW_FILE_STORE": "true"}
    env |= {"wandb": {"WANDB_MODE": "offline", "WANDB_API_KEY": KEY}}.get(kind, {})
    env |= {"mlflow": {"MLFLOW_TRACKING_URI": f"file://{folder}/mlruns", "MLFLOW_TRACKING_TOKEN": KEY}}.get(kind, {})
    with tempfile.TemporaryDirectory() as site:
        info = Path(site, "dljob-0.dist-info")
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dljob\nVersion: 0\n")
        text = (ROOT / "pyproject.toml").read_text().partition('"dljob.sinks"]\n')[2].partition("\n\n")[0]
        (info / "entry_points.txt").write_text("[dljob.sinks]\n" + text.replace('"', ""))
        env["PYTHONPATH"] += f":{site}"
        said = feed(python, folder, FIRST, 1, env) + feed(python, folder, LATER, 2, env)
    assert not said, said
    look = f"import json, sys\n{LOOKS[kind]}\nprint(json.dumps(rows))"
    shown = subprocess.run([python, "-c", look, folder], capture_output=True, text=True, env=env, check=False)
    assert shown.returncode == 0, shown.stderr
    rows = [[step, round(value, 6)] for step, value in json.loads(shown.stdout.splitlines()[-1])]
    expected = ANEW if kind == "tensorboard" else ONCE
    assert rows == [[step, round(value, 6)] for step, value in expected], rows
    leaks = [path for path in folder.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert not leaks, leaks
    print(f"{kind}: {KINDS[kind][0]}, {len(rows)} rows, one run, no key in any file")


if __name__ == "__main__":
    for name in sys.argv[1:] or KINDS:
        with tempfile.TemporaryDirectory() as made:
            check(name, Path(made))
