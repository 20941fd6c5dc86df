"""Commands that run behind others: of a lower share than these in whatever way the kernel shares the processor."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

BEHIND = ["bash", os.fspath(Path(__file__).parents[2] / "behind.sh")]
GROUP = Path("/proc/self/autogroup")
TELL = "import os; print(os.getsid(0), os.sched_getscheduler(0), os.nice(0), *open('/proc/self/autogroup'), sep='|')"
pytestmark = pytest.mark.skipif(shutil.which("setsid") is None, reason="no setsid: install util-linux")


@pytest.mark.skipif(not GROUP.exists(), reason="this kernel does not group sessions")
def test_a_command_behind_has_the_least_share_of_sessions_and_in_its_own() -> None:
    here = GROUP.read_text(encoding="utf-8")
    told = subprocess.run([*BEHIND, sys.executable, "-c", TELL], capture_output=True, text=True, check=True).stdout
    session, policy, nice, group = told.strip().split("|")
    assert int(session) != os.getsid(0)
    assert int(policy) == os.SCHED_IDLE or int(nice) == 19
    assert group.endswith(" nice 19")
    assert GROUP.read_text(encoding="utf-8") == here


@pytest.mark.parametrize("code", [0, 1, 5, 130])
def test_the_exit_code_of_a_command_behind_is_told(code: int) -> None:
    assert subprocess.run([*BEHIND, "sh", "-c", f"exit {code}"], check=False).returncode == code


@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM])
def test_a_command_behind_ends_with_all_it_started_when_told_to(told: signal.Signals) -> None:
    within = "sleep 300 & echo begun; wait"
    with subprocess.Popen([*BEHIND, "sh", "-c", within], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(told)
        assert process.stdout.read() == ""  # which ends once nobody holds the pipe, the sleeper least of all
    assert process.returncode == 128 + signal.SIGTERM
