"""A soak: honest waits of each kind, as uneven as they come, for SOAK_S (3600) s; then a stall and a stopped rank.

All bounds are the defaults divided by SOAK_DIVISOR, and so are the pauses (`hang_app`): calls and items with tails of
100 times the usual, evaluations of 100 steps, a first and later compilations, slow saves, cuts, barriers, weights, and
a person at a debugger's prompt for longer than a hang may last, who must be told and is no hang.

Exits 1 when anything else was said of a hang, a stall, a straggler or slowness, when anything was restarted, when a
call that is not answered any more is told later than LATE_S after its limit, or when a stopped rank is not named.
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
from bench_common import Entries, Row, cluster, folder, say, until
from bench_jobs import end, manifest, role, submit

from dljob.master.state.problems import SLOWNESS
from dljob.master.state.waits import Wait, told_after_s
from dljob.spec.policy import HangPolicy
from dljob.telemetry import reasons

DIVISOR = float(os.environ.get("SOAK_DIVISOR", "5"))
POLICY = HangPolicy(
    idle_seconds=round(HangPolicy().idle_seconds / DIVISOR), busy_seconds=round(HangPolicy().busy_seconds / DIVISOR)
)
ALARMS = {reasons.HANG_FOUND, reasons.STALL_FOUND, reasons.STRAGGLER_FOUND, *SLOWNESS} - {reasons.MACHINE_BUSY}
"""That the machine is busy is true of one that has fewer CPUs than ranks."""
AT_PROMPT = "debugged/0 is in a debugger"
LOOK_S = 10.0
LATE_S = 5.0
VICTIM = 2


def alarms(handle: Any) -> list[str]:
    """All that was said of hangs, stalls, stragglers and slowness, but that somebody is at a debugger's prompt."""
    return [
        f"{note['target']}: {note['reason']}: {note['message']}"
        for note in handle.events()
        if note["reason"] in ALARMS and not (note["reason"] == reasons.STALL_FOUND and AT_PROMPT in note["message"])
    ]


def prompts(handle: Any) -> int:
    """How often it was told that somebody is at a debugger's prompt."""
    return sum(note["reason"] == reasons.STALL_FOUND and AT_PROMPT in note["message"] for note in handle.events())


def soak(handle: Any, seconds: float) -> list[str]:
    """Watch for so long; gives what was said, or restarted."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        time.sleep(min(LOOK_S, max(0.1, until_s - time.monotonic())))
        seen = handle.status()
        steps = {row["role"]: row["step"] for row in seen["ranks"] if row["rank"] == 0}
        restarts = sum(seen["restarts"].values())
        left = until_s - time.monotonic()
        say(f"  {left:6.0f} s left; load {os.getloadavg()[0]:.0f}; steps {steps}; restarts {restarts}")
        if wrong := [*alarms(handle), *([f"{restarts} restarts"] if restarts else [])]:
            return wrong
    return []


def told_late(handle: Any, out: Path) -> tuple[float, float, list[str]]:
    """Plant a call that is not answered any more; return its limit, how long it then took, and what was said."""
    (out / "plant").touch()
    until((out / "planted").exists, 60, 0.05)
    begun = time.monotonic()
    usual = json.loads((out / "asked").read_text())
    wait = Wait("call", "answerer", "answer", 0.0, usual["count"], usual["median"], usual["longest"])
    limit = told_after_s(wait, POLICY, uses_cpu=False)
    told = until(lambda: [line for line in alarms(handle) if "answerer/0" in line], limit + 60, 0.1)
    return limit, time.monotonic() - begun - limit, told


def main() -> int:
    """The soak, a stall, and one rank that is stopped."""
    seconds = float(os.environ.get("SOAK_S", "3600"))
    with cluster(4), folder() as out:
        entries = Entries(out)
        roles = [
            role("trainer", "hang_app.Trainer", 4, type="Elastic", config={"uneven": True}, comm={"backend": "gloo"}),
            role("rollout", "hang_app.Rollout", 2, driver=False),
            *(role(name, f"hang_app.{name.title()}", 1, driver=False) for name in OTHERS),
        ]
        bounds = {"idleSeconds": POLICY.idle_seconds, "busySeconds": POLICY.busy_seconds}
        document = manifest("soak", out, roles, hang=bounds)
        document["spec"]["config"]["divisor"] = DIVISOR
        handle = submit(document)
        entries.await_count(6 + len(OTHERS), 300)
        wrong = soak(handle, seconds)
        at_prompt, named, took, limit, late = prompts(handle), list[str](), 0.0, 0.0, 0.0
        if not wrong:
            limit, late, _ = told_late(handle, out)
            stopped = time.monotonic()
            os.kill(entries.last_of("trainer", VICTIM)["pid"], signal.SIGSTOP)
            of_victim = f"trainer/{VICTIM}: {reasons.HANG_FOUND}"
            named = until(lambda: [line for line in alarms(handle) if line.startswith(of_victim)], 60, 0.05)
            took = time.monotonic() - stopped
        facts = {"no false alarm": not wrong, "told at a debugger's prompt": at_prompt > 0, "named": len(named) == 1}
        say("\n".join(wrong))
        Row(
            "soak",
            f"{seconds / 60:.0f} min of honest waits of each kind, limits / {DIVISOR:g}: false alarms; "
            f"then a stall: told after its limit",
            f"0; <= {LATE_S:g} s",
            late if not wrong else float(len(wrong)),
            LATE_S,
            facts={
                **facts,
                "limit (s)": round(limit, 1),
                "prompts told": at_prompt,
                "stopped, named (s)": round(took, 2),
            },
        ).emit()
        end(handle)
    return 0 if all(facts.values()) and late <= LATE_S else 1


OTHERS = ("judge", "feeder", "debugged", "asker", "answerer")
"""Roles of one rank, each of the class of its name."""

if __name__ == "__main__":
    sys.exit(main())
