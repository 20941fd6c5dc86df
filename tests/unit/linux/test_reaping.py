"""Programs that outlived their rank are found by their environment and ended; nobody else's are."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dljob.linux import reaping

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def uid() -> str:
    return secrets.token_hex(16)


@pytest.fixture
def start(uid: str) -> Iterator[Start]:
    """Starts a program that waits for its end, with a rank's environment."""
    made: list[subprocess.Popen[bytes]] = []

    def begin(incarnation: object, *, role: str = "w", rank: int = 0, job: str = uid) -> subprocess.Popen[bytes]:
        own = {"DLJOB_UID": job, "DLJOB_ROLE": role, "DLJOB_RANK": str(rank), "DLJOB_INCARNATION": str(incarnation)}
        command = [sys.executable, "-I", "-S", "-c", "print(1, flush=True); input()"]
        made.append(subprocess.Popen(command, env={**os.environ, **own}, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert made[-1].stdout is not None
        made[-1].stdout.readline()
        return made[-1]

    yield begin
    for program in made:
        program.kill()
        program.wait()
        for pipe in (program.stdin, program.stdout):
            if pipe is not None:
                pipe.close()


def test_only_earlier_incarnations_of_these_ranks_are_ended(start: Start, uid: str) -> None:
    first, second = start(1), start(2, rank=1)
    others = [start(3), start(3, rank=1), start(1, rank=5), start(1, role="v"), start(1, job="x" + uid), start("?")]
    assert sorted(reaping.leftover(uid, "w", {0: 3, 1: 3})) == sorted([first.pid, second.pid])
    assert reaping.reap(uid, "w", {0: 3, 1: 3}) >= 2
    assert (first.wait(), second.wait()) == (-9, -9)
    assert reaping.reap(uid, "w", {0: 3, 1: 3}) == 0
    assert [other.poll() for other in others] == [None] * len(others)


def test_processes_below_a_living_ray_worker_are_left_to_it(start: Start, uid: str, tmp_path: Path) -> None:
    child = (
        "import subprocess, sys; subprocess.run([sys.executable, '-I', '-S', '-c', 'print(1, flush=True); input()'])"
    )
    worker = tmp_path / "ray::Host"
    worker.symlink_to(sys.executable)
    own = {"DLJOB_UID": uid, "DLJOB_ROLE": "w", "DLJOB_RANK": "0", "DLJOB_INCARNATION": "1"}
    command = ["ray::Host", "-I", "-S", "-c", child]
    with subprocess.Popen(
        command, executable=sys.executable, env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as host:
        assert host.stdout is not None
        host.stdout.readline()
        try:
            assert reaping.leftover(uid, "w", {0: 2}) == []
        finally:
            host.communicate(b"\n")
