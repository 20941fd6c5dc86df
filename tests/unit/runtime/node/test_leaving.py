"""Before a pod is told to end: who is asked, what becomes of copies in memory, and what PrimeMaster hears."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkpoint_kit import Rank, a_saver, client, place

from dljob.errors import DLJobError
from dljob.master.state import events as ev
from dljob.master.state.checkpoint_ids import CheckpointId
from dljob.runtime.checkpoint.book import FileBook
from dljob.runtime.checkpoint.files import Folder
from dljob.runtime.checkpoint.model import CheckpointLocation
from dljob.runtime.checkpoint.process import SaverProcess
from dljob.runtime.checkpoint.wire import Wire
from dljob.runtime.controller import prestop_listener
from dljob.runtime.node import prestop
from dljob.runtime.node.prestop import AgentConnection, PodEnd, addresses

TABLE = """Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0005 01 1 @dljob-saver-01234567-aaaaaaaaaaaa-00
0000000000000000: 00000003 00000000 00000000 0005 03 2 @dljob-saver-01234567-aaaaaaaaaaaa-00
0000000000000000: 00000002 00000000 00010000 0005 01 3 @dljob-agent-0123456789abcdef-aaaaaaaaaaaabbbb
0000000000000000: 00000002 00000000 00010000 0001 01 4 @dljob-master-01234567-cccccccccccccccc-77
0000000000000000: 00000002 00000000 00000000 0005 03 5 @dljob-agent-0123456789abcdef-dddddddddddd
0000000000000000: 00000002 00000000 00010000 0001 01 6 /run/dljob-saver-01234567-aaaaaaaaaaaa-00
0000000000000000: 00000002 00000000 00010000 0005 01 7 @dljob-other-01234567-aaaaaaaaaaaa-00
0000000000000000: 00000002 00000000 00010000 0005 01 8 @dljob-short
0000000000000000: 00000002 00000000 00010000 0001 01 9
"""
SAVER, AGENT = "\0dljob-saver-01234567-aaaaaaaaaaaa-00", "\0dljob-agent-0123456789abcdef-aaaaaaaaaaaabbbb"
MASTER = "\0dljob-master-01234567-cccccccccccccccc-77"


def test_listeners_are_found_on_one_node_or_on_all():
    assert list(addresses(TABLE)) == [("agent", AGENT), ("master", MASTER), ("saver", SAVER)]
    assert list(addresses(TABLE, "aaaaaaaaaaaabbbb")) == [("agent", AGENT), ("saver", SAVER)]
    assert list(addresses(TABLE, "cccccccccccccccc")) == [("master", MASTER)]
    assert list(addresses("")) == []


class Saves(Rank):
    """A rank that saves step after step in memory alone, and tells each."""

    def __init__(self, where: Any, folder: Path, steps: int = 10**6) -> None:
        def body(mine: Any, tell: Any) -> None:
            for step in range(1, steps):
                mine.save(step, {"data": b"x" * 4096, "step": step}, persist=False)
                (folder / "new").write_text(str(step))
                (folder / "new").replace(folder / "at")
                time.sleep(0.002)
            tell("through")
            time.sleep(600)

        super().__init__(where, body)
        self._folder = folder

    def at(self) -> int:
        return int((self._folder / "at").read_text())

    def past(self, step: int) -> None:
        end = time.monotonic() + 60
        while not (self._folder / "at").exists() or self.at() <= step:
            assert time.monotonic() < end
            time.sleep(0.005)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "saved").mkdir()
    return tmp_path, tmp_path / "saved"


def steps(folder: Path) -> list[int]:
    whole = Folder(folder)
    return [mark.step for mark in whole.marks() if whole.manifest(mark)]


def newest(folder: Path) -> int:
    """The newest whole step; while the saver is at work it may take away what was just listed."""
    end = time.monotonic() + 60
    while not (found := steps(folder)):
        assert time.monotonic() < end
    return found[-1]


def test_ranks_are_held_after_the_last_save(folders):
    at, saved = folders
    with a_saver() as (saver, _):
        rank = Saves(place(saver, saved), at)
        rank.past(3)
        line = AgentConnection("saver", f"\0{saver.address[1:]}")
        said = line.ask({"op": "flush", "timeout_s": 20.0}, 30)
        assert said["failed"] == "", said
        assert said["steps"]["trainer/0"] >= 3
        rank.past(rank.at())
        said = line.ask({"op": "last", "timeout_s": 20.0}, 30)
        assert said["failed"] == "", said
        assert said["steps"] == {"trainer/0": rank.at()}
        rank.kill()
        assert newest(saved) == rank.at()
        line.close()


def test_a_rank_that_stays_after_a_last_save_saves_again(folders, monkeypatch):
    monkeypatch.setattr("dljob.runtime.checkpoint.final_save.HELD_S", 0.0)
    at, saved = folders
    with a_saver() as (saver, _):
        rank = Saves(place(saver, saved), at)
        rank.past(1)
        assert saver.final_save.save_all(0.5) == ""
        rank.past(rank.at() + 3)
        assert not saver.final_save.impatient()
        rank.kill()


def test_a_rank_that_comes_while_the_node_goes_does_not_save(folders):
    at, saved = folders
    with a_saver() as (saver, _):
        assert saver.final_save.save_all(5.0) == ""
        rank = Saves(place(saver, saved), at)
        heard = threading.Event()
        saver_asks(saver.address, heard)
        assert not (at / "at").exists()
        rank.kill()
    assert heard.is_set()


def saver_asks(address: str, heard: threading.Event) -> None:
    """Somebody who asks something else is answered: only those wait who would save."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(f"\0{address[1:]}")
        wire = Wire(connection)
        wire.send({"op": "flush", "timeout_s": 5.0})
        if wire.receive():
            heard.set()


def test_a_failed_last_save_is_told(folders):
    _, saved = folders
    with a_saver() as (saver, _):
        mine = client(place(saver, saved))
        mine.save(7, {"a": 1}, persist=False)
        saved.rmdir()
        saved.write_text("in the way")
        with closing(AgentConnection("saver", f"\0{saver.address[1:]}")) as line:
            leaving = PodEnd([line], 20.0, "pod p is told to end")
            leaving.run()
        _, said = leaving.said  # before it: that no agent is there
        assert said.startswith("on disk: trainer/0 step 7, but: trainer/0: step 7 is not saved")
        mine.close(wait=False)


def test_a_copy_that_expires_while_it_is_written_is_no_failure(folders, monkeypatch):
    """Both copies are written at once: the newer one's manifest may retire the folder of the older one."""
    _, saved = folders
    real = Folder.write_part

    def late(self: Folder, mark: Any, *more: Any) -> int:
        if mark.step > 1:
            return real(self, mark, *more)
        end = time.monotonic() + 60
        while not steps(saved):
            assert time.monotonic() < end
            time.sleep(0.005)
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(Folder, "write_part", late)
    with a_saver() as (saver, _):
        mine = client(place(saver, saved))
        for step in (1, 2):
            mine.save(step, {"a": step}, persist=False)
        assert saver.final_save.save_all(20.0) == ""
        assert steps(saved) == [2]
        mine.close(wait=False)


class Answers:
    """Somebody on a socket who gives these answers, one each time, and the last one again and again."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.address = f"\0dljob-test-{secrets.token_hex(6)}"
        self.heard: list[dict[str, Any]] = []
        self._answers = list(answers)
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._server.bind(self.address)
        self._server.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        wire = Wire(self._server.accept()[0])
        while (got := wire.receive()) is not None:
            self.heard.append(got[0])
            wire.send(self._answers.pop(0) if len(self._answers) > 1 else self._answers[0])
        wire.close()

    def close(self) -> None:
        self._server.close()


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([{"may_go": "", "asked_s": 0.1}, {"may_go": "nobody is there", "asked_s": 0.1}], "nobody is there"),
        ([{"may_go": "", "asked_s": 6.0}], "PrimeMaster does not answer"),
        ([{"may_go": "", "asked_s": 0.1}], "ranks did not leave the node in time"),
    ],
)
def test_ranks_are_waited_for_while_somebody_may_move_them(answers, said):
    with closing(Answers(*answers)) as agent, closing(AgentConnection("agent", agent.address)) as line:
        leaving = PodEnd([line], 0.5, "pod p is told to end")
        leaving.run()
    assert leaving.said == [said]
    assert len(agent.heard) >= len(answers)
    assert {one["leave"] for one in agent.heard} == {"pod p is told to end"}


def listens(kind: str, uid: str, node: str) -> socket.socket:
    """One whom the hook finds, and who says nothing."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.bind(f"\0dljob-{kind}-{uid}-{node}")
    made.listen()
    return made


def test_an_agent_that_does_not_answer_is_told_of():
    uid, node = secrets.token_hex(8), secrets.token_hex(6)
    with (
        closing(listens("agent", uid, node)) as agent,
        closing(AgentConnection("agent", f"\0dljob-agent-{uid}-{node}")) as line,
    ):
        agent.accept()[0].close()
        leaving = PodEnd([line], 5.0, "pod p is told to end")
        leaving.run()
    (said,) = leaving.said
    assert said.startswith("the node's agent did not answer: ")


def test_an_agent_that_is_being_made_is_waited_for():
    """Savers alone move no rank; with the agent both are asked, and one of another job does not count."""
    uid, node = secrets.token_hex(8), secrets.token_hex(6)
    with closing(listens("saver", uid[:8], node)), closing(listens("agent", "x" * 16, node)):
        before = prestop.opened(node, 0.0)
        assert prestop.jobs_without_agent(before) == {uid[:8]}
        later = threading.Timer(0.2, lambda: late.append(listens("agent", uid, node)))
        late: list[socket.socket] = []
        later.start()
        found = prestop.opened(node, 60.0)
        later.join()
        assert sorted(line.kind for line in found) == ["agent", "agent", "early", "saver"]
        assert not prestop.jobs_without_agent(found)
        for one in [*before, *found, *late]:
            one.close()


def test_without_an_agent_the_copies_are_saved_and_that_is_said():
    saver = Answers({"steps": {"trainer/0": 7}, "failed": ""})
    with closing(saver), closing(AgentConnection("saver", saver.address)) as line:
        line.address = SAVER
        leaving = PodEnd([line], 5.0, "pod p is told to end")
        leaving.run()
    assert leaving.said == ["ranks could not be moved: the node has no agent", "on disk: trainer/0 step 7"]


def test_the_prestop_command_exits_with_0_whatever_happens(monkeypatch, capfd):
    monkeypatch.delenv("POD_NAME", raising=False)
    assert prestop.main(["1", "no-such-node"]) == 0
    assert "is being ended: nothing to save" in capfd.readouterr().out
    assert prestop.main([]) == 0
    assert prestop.main(["soon"]) == 0


def test_the_path_that_stands_in_pods_runs_it():
    command = [sys.executable, "-m", "dljob.runtime.leave", "1", "no-such-node"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "is being ended: nothing to save" in done.stdout


# -- PrimeMaster


def shell(**changes: Any) -> Any:
    told: list[Any] = []
    asked: list[float] = []

    async def offer(*events: Any) -> None:
        told.extend(events)

    async def last_copies(within_s: float) -> str:
        asked.append(within_s)
        return changes.get("failed", "")

    return SimpleNamespace(
        told=told,
        asked=asked,
        changed=asyncio.Condition(),
        recovered=changes.get("recovered", True),
        aborted=changes.get("aborted", False),
        final=changes.get("final"),
        setup=SimpleNamespace(spec=SimpleNamespace(gcs_fault_tolerance=changes.get("kept"))),
        state=SimpleNamespace(
            nodes=(SimpleNamespace(id="n0", head=True), SimpleNamespace(id="n1", head=False)),
            verdict=changes.get("verdict"),
            departures=changes.get("departures", {}),
        ),
        backend=SimpleNamespace(own_node=lambda: changes.get("here", "n0")),
        offer=offer,
        executor=SimpleNamespace(last_copies=last_copies),
        nodes=SimpleNamespace(all_go=""),
    )


ASKED = {"leave": "pod p is told to end", "timeout_s": 9.0}


async def test_before_the_head_goes_all_savers_save_for_the_last_time():
    made = shell()
    assert await prestop_listener.save_node(made, ASKED) == "the savers of all nodes have saved"
    (event,) = made.told
    assert isinstance(event, ev.CauseLearned)
    assert (event.target, event.clues[0].text) == ("node/n0", "pod p is told to end")
    assert made.asked == [9.0]
    assert made.nodes.all_go, "nobody waits for ranks to leave their node"
    assert await prestop_listener.save_node(shell(failed="01234567/saver/n1 does not answer"), ASKED) == (
        "01234567/saver/n1 does not answer"
    )


async def test_a_head_that_the_others_survive_waits_for_those_that_go_with_it(monkeypatch):
    monkeypatch.setattr(prestop_listener, "TOGETHER_S", 0.0)
    made = shell(kept=True, departures={"n0": 1})
    assert await prestop_listener.save_node(made, ASKED) == ""
    assert ([event.target for event in made.told], made.asked, made.nodes.all_go) == (["node/n0"], [], "")
    made = shell(kept=True, departures={"n0": 1, "n1": 1})
    waits = asyncio.create_task(prestop_listener.save_node(made, ASKED))
    await asyncio.sleep(0)
    del made.state.departures["n1"]
    async with made.changed:
        made.changed.notify_all()
    assert await waits == ""
    late = shell(kept=True, departures={"n1": 1})
    assert (
        await prestop_listener.save_node(late, {**ASKED, "timeout_s": 0.01})
        == "nodes that go as well have not gone yet"
    )


@pytest.mark.parametrize("changes", [{"verdict": "it ended well"}, {"aborted": True}])
async def test_the_head_of_a_job_that_ends_waits_for_its_last_save(changes):
    made = shell(**changes)
    waits = asyncio.create_task(prestop_listener.save_node(made, ASKED))
    await asyncio.sleep(0.01)
    assert not waits.done()
    made.final = {"phase": "Succeeded"}
    async with made.changed:
        made.changed.notify_all()
    assert await waits == "the job has ended"
    assert (made.told, made.asked) == ([], [])
    late = {**ASKED, "timeout_s": 0.01}
    assert await prestop_listener.save_node(shell(**changes), late) == "the job is ending, and not all is on disk yet"


@pytest.mark.parametrize(
    "changes", [{"here": "n1"}, {"here": "n1", "verdict": "it ended well"}, {"final": {}, "verdict": "it ended well"}]
)
async def test_a_master_that_goes_on_elsewhere_or_is_done_asks_nobody(changes):
    made = shell(**changes)
    assert await prestop_listener.save_node(made, ASKED) == ""
    assert (made.told, made.asked) == ([], [])


async def test_primemaster_hears_prestop_on_its_own_socket_and_drops_malformed_words():
    uid = secrets.token_hex(16)
    serving = asyncio.create_task(prestop_listener.serve(shell(here="n1"), uid))
    try:
        found = await asyncio.to_thread(listening, f"dljob-master-{uid[:8]}-n1-{os.getpid()}")
        assert await asyncio.to_thread(asks, found) == {"said": ""}
        assert await asyncio.to_thread(nonsense, found) == b""
    finally:
        serving.cancel()


def asks(address: str) -> dict[str, Any]:
    with closing(AgentConnection("master", address)) as line:
        return line.ask(ASKED, 30)


def nonsense(address: str) -> bytes:
    """What somebody hears who says something else; the next one is answered all the same."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(60)
        connection.connect(address)
        connection.sendall(b"nonsense\n")
        return connection.recv(100)


def listening(name: str) -> str:
    end = time.monotonic() + 60
    while f"@{name}" not in Path("/proc/net/unix").read_text():
        assert time.monotonic() < end, DLJobError(name)
        time.sleep(0.01)
    return f"\0{name}"


class Silent(FileBook):
    """PrimeMaster is not there, and nobody can say whether a checkpoint counts."""

    def commit(self, place: CheckpointLocation, mark: CheckpointId) -> str | None:
        """Nothing is said."""
        del place, mark


def test_without_prime_master_each_node_saves_its_share_and_the_next_life_has_it_whole(folders):
    _, saved = folders
    with a_saver(book=Silent()) as (one, _), a_saver(book=Silent()) as (two, _):
        ranks = [client(place(saver, saved, rank=rank, world=2)) for rank, saver in enumerate((one, two))]
        for step in (1, 2):
            for rank in ranks:
                rank.save(step, {"step": step}, persist=False)
        ranks[0].save(3, {"step": 3}, persist=False)  # the other one has not come so far
        assert (one.final_save.save_all(20.0), two.final_save.save_all(20.0)) == ("", "")
        for rank in ranks:
            rank.close(wait=False)
    assert steps(saved) == []
    with a_saver() as (three, _):
        for rank in (0, 1):
            mine = client(place(three, saved, rank=rank, world=2, number=2, incarnation=2))
            assert mine.load() == (2, {"step": 2})
            mine.close(wait=False)


def test_prime_master_is_waited_for_no_longer_than_its_time_in_a_last_save(folders, monkeypatch):
    monkeypatch.setattr("dljob.runtime.checkpoint.final_save.ANSWER_S", 0.0)
    monkeypatch.setattr("dljob.runtime.checkpoint.process.LOOK_S", 0.01)
    _, saved = folders
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    address = f"@dljob-test-{secrets.token_hex(6)}"
    process = SaverProcess(theirs, address, 20.0)
    serving = threading.Thread(target=process.serve, daemon=True)
    serving.start()
    agent = Wire(ours)
    where = CheckpointLocation(address, str(saved), "w/0", 0, 1, 1, 1, 1, "w", peer_copy=False, grace_s=20.0)
    mine = client(where)
    mine.save(7, {"a": 1}, persist=False)
    agent.send({"op": "last", "id": 1, "timeout_s": 20.0})
    heard = [agent.receive(), agent.receive(), agent.receive()]
    said = [message for message, _ in filter(None, heard)]
    assert [(m["op"], m.get("question", {}).get("what")) for m in said] == [
        ("up", None),
        ("ask", "commit"),
        ("done", None),
    ]
    assert said[-1]["failed"] == ""
    assert Folder(saved).has_part(CheckpointId(where.run_id, 7), 0)
    mine.close(wait=False)
    agent.close()
    serving.join(60)
    theirs.close()
