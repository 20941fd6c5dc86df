"""A soak: uneven steps, checkpoints, compilations, slow calls, queues and weights for SOAK_S seconds (3600).

At the end one rank is stopped, and must be named. Exits 1 when anything was said of a hang, a stall, a straggler or
slowness before that, when anything was restarted, or when the stopped rank is not named. Bounds are far below the
defaults, so that they are tried: a pause is up to half of what they allow.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Entries, cluster, folder, say, until
from bench_jobs import end, manifest, role, submit

from dljob.master.state.problems import SLOWNESS
from dljob.telemetry import reasons

BOUNDS = {"idleSeconds": 20, "busySeconds": 60}
ALARMS = {reasons.HANG_FOUND, reasons.STALL_FOUND, reasons.STRAGGLER_FOUND, *SLOWNESS} - {reasons.MACHINE_BUSY}
"""That the machine is busy is true of one that has fewer CPUs than ranks."""
LOOK_S = 10.0
VICTIM = 2


def alarms(handle: Any) -> list[str]:
    """All that was said of hangs, stalls, stragglers and slowness."""
    return [f"{note['target']}: {note['message']}" for note in handle.events() if note["reason"] in ALARMS]


def soak(handle: Any, seconds: float) -> list[str]:
    """Watch for so long; gives what was said, or restarted."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        time.sleep(min(LOOK_S, max(0.1, until_s - time.monotonic())))
        seen = handle.status()
        steps = {row["role"]: row["step"] for row in seen["ranks"] if row["rank"] == 0}
        restarts = sum(seen["restarts"].values())
        say(f"  {until_s - time.monotonic():6.0f} s left; steps {steps}; restarts {restarts}")
        if wrong := [*alarms(handle), *([f"{restarts} restarts"] if restarts else [])]:
            return wrong
    return []


def main() -> int:
    """The soak, and one rank that is stopped."""
    seconds = float(os.environ.get("SOAK_S", "3600"))
    with cluster(4), folder() as out:
        entries = Entries(out)
        trainer = role(
            "trainer", "hang_app.Trainer", 4, type="Elastic", config={"uneven": True}, comm={"backend": "gloo"}
        )
        others = [
            role("rollout", "hang_app.Rollout", 2),
            role("judge", "hang_app.Judge", 1, driver=False),
            role("feeder", "hang_app.Feeder", 1, driver=False),
        ]
        handle = submit(manifest("soak", out, [trainer, *others], hang=BOUNDS))
        entries.await_count(8)
        wrong = soak(handle, seconds)
        named: list[str] = []
        took = 0.0
        if not wrong:
            stopped = time.monotonic()
            os.kill(entries.last_of("trainer", VICTIM)["pid"], signal.SIGSTOP)
            named = until(lambda: alarms(handle), 60, 0.05)
            took = time.monotonic() - stopped
        right = [line.startswith(f"trainer/{VICTIM}:") for line in named] == [True]
        print(json.dumps({"seconds": seconds, "falseAlarms": wrong, "named": named, "namedAfterS": round(took, 2)}))
        end(handle)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
