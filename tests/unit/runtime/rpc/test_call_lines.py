"""Call lines: messages arrive whole, nobody waits for a process that is stopped, and each loss is told once."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from uuid import uuid4

import pytest

from dljob.runtime.rpc import lines
from dljob.runtime.rpc.call_lines import CallLine, CallLines, LineServer, address

WAIT_S = 30.0


@pytest.fixture
def uid() -> str:
    """A job of this test alone: addresses are of the whole machine."""
    return uuid4().hex


@pytest.fixture
def callee(uid: str) -> Iterator[socket.socket]:
    """The listener of an actor `a` that does nothing by itself."""
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(address(uid, "a"))
        line.listen()
        yield line


def sent(calls: CallLines, message: bytes, actor: str = "a") -> Future[bytes | None]:
    """Send a call; return the future of its answer."""
    answer: Future[bytes | None] = Future()
    assert calls.send(actor, message, answer.set_result)
    return answer


def test_calls_of_many_threads_get_their_own_answers(uid):
    gate = threading.Barrier(32)

    def answer(message: bytes) -> bytes:
        gate.wait(WAIT_S)  # so they run at once, and end in any order
        return message * 2

    LineServer(address(uid, "a"), answer)
    calls = CallLines(uid)
    messages = [bytes([n]) * (n * n * 100 + 1) for n in range(32)]
    found: dict[int, bytes | None] = {}

    def call(number: int) -> None:
        found[number] = sent(calls, messages[number]).result(WAIT_S)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert found == {number: message * 2 for number, message in enumerate(messages)}


def test_actor_without_a_listener_has_no_line(uid):
    assert not CallLines(uid).send("a", b"x", pytest.fail)


def test_second_listener_at_an_address_is_refused(uid):
    LineServer(address(uid, "a"), bytes)
    with pytest.raises(OSError, match="in use"):
        LineServer(address(uid, "a"), bytes)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may listen as another user")
def test_process_of_another_user_is_sent_nothing(uid):
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(address(uid, "a"))
        os.seteuid(65534)  # the kernel notes who listens
        line.listen()
        os.seteuid(0)
        assert not CallLines(uid).send("a", b"secret", pytest.fail)
        with line.accept()[0] as made:
            assert made.recv(1) == b""


def test_process_that_reads_nothing_holds_up_no_sender_and_gets_all_later(uid, callee):
    calls, message = CallLines(uid), bytes(range(256)) * 1000
    begin = time.monotonic()
    answers = [sent(calls, message) for _ in range(20)]
    assert time.monotonic() - begin < WAIT_S / 3
    line, _ = callee.accept()
    heard: SimpleQueue[tuple[int, bytes]] = SimpleQueue()
    lines.LineReader().add(line, lambda own, number, data: (heard.put((number, data)), own.send(number, b"y")), print)
    assert [heard.get(timeout=WAIT_S) for _ in answers] == [(number, message) for number in range(1, 21)]
    assert [answer.result(WAIT_S) for answer in answers] == [b"y"] * 20


def test_line_that_breaks_is_told_for_each_call_once_and_not_made_again(uid, callee):
    calls = CallLines(uid)
    answers = [sent(calls, b"x"), sent(calls, b"y" * (1 << 20))]
    callee.accept()[0].close()
    assert [answer.result(WAIT_S) for answer in answers] == [None, None]
    assert not calls.send("a", b"z", pytest.fail)


@pytest.mark.parametrize("cut", [1, 5, 13, 14])
def test_answer_that_comes_in_pieces_is_taken_when_it_is_whole(uid, callee, cut):
    answer = sent(CallLines(uid), b"x")
    line, _ = callee.accept()
    head = line.recv(12)
    assert (line.recv(10), head) == (b"x", lines._HEAD.pack(1, 1))
    frame = lines._HEAD.pack(4, 1) + b"abcd"
    line.sendall(frame[:cut])
    assert not answer.done()
    line.sendall(frame[cut:])
    assert answer.result(WAIT_S) == b"abcd"
    line.close()


def test_server_goes_on_when_a_caller_is_gone_before_its_answer(uid):
    gate, began = threading.Event(), threading.Event()

    def answer(message: bytes) -> bytes:
        if message == b"slow":
            began.set()
            gate.wait(WAIT_S)
        return message

    LineServer(address(uid, "a"), answer)
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(address(uid, "a"))
        line.sendall(lines._HEAD.pack(4, 1) + b"slow")
        assert began.wait(WAIT_S)
    gate.set()
    assert sent(CallLines(uid), b"x").result(WAIT_S) == b"x"


def test_send_on_a_line_that_breaks_meanwhile_is_told_or_refused_but_not_both():
    reader = lines.LineReader()
    for _ in range(50):
        here, there = socket.socketpair()
        line = reader.add(here, print, lambda: None)
        assert line is not None
        threading.Thread(target=there.close).start()
        try:
            while True:
                line.send(1, b"x")
        except OSError:
            pass


def test_interruption_while_it_is_sent_ends_the_line_and_sends_nothing_twice(uid, callee, monkeypatch):
    calls = CallLines(uid)

    def torn(line: lines.Line) -> None:
        line._line.send(line._out)
        raise KeyboardInterrupt  # before it is noted what was sent

    with monkeypatch.context() as patch:
        patch.setattr(lines.Line, "_flush", torn)
        with pytest.raises(KeyboardInterrupt):
            calls.send("a", b"once", print)
    end, _ = callee.accept()
    with end:
        end.settimeout(WAIT_S)
        got = b"".join(iter(partial(end.recv, 1 << 16), b""))
    assert got.count(b"once") == 1
    answers: list[bytes | None] = []
    assert not calls.send("a", b"again", answers.append) or answers == [None], "it is told as lost"


def test_message_that_cannot_be_taken_ends_its_line_alone(uid, caplog):
    reader, heard = lines.LineReader(), SimpleQueue[bytes]()

    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    pairs = [socket.socketpair(socket.AF_UNIX) for _ in range(2)]
    closed = threading.Event()
    bad = reader.add(pairs[0][0], fail, closed.set)
    good = reader.add(pairs[1][0], lambda _line, _number, message: heard.put(message), lambda: None)
    assert bad
    assert good
    for _, end in pairs:
        end.sendall(lines._HEAD.pack(2, 1) + b"hi")
    assert closed.wait(WAIT_S)
    assert heard.get(timeout=WAIT_S) == b"hi"
    assert "a message of it could not be taken" in caplog.text
    for _, end in pairs:
        end.close()


def test_answer_that_nobody_waits_for_is_left():
    made = CallLine()
    made._waiting[2] = took = pytest.fail
    made.answered(lines.Line.__new__(lines.Line), 1, b"late")
    assert made._waiting == {2: took}


def refused(_: threading.Thread) -> None:
    """Start no thread, as at the limit of processes."""
    raise RuntimeError("can't start new thread")


def test_line_that_no_thread_can_read_is_closed_and_the_next_one_is_read(uid, callee, monkeypatch, caplog):
    calls = CallLines(uid)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        assert not calls.send("a", b"x", pytest.fail), "it goes by Ray"
    with callee.accept()[0] as line:
        assert line.recv(1) == b""
    assert "a line is closed, as nobody can read it: can't start new thread" in caplog.text
    calls._lines.clear()
    answer = sent(calls, b"x")
    with callee.accept()[0] as line:
        line.sendall(lines._HEAD.pack(2, 1) + b"hi")
        assert answer.result(WAIT_S) == b"hi"


def test_listener_without_a_descriptor_tries_again(uid, monkeypatch, caplog):
    class FullOnce(socket.socket):
        left = 1

        def accept(self) -> tuple[socket.socket, object]:
            if FullOnce.left:
                FullOnce.left = 0
                raise OSError(24, "Too many open files")
            return super().accept()

    monkeypatch.setattr(lines, "AGAIN_S", 0.01)
    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", FullOnce)
        LineServer(address(uid, "a"), bytes)
    assert sent(CallLines(uid), b"x").result(WAIT_S) == b"x"
    assert "no line can be accepted; it is tried again" in caplog.text
