"""The end of a watched process is told; that of one before it, or of one that cannot be watched, is not."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dljob.linux.process_watch import ProcessWatch


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_an_end_is_told_of_the_process_watched_last() -> None:
    watch, before, now = ProcessWatch(), sleeper(), sleeper()
    watch.watch(before.pid)
    watch.watch(now.pid)
    before.kill()
    before.wait()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watch.ended(), 0.1)
    now.kill()
    await asyncio.wait_for(watch.ended(), 60)
    watch.watch(now.pid)  # again: it is still known
    await asyncio.wait_for(watch.ended(), 60)
    watch.forget()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watch.ended(), 0.1)
    now.wait()


async def test_a_process_that_is_gone_is_not_watched_and_leaves_no_descriptor() -> None:
    watch, gone = ProcessWatch(), sleeper()
    gone.kill()
    gone.wait()
    before = descriptors()
    watch.watch(gone.pid)
    assert watch.pid == 0
    watch.watch(os.getpid())
    watch.forget()
    assert descriptors() == before
