"""Classes whose import starts threads, takes signals, forks or holds objects of Ray: they restart as others do."""

from __future__ import annotations

import os
import signal

import pytest
from prime_help import Job

pytestmark = pytest.mark.ray
KINDS = ("threads", "signals", "fork", "objects")


def test_ranks_with_awkward_imports_restart_and_work_in_each_life(job: Job) -> None:
    def role(kind: str, entry: str) -> dict[str, object]:
        env = [{"name": "AWKWARD", "value": kind}]
        return job.role(
            kind, f"awkward.imports.{entry}", env=env, config={"asked": list(KINDS)}, resources={"cpu": "100m"}
        )

    roles = [role(kind, "Awkward") for kind in KINDS]
    job.start(*roles, role("asks", "Asks"), role("leaves", "leaves"))
    names = [f"{kind}/0" for kind in KINDS]
    # `os._exit` in user code is a process that is gone: Ray tells no exit code of its workers.
    pids = job.running(*names, "asks/0", "leaves/0", incarnation={"leaves/0": 2})
    for name in names:
        os.kill(pids[name], signal.SIGKILL)
    job.running(*names, incarnation=dict.fromkeys(names, 2))
    os.kill(pids["asks/0"], signal.SIGKILL)
    job.running("asks/0", incarnation={"asks/0": 2})
    job.go()
    status = job.connection.wait(120)
    assert status["phase"] == "Succeeded", job.seen()
    assert status["restarts"]["process"] == len(KINDS) + 2
    causes = {fault["target"]: fault["firstCause"] for fault in status["recentFaults"]}
    assert "process gone" in causes["leaves/0"]
    job.nothing_left()
