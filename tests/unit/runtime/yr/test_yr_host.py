"""The host of scripts whose process has others: what it had of that process it gives back."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

from life_kit import role_of

from dljob.runtime.process.messages import HostSpec, JobInfo
from dljob.runtime.yr.host import GONE_S, YrHost


def counters() -> set[int]:
    """The inodes of the segments of step counters that this process has open, also those that other tests left."""
    found: set[int] = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # a thread of another test closed it meanwhile
            if "dljob-steps" in str(link.readlink()):
                found.add(link.stat().st_ino)
    return found


def test_a_host_that_is_closed_gives_its_counters_back(tmp_path):
    job = JobInfo("u", "j", str(tmp_path), "dljob", "u/master", 30, 0.2, str(tmp_path), (("w", 1),))
    before, threads = counters(), set(threading.enumerate())
    host = YrHost(HostSpec(job, role_of("train.py"), 1))
    assert host._helper.up.wait(60)
    ours = counters() - before
    assert ours
    mine = [thread for thread in threading.enumerate() if thread not in threads]
    host.close()
    for thread in mine:
        thread.join(GONE_S)
    assert not counters() & ours
