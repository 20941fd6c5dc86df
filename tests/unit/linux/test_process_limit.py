"""Limits of processes and threads: which of them is reached, and what an error says of it."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from dljob.linux import process_limit
from dljob.linux.process_limit import ProcessLimit, describe_refusal, process_limits, reached_limit
from dljob.runtime.process.outcome import from_exception


def group(folder: Path, most: str, used: int, refused: int | None = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pids.max").write_text(f"{most}\n")
    (folder / "pids.current").write_text(f"{used}\n")
    if refused is not None:
        (folder / "pids.events").write_text(f"max {refused}\n")


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with both versions of control groups: this process is in `job` of the one, `pod/main` of the other."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/x\n8:pids:/job\n0::/pod/main\n")
    return tmp_path


def test_the_limits_of_all_our_groups_are_read(kernel: Path) -> None:
    group(kernel / "pids/job", "40", 12, refused=3)
    group(kernel / "pids", "max", 90)
    group(kernel / "pod/main", "max", 5)
    group(kernel / "pod", "500", 5)
    group(kernel / "other", "1", 1)
    found = list(process_limits(kernel, kernel / "proc"))
    assert [(limit.name, limit.most, limit.used, limit.refused) for limit in found] == [
        (f"pids.max of {kernel / 'pids/job'}", 40, 12, 3),
        (f"pids.max of {kernel / 'pod'}", 500, 5, 0),
    ]
    assert reached_limit(kernel, kernel / "proc") is None


def test_the_limit_of_a_user_who_is_not_root_counts_threads(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 100))
    for pid, user, threads in ((1, 0, 50), (2, 7, 60), (3, 7, 38)):
        (kernel / f"proc/{pid}").mkdir()
        (kernel / f"proc/{pid}/status").write_text(f"Name:\tx\nUid:\t{user}\t{user}\nThreads:\t{threads}\n")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert list(process_limits(kernel, kernel / "proc")) == []
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    assert str(reached_limit(kernel, kernel / "proc")) == (
        "ulimit -u of user 7 allows 100 processes and threads, 98 are in use"
    )


@pytest.mark.parametrize(
    ("used", "refused", "reached"), [(94, 0, False), (95, 0, True), (50, 1, True), (49, 9, False), (0, 0, False)]
)
def test_a_limit_is_reached_while_most_of_it_is_in_use(used: int, refused: int, reached: bool) -> None:
    assert ProcessLimit("pids.max", 100, used, refused).reached is reached


def test_an_error_of_a_thread_or_process_names_the_limit_that_it_has_met(monkeypatch: pytest.MonkeyPatch) -> None:
    full = ProcessLimit("pids.max of /g", 40, 40, 6)
    monkeypatch.setattr(process_limit, "reached_limit", lambda: full)
    said = "pids.max of /g allows 40 processes and threads, 40 are in use, 6 more were refused: raise it "
    thread = RuntimeError("can't start new thread")
    assert describe_refusal(thread).startswith(said)
    assert describe_refusal(BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))).startswith(said)
    assert said in from_exception(thread, code_dir="", phase="run").message
    for other in (RuntimeError("no"), OSError(errno.EAGAIN, "busy", "/a/file"), OSError(errno.ENOMEM, "no")):
        assert describe_refusal(other) == ""
    monkeypatch.setattr(process_limit, "reached_limit", lambda: None)
    assert describe_refusal(thread) == ""
