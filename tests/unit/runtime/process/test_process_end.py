"""How a process ended that is nobody's child: asked of a real kernel, and what is made of its answer."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from typing import Any

import pytest
from kernels import NEEDS_ENDS

from dljob.master.failure.policy import describe_failure
from dljob.master.state.causes import classify, evidence, outcome_of_cause
from dljob.master.state.views import Clue, Outcome, Reason
from dljob.runtime.process import process_end
from dljob.runtime.process.guard import EndCode
from dljob.telemetry.evidence import UNEXPLAINED_END

RAY = "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR"
CODE_0 = "its process ended itself with code 0 (os._exit or sys.exit in user code) before its function returned"
VANISHED = Outcome(ok=False, reason=Reason.UNKNOWN, detail=RAY)


def ended(code: str, within_s: float = 10.0) -> int | None:
    """The wait status of a Python process that runs this, by a descriptor of it."""
    with subprocess.Popen([sys.executable, "-c", f"import os\ninput()\n{code}"], stdin=subprocess.PIPE) as child:
        pidfd = process_end.opened(child.pid)
        child.communicate(b"\n")
    try:
        return process_end.wait_status(pidfd, within_s)
    finally:
        os.close(pidfd)


@NEEDS_ENDS
@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("os.kill(os.getpid(), 9)", -9),
        ("os.kill(os.getpid(), 11)", -11),
        ("os._exit(3)", 3),
        ("pass", 0),
    ],
)
def test_the_kernel_tells_the_wait_status_of_a_dead_process(code, status):
    found = ended(code)
    assert found is not None
    assert os.waitstatus_to_exitcode(found) == status


def test_a_living_or_unknown_process_has_no_wait_status():
    pidfd = process_end.opened(os.getpid())
    assert process_end.wait_status(pidfd, 0.0) is None
    os.close(pidfd)
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    assert process_end.opened(child.pid) == -1


def test_an_older_kernel_gives_no_wait_status(monkeypatch):
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOTTY, "Inappropriate ioctl for device")

    monkeypatch.setattr(fcntl, "ioctl", refuse)
    assert ended("pass") is None
    monkeypatch.setattr(fcntl, "ioctl", lambda _fd, _request, info: info.__setitem__(slice(None), bytes(64)))
    assert ended("pass", 0.02) is None, "it knows the request, and gives no status"


@pytest.mark.parametrize(
    ("status", "tail", "said", "reason"),
    [
        (9, "step 7\n", "w/0: Killed: ended by SIGKILL, exit code 137", "Killed"),
        (11, "", "w/0: UserError: ended by SIGSEGV, exit code 139", "UserError"),
        (3 << 8, "no licence\n", "w/0: UserError: exited with code 3, exit code 3", "UserError"),
        (0, "step 7\n", f"w/0: UserError: {CODE_0}", "UserError"),
        (
            EndCode.LEASE_OVER << 8,
            "",
            "w/0: process gone, cause unknown (its host ended itself: LEASE_OVER)",
            "Unknown",
        ),
        (
            EndCode.LEASE_OVER << 8,
            "step 7\n[dljob] 05:10:41 pid 48 ends with code 71: its code held the GIL at g.py:5\n",
            "w/0: process gone, cause unknown (its host ended itself: its code held the GIL at g.py:5)",
            "Unknown",
        ),
    ],
)
def test_the_outcome_of_a_vanished_process_follows_from_its_wait_status(status, tail, said, reason):
    made = process_end.with_status(VANISHED, status, tail)
    cause = classify(made)
    assert not made.ok
    assert cause.reason == reason
    assert describe_failure("w/0", outcome_of_cause(made, cause)) == said
    assert f"backend: {RAY}" in evidence(made), "what Ray said is kept"


@pytest.mark.parametrize(
    ("status", "lines"), [(9, ("exit code 137",)), (EndCode.LEASE_OVER << 8, ()), (0, ("exit code 0",))]
)
def test_nothing_is_told_of_rays_text_where_it_knows_nothing(status, lines):
    vanished = Outcome(ok=False, reason=Reason.UNKNOWN, detail=UNEXPLAINED_END)
    assert evidence(process_end.with_status(vanished, status, "")) == lines


def test_a_watchdog_that_aborts_blames_its_peers_as_in_a_script():
    tail = "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE)\n"
    cause = classify(process_end.with_status(VANISHED, 6, tail))
    assert (cause.rule, cause.reports_lost_peer) == ("peer-gone", True)


def test_clues_of_others_stay_in_the_outcome():
    clue = Clue("pod", "OOMKilled")
    made = process_end.with_status(Outcome(ok=False, reason=Reason.UNKNOWN, clues=(clue,)), 9, "")
    assert made.clues == (clue,)
    assert classify(made).reason is Reason.OOM_KILLED
