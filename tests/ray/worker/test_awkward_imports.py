"""Classes whose import starts threads, takes signals, forks, ends or holds objects of Ray, and one nothing can pickle.

They restart as others do, use Ray as any program of its own, and end in order.
"""

from __future__ import annotations

import os
import signal

import pytest
from prime_help import Job, eventually

pytestmark = pytest.mark.ray
KILLED = {
    **dict.fromkeys(("threads", "fork", "objects", "tasks", "lock"), signal.SIGKILL),
    # The host has a handler of its own in the main thread, whatever the import has tried.
    "signals": signal.SIGTERM,
}
"""What is sent to the first life of each."""
KINDS = (*KILLED, "exit")


def first_causes(job: Job) -> dict[str, str]:
    return {fault["target"]: fault["firstCause"] for fault in job.connection.status()["recentFaults"]}


def test_ranks_with_awkward_imports_restart_work_in_each_life_and_end_in_order(job: Job) -> None:
    def role(kind: str, entry: str) -> dict[str, object]:
        env = [{"name": "AWKWARD", "value": kind}]
        return job.role(
            kind, f"awkward.imports.{entry}", env=env, config={"asked": list(KINDS)}, resources={"cpu": "100m"}
        )

    roles = [role(kind, "Locked" if kind == "lock" else "Awkward") for kind in KINDS]
    job.start(*roles, role("asks", "Asks"), role("leaves", "leaves"))
    names = [f"{kind}/0" for kind in KILLED]
    pids = job.running(*names, "exit/0", "asks/0", "leaves/0", incarnation={"leaves/0": 2, "exit/0": 2})
    for kind, number in KILLED.items():
        os.kill(pids[f"{kind}/0"], number)
    job.running(*names, incarnation=dict.fromkeys(names, 2))
    os.kill(pids["asks/0"], signal.SIGKILL)
    job.running("asks/0", incarnation={"asks/0": 2})

    # Ray tells no exit code of its workers, and no agent watches them before the job runs: who forked them knows it.
    ends = {"exit/0": "exited with code 4", "leaves/0": "exited with code 3", "signals/0": "SIGTERM from outside"}

    def told() -> bool:
        causes = first_causes(job)
        return all(words in causes.get(rank, "") for rank, words in ends.items())

    eventually(told, 30, job.seen)
    job.go()
    job.connection.command("stop", by="the test")
    status = job.connection.wait(120)
    assert (status["phase"], status["reason"]) == ("Stopped", "StoppedByUser"), job.seen()
    assert status["restarts"]["process"] == len(KILLED) + 3
    reasons = {kind: (job.folder / f"{kind}-0-stopped").read_text() for kind in KINDS}
    assert reasons == dict.fromkeys(KINDS, "StoppedByUser"), "a rank that does not hear it is ended, and writes none"
    job.nothing_left()
