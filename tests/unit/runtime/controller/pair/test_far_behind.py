"""A standby that was stopped for long: however much was journaled meanwhile, it reads from the last snapshot on."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest
from master_shell_kit import HANG_S, until
from paired_masters import PairedMaster, commanding, following

from dljob.master.state import events as ev
from dljob.runtime.backend.masters import SECOND
from dljob.runtime.controller import master_loop, standby
from dljob.runtime.journal.journal import SNAPSHOT_BYTES

MIB = 2**20
LARGE, MANY = 3 * MIB, 353
"""Bytes of a record, and so many of them: 1,059 MiB. Each sixth one brings a snapshot, and five are behind the last."""
MOST_MIB, MOST_S = 192, 10.0
"""Most memory and time of a standby that is so far behind: what is behind the last snapshot is a few times
SNAPSHOT_BYTES in memory, as bytes and as records."""


def memory_mib(what: str) -> float:
    """Return the memory of this process: VmRSS, what it holds now; VmHWM, the most that it held since `forget_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:")) / 1024


def forget_peak() -> None:
    """Let VmHWM begin at what this process holds now."""
    Path("/proc/self/clear_refs").write_text("5")


async def test_a_standby_far_behind_reads_from_the_last_snapshot_on(world, monkeypatch):
    """However much was journaled while it was stopped: the commanding one writes a snapshot every 2,000 records."""
    monkeypatch.setattr(master_loop, "SNAPSHOT_EVERY", 50)
    first = await commanding(world)
    for number in range(200):
        await first.shell.offer(ev.Commanded(str(number), "restart", "nobody", "test", 0))
    await until(lambda: first.shell.journal.segment > 3)
    second = PairedMaster(world, SECOND)
    read: list[int] = []
    whole = second.shell.journal.store.read

    async def counted(epoch: int, work: Any) -> Any:
        read.append(epoch)
        return await whole(epoch, work)

    monkeypatch.setattr(second.shell.journal.store, "read", counted)
    async with asyncio.timeout(HANG_S):
        await second.pair.follows.wait()
    first.die()
    await until(lambda: second.shell.recovered)
    assert min(read) > 2, read
    assert second.shell.timeline.seq >= first.shell.timeline.seq


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_standby_that_is_a_gigabyte_behind_takes_over_at_once_and_in_little_memory(
    world, tmp_path, monkeypatch
):
    """Its records are large, so that they are far fewer than those after which a snapshot is due in any case."""
    monkeypatch.setattr(standby, "ANSWER_S", 0.02)
    monkeypatch.setattr(standby, "SILENT_S", HANG_S)  # both are in one process
    monkeypatch.setattr(os, "fdatasync", lambda _fd: None)  # a gigabyte in seconds
    runs_again = asyncio.Event()
    first = await commanding(world)
    second = await following(world)
    await until(lambda: second.pair._folded == first.shell.journal.position and not second.pair._tasks.tasks)
    follow, before = second.shell.follow, first.shell.journal.segment

    async def stopped_before() -> None:
        await runs_again.wait()
        await follow()

    monkeypatch.setattr(second.shell, "follow", stopped_before)
    large, largest = "x" * LARGE, 0
    for _ in range(MANY):  # as a command that its sender repeats; no state grows with it
        await first.shell.offer(ev.Commanded("again", "restart", "nobody", large))
        largest = max(largest, (tmp_path / "journal" / f"{first.shell.journal.segment:06d}.jsonl").stat().st_size)
    assert largest < 3 * SNAPSHOT_BYTES, "each second snapshot may be in a segment that is short, by its lines"
    assert first.shell.journal.segment - before >= LARGE * MANY // (3 * SNAPSHOT_BYTES)
    await until(lambda: first.shell._tidying is not None and first.shell._tidying.done())

    held, began = memory_mib("VmRSS"), time.monotonic()
    forget_peak()
    runs_again.set()
    await until(lambda: second.pair._folded == first.shell.journal.position and not second.pair._tasks.tasks)
    first.die()
    await until(lambda: second.shell.recovered)
    took, grown = time.monotonic() - began, memory_mib("VmHWM") - held
    assert grown <= MOST_MIB, f"{grown:.0f} MiB more"
    assert took <= MOST_S, f"after {took:.1f} s"
    assert second.shell.state.ranks == first.shell.state.ranks
    assert "again" in second.shell.state.commands
