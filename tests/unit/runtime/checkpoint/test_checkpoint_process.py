"""The saver's own process: below nobody, it ends with its agent's line, once what it holds is on disk."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkpoint_kit import Rank, client, place

from dljob.errors import CheckpointError
from dljob.runtime.checkpoint import client as client_module
from dljob.runtime.checkpoint import process as process_module
from dljob.runtime.checkpoint.files import Folder
from dljob.runtime.checkpoint.process import SaverProcess
from dljob.runtime.checkpoint.saver_agent import SaverAgent
from dljob.runtime.checkpoint.wire import Wire


class Journal:
    """PrimeMaster as savers know it. `refused`: what it says to every commit."""

    def __init__(self) -> None:
        self.refused = ""
        self.decided: dict[str, int] | None = None
        """What another node has decided for every life."""
        self.asked: list[dict[str, Any]] = []

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(question)
        if question["what"] == "commit":
            return {"why": self.refused}
        if self.decided:
            return {"why": "", "yours": False, "chosen": self.decided}
        return {"why": self.refused, "yours": question["what"] == "turn", "chosen": question.get("chosen")}


class Agent:
    """The agent's end of the line."""

    def __init__(self, grace_s: float = 20.0) -> None:
        self.address = f"@dljob-test-{secrets.token_hex(6)}"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "dljob.runtime.checkpoint.process", str(theirs.fileno())]
        subprocess.run([*command, self.address, str(grace_s)], pass_fds=[theirs.fileno()], check=True)
        theirs.close()
        self.link = ours
        self.journal = Journal()
        self.pid = self.hear()["pid"]

    def hear(self) -> dict[str, Any]:
        """The next word that is no question for PrimeMaster: those are answered."""
        while True:
            said = json.loads(self.link.recv(1 << 16))
            if said["op"] != "ask":
                return said
            answer = self.journal.answer(said["question"])
            self.link.send(json.dumps({"op": "done", "id": said["id"], "answer": answer}).encode())

    def hears(self, words: list[dict[str, Any]] | None = None) -> None:
        """Answer questions from now on; other words are written down."""
        threading.Thread(target=self._hears, args=([] if words is None else words,), daemon=True).start()

    def _hears(self, words: list[dict[str, Any]]) -> None:
        with contextlib.suppress(OSError, ValueError):
            while True:
                words.append(self.hear())

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


def test_the_saver_is_no_child_of_the_process_that_started_it(agent):
    stat = Path(f"/proc/{agent.pid}/stat").read_text().rpartition(")")[2].split()
    assert int(stat[1]) != os.getpid()


def test_the_end_of_its_agent_brings_what_living_ranks_hold_to_disk(tmp_path):
    made = Agent()
    rank = Rank(place(made, tmp_path), saves(1, 2, persist=False))
    assert rank.heard() == "saved"
    made.ends()
    assert [(mark.step, world) for mark, world in Folder(tmp_path).uncommitted()] == [(1, 1), (2, 1)]
    rank.kill()


def test_of_many_nodes_one_decides_and_has_the_others_asked(agent, tmp_path):
    """This one is told the decision, and finds what was decided upon on the disk: nobody has to flush again."""
    other = Agent()
    other.hears()
    mine = client(place(other, tmp_path))
    mine.save(1, {"a": 1}, persist=True)
    mine.close()
    other.ends()
    agent.journal.decided = {"attempt": 1, "number": 1, "step": 1}
    heard: list[dict[str, Any]] = []
    agent.hears(heard)
    again = client(place(agent, tmp_path, number=2))
    assert (again.load() or (0,))[0] == 1
    again.close()
    assert heard == []


def test_parts_on_disk_without_a_journal_entry_are_journaled_by_the_next_life(agent, tmp_path):
    """No agent, no journal, no manifest: the next life finds the parts, and has them journaled before it decides."""
    gone = Agent()
    rank = Rank(place(gone, tmp_path), saves(1, 2, persist=False))
    assert rank.heard() == "saved"
    gone.ends()
    rank.kill()
    again = Rank(place(agent, tmp_path, number=2), lambda mine, tell: tell(str(mine.load()[0])))
    while (said := agent.hear())["op"] != "others":
        pass
    agent.link.send(json.dumps({"op": "done", "id": said["id"]}).encode())
    agent.hears()
    assert again.heard() == "2"
    assert again.wait() == 0
    asked = [(q["what"], (q.get("mark") or q.get("chosen") or {}).get("step")) for q in agent.journal.asked]
    assert asked == [("turn", None), ("commit", 1), ("commit", 2), ("decide", 2)]
    assert [f.mark.step for f in Folder(tmp_path).candidates() if not f.bad] == [2, 1]


def test_a_checkpoint_refused_by_the_journal_does_not_count_and_ends_the_saving(agent, tmp_path):
    agent.journal.refused = "run 1.2 has gone on anew"
    agent.hears()
    log: list[str] = []
    mine = client(place(agent, tmp_path), log)
    mine.save(1, {"a": 1}, persist=True)
    with pytest.raises(CheckpointError, match=r"run 1\.2 has gone on anew"):
        mine.wait(20)
    with pytest.raises(CheckpointError, match=r"run 1\.2 has gone on anew"):
        mine.load()
    assert [f.bad for f in Folder(tmp_path).candidates()] == ["it is not whole: 1 part and no manifest"]
    mine.close()


def test_signals_to_a_whole_group_do_not_end_it(agent):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(agent.pid, number)
    agent.link.send(json.dumps({"op": "flush", "id": 7, "timeout_s": 5, "alive": True}).encode())
    assert agent.hear() == {"op": "done", "id": 7, "failed": ""}


def test_a_disk_that_is_too_slow_is_left_after_the_grace(tmp_path):
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


def test_a_world_asks_the_savers_of_other_nodes_before_it_decides(agent, tmp_path):
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
    agent.hears()
    assert again.heard() == "4"
    assert again.wait() == 0
    other.ends()


def test_a_rank_outlives_its_saver(tmp_path):
    """Its copies are its own memory too: another saver takes them over."""
    first, second = Agent(), Agent()
    where = [place(first, tmp_path), place(second, tmp_path)]
    log: list[str] = []
    mine = client(where[0], log)
    mine._ask = lambda: asdict(where.pop(0))
    mine.save(1, {"a": 1}, persist=False)
    os.kill(first.pid, signal.SIGKILL)
    first.ends()
    second.hears()
    mine.save(2, {"a": 2}, persist=True)
    mine.wait(20, everything=True)
    assert [f.mark.step for f in Folder(tmp_path).candidates() if not f.bad] == [2, 1]
    mine.close()
    second.ends()


def test_data_done_before_a_save_is_reported_by_the_next_saver(tmp_path, monkeypatch):
    """The first one is gone when the copy is whole: the copy counts only when what was done before it is known."""
    first, second = Agent(), Agent()
    where = [place(first, tmp_path), place(second, tmp_path)]
    mine = client(where[0])
    mine._ask = lambda: asdict(where.pop(0))
    fill = client_module._fill

    def last(*what: Any) -> None:
        fill(*what)
        os.kill(first.pid, signal.SIGKILL)
        first.ends()

    monkeypatch.setattr(client_module, "_fill", last)
    second.hears()
    mine.save(1, {"a": 1}, persist=True, shards=[{"name": "d", "done": [[0, 8, -1]]}])
    mine.wait(20)
    assert [(q["what"], q.get("done")) for q in second.journal.asked] == [("shards", [[0, 8, -1]]), ("commit", None)]
    mine.close()
    second.ends()


def test_an_agent_starts_the_saver_in_a_process_that_imports_what_it_can():
    agent: Any = SaverAgent.__new__(SaverAgent)
    agent._address, agent._job = f"@dljob-test-{secrets.token_hex(6)}", SimpleNamespace(save_grace_s=20)
    wire = agent._start()
    up = wire.receive()
    assert up is not None
    assert up[0]["op"] == "up"
    os.kill(up[0]["pid"], signal.SIGKILL)
    wire.close()


def test_an_order_that_is_answered_too_late_leaves_nothing_behind():
    agent: Any = SaverAgent.__new__(SaverAgent)
    ours, theirs = map(Wire, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    agent._wire, agent._ids, agent._lock, agent._open_questions = ours, itertools.count(1), threading.Lock(), {}
    assert agent._order({"op": "flush"}, 0.0) is None
    assert agent._open_questions == {}
    late = os.memfd_create("late")
    agent._on_answer({"op": "done", "id": 1}, [late])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(late)

    def answers() -> None:
        for _ in range(2):
            message, fds = theirs.receive() or ({}, [])
            agent._on_answer(message, fds)

    threading.Thread(target=answers).start()
    assert agent._order({"op": "flush", "failed": ""}, 20.0) == ({"op": "flush", "failed": "", "id": 2}, [])
    for wire in (ours, theirs):
        wire.close()


def test_a_question_that_is_given_up_leaves_nothing_behind(monkeypatch):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process: Any = SaverProcess(theirs, f"@dljob-test-{secrets.token_hex(6)}", 20.0)
    monkeypatch.setattr(process_module, "OTHERS_S", 0.0)
    process._others("folder")
    assert process._open_questions == {}
    process._saver.close()
    for one in (ours, theirs):
        one.close()
