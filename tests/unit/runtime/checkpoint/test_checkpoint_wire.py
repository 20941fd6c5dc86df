"""Messages between ranks, savers and agents: of any length, and a broken one ends the connection in order."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from checkpoint_kit import a_saver, client, place
from saver_kit import Node

from dljob.runtime.checkpoint.book import FileBook
from dljob.runtime.checkpoint.files import Folder
from dljob.runtime.checkpoint.wire import MESSAGE_BYTES, Wire


@pytest.fixture
def wires() -> Iterator[tuple[Wire, Wire]]:
    ours, theirs = map(Wire, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    yield ours, theirs
    ours.close()
    theirs.close()


def memory_files() -> int:
    """How many descriptors of messages, and of what the tests send beside them, this process has."""
    found = 0
    for link in list(Path("/proc/self/fd").iterdir()):
        with suppress(FileNotFoundError):  # a thread closed it meanwhile
            found += "memfd:dljob-message" in str(link.readlink())
    return found


@pytest.mark.parametrize("length", [MESSAGE_BYTES - 10, MESSAGE_BYTES, 4 * MESSAGE_BYTES, 100 * MESSAGE_BYTES])
def test_a_message_of_any_length_arrives_with_its_descriptors(wires, length):
    before = memory_files()
    files = [os.memfd_create("dljob-message-test"), os.memfd_create("dljob-message-test")]
    wires[0].send({"t": "x" * length}, files)
    wires[0].send({"after": 1})
    message, fds = wires[1].receive() or ({}, [])
    assert message == {"t": "x" * length}
    assert [os.fstat(fd).st_ino for fd in fds] == [os.fstat(fd).st_ino for fd in files]
    assert wires[1].receive() == ({"after": 1}, [])
    for fd in (*fds, *files):
        os.close(fd)
    assert memory_files() == before


@pytest.mark.parametrize("text", [b"", b"-", b'{"op": "co', b"\xff"], ids=["empty", "no-file", "torn", "no-text"])
def test_what_is_no_message_is_the_end_of_a_connection(wires, text):
    file = os.memfd_create("dljob-message-test")
    before = memory_files()
    socket.send_fds(wires[0].socket, [text], [file] if text != b"-" else [])
    assert wires[1].receive() is None
    assert memory_files() == before
    os.close(file)


LONG = [[n, n + 1, -1] for n in range(40_000)]


def test_data_positions_of_many_partitions_pass_to_the_saver_and_the_answer_back(tmp_path):
    """A topic of many partitions has a question, an answer and a commit of hundreds of KiB."""

    class Many(FileBook):
        asked: list[Any]

        def shards(self, question: Any) -> dict[str, Any] | None:
            self.asked.append(question["done"])
            return {"why": "", "runs": question["done"]}

    book = Many()
    book.asked = []
    with a_saver(book=book) as (saver, _):
        mine = client(place(saver, tmp_path))
        assert mine.shards({"done": LONG})["runs"] == LONG
        mine.save(1, {"a": 1}, persist=True, shards=[{"name": "d", "done": LONG}])
        mine.wait(20)
        assert (book.asked, mine.latest()) == ([LONG, LONG], 1)
        mine.close()


def test_long_messages_between_a_saver_and_its_agent_leave_both_serving(tmp_path, monkeypatch):
    node, answers, send = Node(), list[Any](), Wire.send

    def long(wire: Wire, message: dict[str, Any], fds: Any = ()) -> None:
        if message.get("op") == "done":  # the agent's: the saver is another process
            message = {**message, "answer": {**message["answer"], "runs": LONG}}
            answers.append(message)
        send(wire, message, fds)

    monkeypatch.setattr(Wire, "send", long)
    mine = client(place(node, tmp_path))
    assert mine.shards({"name": "d", "done": LONG, "what": "shards"})["runs"] == LONG
    mine.save(1, {"a": 1}, persist=False, shards=[{"name": "d", "done": LONG}])
    mine.wait(20, everything=True)
    assert len(answers) > 1
    node.ends()
    mine.close(wait=False)
    assert [mark.step for mark in Folder(tmp_path).marks()] == [1]


def test_a_saver_whose_agent_sends_no_message_writes_its_copies_and_ends(tmp_path):
    node = Node()
    mine = client(place(node, tmp_path))
    mine.save(1, {"a": 1}, persist=False)
    node._wire.socket.send(b'{"op": "flu')
    node._server.join(60)
    assert not node._server.is_alive()
    node.ends()
    mine.close(wait=False)
    assert [mark.step for mark in Folder(tmp_path).marks()] == [1]
