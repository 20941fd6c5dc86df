"""`dljob why`, `ledger` and `events --tail 100` on a folder of 1,000,000 events: time and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Row, folder, runs

EVENTS, RANKS = 1_000_000, 10_000
UID = "1b2f3c4d" * 4


def fill(where: Path) -> None:
    """Write a job's folder: every second event is a restart."""
    fault = {"level": "Process", "reason": "OOMKilled", "target": "w/7", "rank": "w/7", "incarnation": 3,
             "firstCause": "w/7: OOMKilled: ended by SIGKILL", "evidence": ["exit code 137"] * 8, "followed": [],
             "detectedAt": "2026-01-01T00:00:00Z", "recoveredAt": None, "seconds": None}  # fmt: skip
    ranks = [{"role": "w", "rank": n, "phase": "Ready", "incarnation": 1, "node": "n" * 56, "pid": n, "actor": "a" * 40,
              "step": 100, "log": "/tmp/session/logs/" + "l" * 120} for n in range(RANKS)]  # fmt: skip
    accounts = {"init": 1e5, "productive": 9e5}
    ledger = {"seconds": 100.0, "processes": RANKS, "goodput": 0.9, "recentGoodput": 0.9, "accounts": accounts,
              "roles": [{"name": "w", "accounts": accounts}]}  # fmt: skip
    status = {
        "name": "large",
        "uid": UID,
        "phase": "Failed",
        "reason": "UserErrorRepeats",
        "message": "w/7",
        "recentFaults": [fault] * 16,
        "restarts": {"process": EVENTS // 2},
        "ledger": ledger,
        "ranks": ranks,
    }
    (where / "status.json").write_text(json.dumps(status))
    (where / "spec.json").write_text(json.dumps({"spec": {"roles": [{"name": "w", "replicas": RANKS}]}}))
    with (where / "events.jsonl").open("w") as file:
        for seq in range(1, EVENTS + 1):
            file.write(
                f'{{"seq": {seq}, "time": {1.8e9 + seq}, "reason": "Restarting", "target": "w/{seq % RANKS}",'
                f' "level": "Process", "message": "w/{seq % RANKS}: Killed: ended by SIGKILL, exit code 137"}}\n'
            )


def measure(where: Path, *words: str) -> tuple[float, float]:
    """Return the seconds and the peak in MB of a command, the interpreter's start included."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "dljob.cli", words[0], f"{where}/", *words[1:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = process.stdout.read().count("\n")
        _, _, used = os.wait4(process.pid, 0)
    assert lines > 5, words
    return time.perf_counter() - begin, used.ru_maxrss * 1024 / 1e6


def main() -> None:
    """Measure each command, and print its row."""
    with folder() as home:
        fill(home)
        for words in (("why",), ("ledger",), ("events", "--tail", "100")):
            found = [measure(home, *words) for _ in range(runs(5))]
            times, peak = [seconds for seconds, _ in found], max(peak for _, peak in found)
            Row(
                f"large-folder-{words[0]}",
                f"`dljob {' '.join(words)}` on a folder of 1,000,000 events and 10,000 ranks",
                "<= 2 s, <= 200 MB",
                median(times),
                2.0,
                samples={"seconds": times},
                facts={"peak under 200 MB": peak <= 200},
                note=f"peak {peak:.0f} MB",
            ).emit()


if __name__ == "__main__":
    main()
