"""The host of scripts whose process has others: what it had of that process it gives back."""

from __future__ import annotations

import threading
from pathlib import Path

from life_kit import role_of

from dljob.runtime.process.messages import HostSpec, JobInfo
from dljob.runtime.yr.host import GONE_S, YrHost


def counters() -> int:
    """How many segments of step counters this process has open."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum("dljob-steps" in str(link.readlink()) for link in links)


def test_a_host_that_is_closed_gives_its_counters_back(tmp_path: Path) -> None:
    job = JobInfo("u", "j", str(tmp_path), "dljob", "u/master", 30, 0.2, str(tmp_path), (("w", 1),))
    before, threads = counters(), set(threading.enumerate())
    host = YrHost(HostSpec(job, role_of("train.py"), 1))
    assert host._helper.up.wait(60)
    assert counters() > before
    mine = [thread for thread in threading.enumerate() if thread not in threads]
    host.close()
    for thread in mine:
        thread.join(GONE_S)
    assert counters() == before
