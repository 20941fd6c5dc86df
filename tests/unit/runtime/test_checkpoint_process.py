"""The saver's own process: below nobody, it ends with its agent's line, once what it holds is on disk."""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from checkpoint_kit import Rank, client, place

from dljob.runtime.checkpoint.files import Folder


class Agent:
    """The agent's end of the line."""

    def __init__(self, grace_s: float = 20.0) -> None:
        self.address = f"@dljob-test-{secrets.token_hex(6)}"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "dljob.runtime.checkpoint.process", str(theirs.fileno())]
        subprocess.run([*command, self.address, str(grace_s)], pass_fds=[theirs.fileno()], check=True)
        theirs.close()
        self.link = ours
        self.pid = self.hear()["pid"]

    def hear(self) -> dict[str, Any]:
        return json.loads(self.link.recv(1 << 16))

    def ends(self) -> None:
        """As when its process ends; a forked rank of the test may hold the socket as well."""
        self.link.shutdown(socket.SHUT_RDWR)
        self.link.close()
        self.gone()

    def gone(self) -> None:
        """Wait for the saver's end: the kernel says when."""
        fd = os.pidfd_open(self.pid)
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        assert poll.poll(20_000), "the saver is still there"
        os.close(fd)


@pytest.fixture
def agent() -> Any:
    made = Agent()
    yield made
    made.ends()


def saves(*steps: int, persist: bool) -> Any:
    def body(mine: Any, tell: Any) -> None:
        for step in steps:
            mine.save(step, {"step": step, "bytes": b"x" * 100_000}, persist=persist)
        tell("saved")
        signal.pause()

    return body


def test_nobody_is_its_parent(agent: Agent):
    stat = Path(f"/proc/{agent.pid}/stat").read_text().rpartition(")")[2].split()
    assert int(stat[1]) != os.getpid()


def test_the_end_of_its_agent_brings_what_living_ranks_hold_to_disk(tmp_path: Path):
    made = Agent()
    rank = Rank(place(made, tmp_path), saves(1, 2, persist=False))
    assert rank.heard() == "saved"
    made.ends()
    assert [f.mark.step for f in Folder(tmp_path).found() if not f.bad] == [2, 1]
    rank.kill()


def test_signals_to_a_whole_group_do_not_end_it(agent: Agent):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(agent.pid, number)
    agent.link.send(json.dumps({"op": "flush", "id": 7, "timeout_s": 5, "alive": True}).encode())
    assert agent.hear() == {"op": "done", "id": 7, "failed": ""}


def test_a_disk_that_is_too_slow_is_left_after_the_grace(tmp_path: Path):
    """A part whose name is a FIFO that nobody reads: opening it never returns."""
    made = Agent(grace_s=0.3)
    rank = Rank(place(made, tmp_path), saves(1, persist=False))
    assert rank.heard() == "saved"
    step = tmp_path / "step-000000000001.1-1"
    step.mkdir()
    os.mkfifo(step / f".rank-00000.part.{made.pid}")
    began = time.monotonic()
    made.ends()
    assert time.monotonic() - began < 15
    rank.kill()


def test_a_world_asks_the_savers_of_other_nodes_before_it_decides(agent: Agent, tmp_path: Path):
    other = Agent()
    rank = Rank(place(other, tmp_path), saves(4, persist=False))
    assert rank.heard() == "saved"
    rank.kill()
    again = Rank(place(agent, tmp_path, number=2), lambda mine, tell: tell(str(mine.load()[0])))
    asked = agent.hear()
    assert asked["op"] == "others"
    other.link.send(json.dumps({"op": "flush", "id": 1, "timeout_s": 20, "alive": False}).encode())
    while other.hear()["op"] != "done":
        pass
    agent.link.send(json.dumps({"op": "done", "id": asked["id"]}).encode())
    assert again.heard() == "4"
    assert again.wait() == 0
    other.ends()


def test_a_rank_outlives_its_saver(tmp_path: Path):
    """Its copies are its own memory too: another saver takes them over."""
    first, second = Agent(), Agent()
    where = [place(first, tmp_path), place(second, tmp_path)]
    log: list[str] = []
    mine = client(where[0], log)
    mine._ask = lambda: asdict(where.pop(0))
    mine.save(1, {"a": 1}, persist=False)
    os.kill(first.pid, signal.SIGKILL)
    first.ends()
    mine.save(2, {"a": 2}, persist=True)
    mine.wait(20, everything=True)
    assert [f.mark.step for f in Folder(tmp_path).found() if not f.bad] == [2, 1]
    mine.close()
    second.ends()
