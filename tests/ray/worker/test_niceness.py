"""The niceness of a role's ranks: theirs and their children's in each incarnation, and nobody else's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from prime_help import QUICK, Job, said

pytestmark = pytest.mark.ray


def may_rise() -> bool:
    """Whether this user's processes may take a higher priority."""
    command = [sys.executable, "-c", "import os; os.nice(-1)"]
    return subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0


def niceness(pid: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, pid)


def test_scripts_and_classes_have_their_niceness_after_a_restart_too(job: Job) -> None:
    # A test that itself runs at a low priority has none lower: Ray adds 15.
    amount = -3 if may_rise() else 2
    script = {"entrypoint": {"module": "nice_user.py"}, "resources": {"cpu": "100m"}}
    roles = [
        {"name": "plain", **script},
        {"name": "script", **script, "nice": amount},
        job.role("class", "nice_user.note", nice=amount, resources={"cpu": "100m"}),
    ]
    job.start(*roles, faultTolerance=QUICK)
    changed = ("script/0", "class/0")
    pids = job.running("plain/0", *changed)
    plain = said(job, "nice", "plain/0")
    assert plain["own"] == plain["child"]
    expected = min(19, plain["own"] + amount)
    for incarnation in (1, 2):
        for rank in changed:
            assert said(job, "nice", rank, incarnation) == {"own": expected, "child": expected}, rank
            assert niceness(pids[rank]) == expected
        assert niceness(job.host_pid("script/0")) == plain["own"], "the host of scripts is no rank"
        assert niceness(job.master_pid()) != expected
        if incarnation == 1:
            for rank in changed:
                os.kill(pids[rank], signal.SIGKILL)
            pids = job.running(*changed, incarnation=dict.fromkeys(changed, 2))
    job.go()
    assert job.connection.wait(60)["phase"] == "Succeeded"
    job.nothing_left()
