"""What is done to a running job from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

from cause import Act

if TYPE_CHECKING:
    from running_job import RunningJob


def kill(target: str, name: str = "KILL", *, after: str, delay_s: float = 0.0) -> Act:
    """Send a signal to a rank or a part."""

    def send(job: RunningJob) -> None:
        for pid in job.pids(target):
            os.kill(pid, signal.Signals[f"SIG{name}"])

    return Act(send, after, delay_s)


def pause(target: str, *, after: str, seconds: float = 0.0, delay_s: float = 0.0) -> Act:
    """Stop a rank or a part, and let it go on after some seconds; 0: never."""

    def stop_and_resume(job: RunningJob) -> None:
        pids = job.pids(target)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        if seconds:
            time.sleep(seconds)
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    return Act(stop_and_resume, after, delay_s)


def shell(command: str, *, after: str, delay_s: float = 0.0) -> Act:
    """Run a command in the user's folder, in the namespaces of the job."""

    def run(job: RunningJob) -> None:
        subprocess.run(["bash", "-c", command], cwd=job.folder, env=job.env, check=True)

    return Act(run, after, delay_s)
