"""What a machine knows of the end of a process: read where it can be read, and never taken from a neighbour."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dljob.master.state.causes import add_clues, classify
from dljob.master.state.views import Clue, Outcome, Reason
from dljob.runtime.process import evidence
from dljob.runtime.process.evidence import HostEvidence, KernelLog, MemoryKills, about, of_the_dead, same_pids

OOM = "Memory cgroup out of memory: Killed process 41 (python) total-vm:1kB, anon-rss:1kB"
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=41, name=python, GPU has fallen off the bus."
XID_OF_NOBODY = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."


def texts(clues):
    return [clue.text for clue in clues]


def test_a_kill_is_told_of_the_process_it_names():
    assert texts(about([OOM, XID, XID_OF_NOBODY], (41,))) == [OOM, XID, XID_OF_NOBODY]
    assert texts(about([OOM, XID, XID_OF_NOBODY], (42, 41))) == [OOM, XID, XID_OF_NOBODY], "of a child"
    assert texts(about([OOM, XID, XID_OF_NOBODY], (42,))) == [XID_OF_NOBODY]
    assert texts(about([OOM, XID, XID_OF_NOBODY], ())) == [XID_OF_NOBODY]


def record(text, ago=0.0):
    return f"6,271,{int((time.monotonic() - ago) * 1e6)},-;{text}\n SUBSYSTEM=pci\n"


def kernel_log(tmp_path, *records):
    """A log that gives one record per read, as /dev/kmsg does."""
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    log = KernelLog(path)
    writer = os.open(path, os.O_WRONLY)
    return log, [os.write(writer, made.encode()) and log.lines() for made in records][-1]


def test_only_lines_that_can_be_a_cause_and_are_new_are_kept(tmp_path):
    log, lines = kernel_log(tmp_path, record("eth0: link up"), record(OOM), record(OOM, 3600), record(XID, 300))
    assert lines == (OOM, XID)
    log.close()
    log.close()
    assert log.lines() == (OOM, XID)


def test_a_log_that_cannot_be_read_says_why(tmp_path):
    log = KernelLog(tmp_path / "none")
    assert log.lines() == ()
    assert log.why_not == "No such file or directory"


def group(tmp_path, version):
    """A control group of version 1 or 2 and a /proc that names it."""
    folder = tmp_path / ("memory/job" if version == 1 else "job")
    folder.mkdir(parents=True)
    (tmp_path / "self").mkdir()
    row = "4:memory:/job\n0::/\n" if version == 1 else "0::/job\n"
    (tmp_path / "self/cgroup").write_text(row)
    return folder / ("memory.oom_control" if version == 1 else "memory.events")


@pytest.mark.parametrize("version", [1, 2])
def test_a_kill_in_the_group_is_told_once(tmp_path, version):
    counts = group(tmp_path, version)
    counts.write_text("oom 1\noom_kill 3\n")
    kills = MemoryKills(tmp_path, tmp_path)
    assert kills.clue() is None
    counts.write_text("oom 2\noom_kill 5\n")
    assert kills.clue() == Clue("cgroup", "oom_kill +2")
    assert kills.clue() is None


def test_a_kill_of_long_ago_is_not_told(tmp_path, monkeypatch):
    counts = group(tmp_path, 2)
    counts.write_text("oom_kill 3\n")
    (counts.parent / "memory.peak").write_text("70\n")
    (counts.parent / "memory.max").write_text("70\n")
    kills = MemoryKills(tmp_path, tmp_path)
    monkeypatch.setattr(evidence, "SAMPLE_S", 0.0)
    counts.write_text("oom_kill 4\n")
    kills.sample()
    assert kills.clue() == Clue("cgroup", "oom_kill +1, peak 70 of 70 bytes")
    counts.write_text("oom_kill 5\n")
    monkeypatch.setattr(evidence, "COUNTED_S", 0.0)
    kills.sample()
    assert kills.clue() is None


def test_a_kill_is_told_though_its_process_took_seconds_to_end(tmp_path, monkeypatch):
    """As when the kernel frees 100 GB, or PrimeMaster asks late on a machine at full load."""
    counts = group(tmp_path, 2)
    counts.write_text("oom_kill 3\n")
    kills = MemoryKills(tmp_path, tmp_path)
    monkeypatch.setattr(evidence, "SAMPLE_S", 0.0)
    counts.write_text("oom_kill 4\n")
    for _ in range(15):
        kills.sample()
    assert kills.clue() == Clue("cgroup", "oom_kill +1")


def test_without_a_control_group_there_is_no_clue(tmp_path):
    kills = MemoryKills(tmp_path / "none", tmp_path)
    kills.sample()
    assert kills.clue() is None


def test_a_container_without_the_kernels_log_says_so_and_counts(tmp_path):
    counts = group(tmp_path, 2)
    counts.write_text("oom_kill 0\n")
    watch = HostEvidence()
    watch._kernel = KernelLog(tmp_path / "none")
    watch._memory = MemoryKills(tmp_path, tmp_path)
    watch._own_pids = False
    counts.write_text("oom_kill 1\n")
    watch.sample()
    assert watch.clues(7, killed=False) == ()
    said = watch.clues(7, killed=True)
    assert texts(said) == ["oom_kill +1", "the kernel's log cannot be read here: No such file or directory"]
    ended = Outcome(ok=False, reason=Reason.UNKNOWN, code=137)
    assert classify(add_clues(ended, said)).reason is Reason.OOM_KILLED


HOG = """
import os, sys, time
with open(sys.argv[1] + "/cgroup.procs", "w") as procs:
    procs.write(str(os.getpid()))
print("in", flush=True)
held = []
while True:
    held.append(bytearray(8 << 20))
"""


@pytest.fixture
def small_group():
    """A memory control group of 64 MiB, where this machine lets us make one."""
    root = Path("/sys/fs/cgroup/memory")
    folder = root / f"dljob-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(64 << 20))
    except OSError as error:
        pytest.skip(f"no memory control group can be made: {error}")
    yield folder
    folder.rmdir()


def test_the_kernel_tells_of_a_real_memory_hog(small_group):
    if not same_pids() or KernelLog().why_not:
        pytest.skip("the kernel's log cannot be read, or counts other pids")
    watch = HostEvidence()
    hog = subprocess.Popen([sys.executable, "-c", HOG, str(small_group)], stdout=subprocess.PIPE)
    status = hog.wait(60)
    assert status == -9
    ended = Outcome(ok=False, reason=Reason.UNKNOWN, code=137, message="ended by SIGKILL")
    for clues in (watch.clues(hog.pid, killed=True), of_the_dead(hog.pid)):
        assert classify(add_clues(ended, clues)).rule == "kernel-oom"
    assert watch.clues(os.getpid(), killed=True) == ()
    count = MemoryKills(small_group.parents[1], Path("/nowhere"))
    count._group = small_group
    assert count._count() == 1
    hog.stdout.close()
