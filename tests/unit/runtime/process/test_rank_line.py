"""The line between a forked rank and its host, both ends in one process."""

from __future__ import annotations

import errno
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from ray.exceptions import ObjectStoreFullError

from dljob import CallError, CallTimeoutError, NotFoundError, PeerLostError, RemoteError, RoleGroup, UnreachableError
from dljob.calls.mark import RpcMark, ServiceDescriptor
from dljob.errors import ErrorOrigin, UsageError
from dljob.runtime.process import rank_link, wire
from dljob.runtime.process.context import current_worker, install
from dljob.runtime.process.frames import Frames, abstract, call_frames
from dljob.runtime.process.messages import DESCRIBE, NotRun, Reply
from dljob.runtime.process.rank_link import connect
from dljob.runtime.process.step_counters import StepCounters
from dljob.runtime.process.worker_context import CallTransport, RankCall
from dljob.runtime.worker import host_socket
from dljob.runtime.worker.host_socket import HostSocket

FACTS = {
    "job_name": "j",
    "job_uid": "0" * 32,
    "job_dir": "/nowhere",
    "role": "w",
    "rank": 3,
    "local_rank": 1,
    "world_size": 4,
    "group": 0,
    "incarnation": 2,
    "restart_reason": "",
    "devices": {},
    "device_index": 0,
}


class Line(CallTransport):
    """A host's socket; what the rank sent is in queues, what it is answered is up to the test."""

    def __init__(self) -> None:
        self.counters = StepCounters.create(2)
        self.sent: queue.Queue[tuple[RankCall, Future[Reply]]] = queue.Queue()
        self.sizes: dict[str, int] = {}
        self.numbers: dict[str, tuple[int, ...]] = {}
        self.incarnations: dict[str, int] = {}
        self.asked: queue.Queue[tuple] = queue.Queue()
        self.notes: list[dict[str, object]] = []
        self.deaf = False
        self.stopping = ""
        self.socket = HostSocket(self._facts, lambda _: (self.counters.fd, 1), lambda _: self)

    def _facts(self, rank: int, incarnation: int):
        if incarnation != 2:
            return None
        return {"facts": {**FACTS, "rank": rank}, "config": {"a": 1}, "peers": {"w": 4}, "stopping": self.stopping}

    def ask(self, what, args, timeout_s) -> Future:
        self.asked.put((what, args))
        future: Future = Future()
        if what == "notes":
            future.set_result([note for note in self.notes if note["seq"] > (args or [0])[0]])
        elif what == "status":
            future.set_result({"phase": "Running", "ranks": ["w/0"]})
        elif self.deaf:
            future.set_exception(UnreachableError("PrimeMaster gave no answer"))
        else:
            future.set_result(None)
        return future

    def send(self, call: RankCall) -> Future[Reply]:
        future: Future[Reply] = Future()
        self.sent.put((call, future))
        return future


@pytest.fixture
def line(monkeypatch) -> Iterator[Line]:
    made = Line()
    monkeypatch.setenv("DLJOB_RANK", "3")
    monkeypatch.setenv("DLJOB_INCARNATION", "2")
    yield made
    install(None)
    made.socket.close()
    made.counters.close()


def known(worker):
    """A rank that has asked role w for its card."""
    worker.descriptors.learn("w", ServiceDescriptor({"batch": RpcMark(dispatch="shard", collect="concat")}), (4, 0))
    return worker


def made_by(connection: Frames, number: int, call: RankCall) -> None:
    """Make a call in the place of a rank's process."""
    for head, body in call_frames({number: call}, iter(())):
        connection.send(head, body)


def test_rank_learns_who_it_is(line):
    worker = connect(line.socket.path, current_worker)
    assert (worker.name, worker.world_size, worker.config["a"], worker.peers["w"]) == ("w/3", 4, 1, 4)
    with pytest.raises(TypeError):
        worker.config["a"] = 2
    assert not worker.stopping


def test_notices_to_all_ranks_may_come_before_the_answer(line, monkeypatch):
    def counter(rank: int) -> tuple[int, int]:
        """The host knows of the connection, and has not answered yet."""
        line.socket.tell_sizes({"w": 6}, {"w": (0, 1, 2, 3, 5, 7)})
        line.socket.stopping([rank], "the role shrinks")
        return line.counters.fd, 1

    monkeypatch.setattr(line.socket, "_counter", counter)
    worker = connect(line.socket.path, current_worker)
    assert (worker.name, worker.calls.sizes, worker.calls.numbers) == ("w/3", {"w": 6}, {"w": (0, 1, 2, 3, 5, 7)})
    assert worker.stopping.reason == "the role shrinks"


def test_an_order_that_comes_while_the_facts_are_read_reaches_the_rank(line, monkeypatch):
    def facts(rank: int, incarnation: int):
        found = line._facts(rank, incarnation)
        line.socket.stopping([rank], "the role shrinks")
        return found

    monkeypatch.setattr(line.socket, "_facts", facts)
    assert connect(line.socket.path, current_worker).stopping.reason == "the role shrinks"


def test_rank_of_the_past_is_not_answered(line, monkeypatch):
    monkeypatch.setenv("DLJOB_INCARNATION", "1")
    with pytest.raises(UnreachableError, match="the host has no rank"):
        connect(line.socket.path, current_worker)


def test_nothing_of_the_socket_is_in_a_folder(line):
    assert line.socket.path.startswith("@dljob-")
    line.socket.close()
    with pytest.raises(UnreachableError, match="does not answer at @dljob-"):
        connect(line.socket.path, current_worker)


def test_process_of_another_user_is_not_heard(line, monkeypatch):
    monkeypatch.setattr(host_socket, "peer", lambda _: (1, os.getuid() + 1))
    with pytest.raises(UnreachableError, match="the host has no rank"):
        connect(line.socket.path, current_worker)


class Exhausted:
    """A listening socket whose process has no descriptor left, once; then it accepts as the real one does."""

    def __init__(self, real: socket.socket) -> None:
        self.real, self.failed = real, threading.Event()

    def accept(self):
        if not self.failed.is_set():
            self.failed.set()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self.real.accept()

    def __getattr__(self, name):
        return getattr(self.real, name)


def test_host_without_a_descriptor_left_serves_ranks_again_once_it_has_one(line, monkeypatch, caplog):
    monkeypatch.setattr(host_socket, "RETRY_S", 0.01)
    connect(line.socket.path, current_worker)
    line.socket._server = Exhausted(line.socket._server)
    # The thread is inside the real one's `accept`: this connection lets it out.
    assert connect(line.socket.path, current_worker).rank == 3
    assert connect(line.socket.path, current_worker).rank == 3
    assert line.socket._server.failed.is_set()
    assert "no rank can connect: Too many open files" in caplog.text


def test_host_without_a_thread_left_refuses_a_rank_and_serves_the_next(line, monkeypatch, caplog):
    start = threading.Thread.start

    def no_thread(thread):
        if thread.name == "dljob-line":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(UnreachableError):
            connect(line.socket.path, current_worker)
    assert "a rank is refused: can't start new thread" in caplog.text
    assert connect(line.socket.path, current_worker).rank == 3


def test_host_that_does_not_answer_is_named(line, monkeypatch):
    monkeypatch.setattr(rank_link, "HELLO_S", 0.1)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind("\0silent-host-of-a-test")
        silent.listen()
        with pytest.raises(UnreachableError, match=r"@silent-host-of-a-test did not answer within 0\.1 s"):
            connect("@silent-host-of-a-test", current_worker)


def test_progress_is_a_write_to_memory_whatever_the_host_does(line):
    worker = connect(line.socket.path, current_worker)
    line.socket.close()
    worker.report(7, {"loss": 0.5})
    (count,) = line.counters.ranks()
    assert (count.rank, count.incarnation, count.step, count.metrics) == (3, 2, 7, {"loss": 0.5})


def test_stopping_arrives_also_when_it_was_said_before(line):
    worker = connect(line.socket.path, current_worker)
    line.socket.stopping([3], "enough")
    assert worker.stopping.wait(10)
    assert worker.stopping.reason == "enough"
    line.stopping = "earlier"
    assert connect(line.socket.path, current_worker).stopping.reason == "earlier"


def test_rank_that_takes_nothing_holds_up_no_notice_to_another_one(line, monkeypatch):
    monkeypatch.setenv("DLJOB_RANK", "4")
    other = connect(line.socket.path, current_worker)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(abstract(line.socket.path))
        stopped = Frames(connection)
        stopped.send({"op": "hello", "rank": 3, "incarnation": 2})
        os.close(stopped.receive_fds(1)[0])
        assert stopped.receive() is not None
        asked = RankCall("w", 0, "a", b"", None, idempotent=False)
        made_by(stopped, 1, asked)
        _, answer = line.sent.get(timeout=10)
        # More than the socket has room for: the answer waits until the rank reads.
        answer.set_result(Reply(b"x" * (8 << 20)))
        line.socket.tell_sizes({"w": 6}, {})
        line.socket.stopping([3, 4], "enough")
        assert other.stopping.wait(10)
        got = [frame[0]["op"] for _ in range(3) if (frame := stopped.receive())]
    assert got == ["reply", "sizes", "stopping"]


def test_process_that_reads_no_answer_holds_up_no_call_of_its_rank(line):
    """All answers of a rank come from one thread, to whichever of its processes has asked."""
    install(known(connect(line.socket.path, current_worker)))
    whole, asked = 8 << 20, RankCall("w", 0, "a", b"", None, idempotent=False)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(abstract(line.socket.path))
        stopped = Frames(connection)
        stopped.send({"op": "hello", "rank": 3, "incarnation": 2})
        os.close(stopped.receive_fds(1)[0])
        assert stopped.receive() is not None
        for number in (1, 2, 3):
            made_by(stopped, number, asked)
            # More than the socket has room for: the answer waits until the process reads, and here returns at once.
            line.sent.get(timeout=10)[1].set_result(Reply(str(number).encode() * whole))
        called = RoleGroup("w")[0].call("b")
        line.sent.get(timeout=10)[1].set_result(Reply(payload=wire.dump(7, "")))
        assert called.result(timeout=10) == 7
        got = [frame for _ in range(3) if (frame := stopped.receive())]
    assert [(head["id"], len(body), body[-1:]) for head, body in got] == [
        (1, whole, b"1"),
        (2, whole, b"2"),
        (3, whole, b"3"),
    ]


def test_calls_are_answered_out_of_order(line):
    install(known(connect(line.socket.path, current_worker)))
    group = RoleGroup("w").options(timeout=5, idempotent=True)
    first, second = group[0].call("a", 1), group[1].call("b", x=2)
    sent = [line.sent.get(timeout=10) for _ in range(2)]
    assert [(c.role, c.rank, c.method, c.timeout_s, c.idempotent) for c, _ in sent] == [
        ("w", 0, "a", 5.0, True),
        ("w", 1, "b", 5.0, True),
    ]
    assert [wire.load(c.payload) for c, _ in sent] == [((1,), {}), ((), {"x": 2})]
    sent[1][1].set_result(Reply(payload=wire.dump("two", "")))
    assert second.result(timeout=10) == "two"
    assert not first.done()
    sent[0][1].set_result(Reply(error_type="ValueError", message="no", traceback="their lines"))
    with pytest.raises(RemoteError, match=r"w/0.a raised ValueError: no") as caught:
        first.result(timeout=10)
    assert caught.value.remote_traceback == "their lines"


def test_refusals_and_errors_keep_their_class_and_words(line):
    install(known(connect(line.socket.path, current_worker)))
    refused, late = RoleGroup("w")[0].call("a"), RoleGroup("w")[0].call("b")
    line.sent.get(timeout=10)[1].set_result(
        Reply(error_type="CallError", message="w/0 has no such method", refused=NotRun.NO_METHOD)
    )
    too_late = CallTimeoutError("too late", role="w", rank=0, hint="look there")
    too_late.origin = ErrorOrigin("w/0", 4, "CallTimeoutError", "too late", "h.py:9 in b")
    line.sent.get(timeout=10)[1].set_exception(too_late)
    with pytest.raises(RemoteError, match=r"^w/0 has no such method$"):
        refused.result(timeout=10)
    with pytest.raises(CallTimeoutError, match="too late\n  look there") as told:
        late.result(timeout=10)
    assert told.value.origin == too_late.origin
    lost = RoleGroup("w")[0].call("c")
    line.sent.get(timeout=10)[1].set_exception(PeerLostError("gone", role="w", rank=0, incarnation=4, died=False))
    with pytest.raises(PeerLostError, match="gone") as told:
        lost.result(timeout=10)
    assert (told.value.incarnation, told.value.died) == (4, False)


def test_a_call_that_cannot_be_sent_fails_alone(line, monkeypatch):
    install(known(connect(line.socket.path, current_worker)))
    with monkeypatch.context() as here:

        def no_room(call: RankCall) -> Future[Reply]:
            raise OSError("the disk is full") if call.method == "a" else ObjectStoreFullError("the store is full")

        here.setattr(line, "send", no_room)
        for method, why in (("a", "OSError: the disk is full"), ("b", "ObjectStoreFullError: .*the store is full")):
            with pytest.raises(CallError, match=rf"w/0\.{method}: it could not be sent: {why}"):
                RoleGroup("w")[0].call(method).result(timeout=10)
    after = RoleGroup("w")[0].call("a")
    line.sent.get(timeout=10)[1].set_result(Reply(wire.dump(5, "")))
    assert after.result(timeout=10) == 5


def test_calls_fail_when_the_host_goes(line):
    install(known(connect(line.socket.path, current_worker)))
    call = RoleGroup("w")[0].call("a")
    line.sent.get(timeout=10)
    for frames in line.socket._lines[3]:
        frames.close()
    with pytest.raises(CallError, match="the host of this rank is gone"):
        call.result(timeout=10)


def test_card_is_asked_for_once_and_arguments_are_those_of_the_call(line):
    install(connect(line.socket.path, current_worker))
    batch = [1, 2, 3]
    call = RoleGroup("w").call("batch", batch)
    batch.clear()
    asked, answer = line.sent.get(timeout=10)
    assert (asked.rank, asked.method) == (0, ":card")
    answer.set_result(
        Reply(payload=wire.dump(ServiceDescriptor({"batch": RpcMark(dispatch="shard", collect="concat")}), ""))
    )
    sent = [line.sent.get(timeout=10) for _ in range(4)]
    assert [wire.load(c.payload) for c, _ in sent] == [(([1],), {}), (([2],), {}), (([3],), {}), (([],), {})]
    for each, reply in sent:
        reply.set_result(Reply(payload=wire.dump(wire.load(each.payload)[0][0], "")))
    assert call.result(timeout=10) == [1, 2, 3]
    RoleGroup("w").call("batch", [0])
    assert line.sent.get(timeout=10)[0].method == "batch"


def test_a_large_argument_common_to_all_shards_travels_once(line):
    install(known(connect(line.socket.path, current_worker)))
    weights = b"w" * 200_000
    RoleGroup("w").call("batch", [1, 2, 3, 4], weights=weights)
    sent = [line.sent.get(timeout=10)[0] for _ in range(4)]
    assert all(len(c.payload) < 1000 for c in sent)
    assert [wire.arguments(c.payload, c.common) for c in sent] == [(([n],), {"weights": weights}) for n in (1, 2, 3, 4)]
    assert len({id(c.common) for c in sent}) == 1, "the host has it once, and so stores it once"
    RoleGroup("w").call("same", weights)
    sent = [line.sent.get(timeout=10)[0] for _ in range(4)]
    assert wire.load(sent[0].payload) == ((weights,), {})
    assert len({id(c.payload) for c in sent}) == 1


def test_a_call_that_was_sent_leaves_no_arguments_in_the_process_of_its_rank(line):
    calls, call = (
        connect(line.socket.path, current_worker).calls,
        RankCall("w", 0, "f", b"a" * 200_000, None, idempotent=True),
    )
    future = calls.send(call)
    assert len(line.sent.get(timeout=10)[0].payload) == 200_000
    assert not future.done()
    assert call.payload == b""


def test_size_of_a_role_that_was_resized_is_heard_of(line):
    install(known(connect(line.socket.path, current_worker)))
    group = RoleGroup("w")
    call = group.call("batch", [1, 2])
    assert [line.sent.get(timeout=10)[0].ranks for _ in range(3)] == [4, 4, 4]
    _, answer = line.sent.get(timeout=10)
    line.sizes["w"] = 2
    answer.set_exception(CallError("w has 2 ranks now", role="w", rank=3))
    with pytest.raises(CallError, match="2 ranks now"):
        call.result(timeout=10)
    assert len(group) == 2


def test_role_that_has_restarted_is_asked_anew_what_it_is(line):
    install(known(connect(line.socket.path, current_worker)))
    call = RoleGroup("w").call("batch", [1, 2])
    line.incarnations["w"] = 2
    for _ in range(4):
        line.sent.get(timeout=10)[1].set_result(Reply(wire.dump([0], "")))
    assert call.result(timeout=10) == [0] * 4
    RoleGroup("w").call("batch", [1, 2])
    assert line.sent.get(timeout=10)[0].method == DESCRIBE


def test_job_is_asked_and_ordered_through_the_host(line):
    worker = connect(line.socket.path, current_worker)
    assert worker.job.status() == {"phase": "Running", "ranks": ["w/0"]}
    worker.job.restart(role="w", rank=1)
    worker.job.stop()
    assert line.asked.get(timeout=10) == ("status", [])
    (what, (number, *order)), (_, (other, *end)) = line.asked.get(timeout=10), line.asked.get(timeout=10)
    assert (what, order, end) == ("command", ["restart", "w/1", "w/3"], ["stop", "job", "w/3"])
    assert number != other
    line.deaf = True
    with pytest.raises(UnreachableError, match="PrimeMaster gave no answer"):
        worker.job.stop()


def test_a_role_is_scaled_through_the_host_and_a_refusal_is_raised(line):
    worker = connect(line.socket.path, current_worker)
    worker.job.scale("w", 6)
    assert [line.asked.get(timeout=10)[0] for _ in range(3)] == ["notes", "command", "notes"]
    line.notes.append({"seq": 1, "reason": "CommandRefused", "target": "w", "message": "an old one"})
    worker.job.scale("w", 6)
    while not line.asked.empty():
        line.asked.get()
    ask = line.ask

    def refuses(what, args, timeout_s):
        if what == "command":
            assert args[1:] == ["scale", "w=9", "w/3"]
            line.notes.append({"seq": 2, "reason": "CommandRefused", "target": "w", "message": "w has 1 to 6 ranks"})
        return ask(what, args, timeout_s)

    line.ask = refuses
    with pytest.raises(UsageError, match="w has 1 to 6 ranks"):
        worker.job.scale("w", 9)


def test_a_rank_that_calls_nobody_hears_of_other_sizes_too(line):
    worker = connect(line.socket.path, current_worker)
    line.socket.tell_sizes({"w": 6}, {"w": (0, 1, 2, 3, 4, 6)})
    deadline = time.monotonic() + 10
    while worker.calls.sizes.get("w") != 6:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    install(known(worker))
    group = RoleGroup("w")
    assert (len(group), [rank.rank for rank in group], group[-1].rank) == (6, [0, 1, 2, 3, 4, 6], 6)


def test_a_detector_accuses_its_own_rank_or_another_one_of_its_role(line):
    worker = connect(line.socket.path, current_worker)
    worker.suspect("a checksum differs")
    worker.suspect("y" * 900, rank=0)
    what, args = line.asked.get(timeout=10)
    assert (what, args) == ("suspect", ["w", 3, worker.incarnation, "a checksum differs", "w/3"])
    what, (role, rank, incarnation, why, by) = line.asked.get(timeout=10)
    assert (what, role, rank, incarnation, len(why), by) == ("suspect", "w", 0, 0, 500, "w/3")
    with pytest.raises(NotFoundError, match=r"suspect\(rank=4\): no such rank\n  w has 4"):
        worker.suspect("no such rank", rank=4)


def test_order_to_what_is_not_there_is_refused(line):
    worker = connect(line.socket.path, current_worker)
    with pytest.raises(NotFoundError, match=r"no such role\n  roles: w \(4\)"):
        worker.job.restart(role="v")
    with pytest.raises(NotFoundError, match="no such rank"):
        worker.job.restart(role="w", rank=4)
    assert line.asked.empty()


CHATTER = """
from dljob import current_worker, progress

current_worker()
for step in range(50):
    progress(step, loss=0.5)
"""


def test_the_last_step_of_a_dead_rank_is_kept(line, monkeypatch):
    monkeypatch.setenv("DLJOB_HOST_SOCKET", line.socket.path)
    subprocess.run([sys.executable, "-c", CHATTER], check=True, timeout=30)
    assert [(count.step, count.metrics) for count in line.counters.ranks()] == [(49, {"loss": 0.5})]


FORKED = """
import os, signal, threading
from dljob import RoleGroup, current_worker

signal.alarm(100)
me, group = current_worker(), RoleGroup("w")
assert group[0].call("echo", "first").result(timeout=60) == "first"
pid = os.fork()
signal.alarm(100)
who = "parent" if pid else "child"
for number in range(3):
    assert group[0].call("echo", f"{who} {number}").result(timeout=60) == f"{who} {number}"
assert me is current_worker()
assert me.job.status()["phase"] == "Running"
assert current_worker().saver() == {}
assert any(thread.name == "dljob-link" for thread in threading.enumerate())
assert me.stopping.wait(60)
assert group[0].call("echo", who).result(timeout=60) == who
if pid:
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""


def test_forked_child_that_uses_its_parents_handle_has_a_connection_of_its_own(line, monkeypatch):
    monkeypatch.setenv("DLJOB_HOST_SOCKET", line.socket.path)
    with subprocess.Popen([sys.executable, "-c", FORKED], stderr=subprocess.PIPE, text=True) as rank:
        both = [f"{who} {number}" for who in ("child", "parent") for number in range(3)]
        assert answered(line, 1) == ["first"]
        assert sorted(answered(line, 6)) == both
        assert len(line.socket._lines[3]) == 2
        line.socket.stopping([3], "enough")
        assert sorted(answered(line, 2)) == ["child", "parent"]
        assert (rank.communicate(timeout=60)[1], rank.returncode) == ("", 0)


def answered(line: Line, count: int) -> list[str]:
    """The words of so many calls, each of which is answered with its word."""
    words = list[str]()
    while len(words) < count:
        call, answer = line.sent.get(timeout=60)
        if call.method == DESCRIBE:
            answer.set_result(Reply(wire.dump(ServiceDescriptor({"echo": RpcMark()}), "")))
        else:
            words.append(wire.load(call.payload)[0][0])
            answer.set_result(Reply(wire.dump(words[-1], "")))
    return words


def test_answers_that_nobody_waits_for_are_dropped_and_the_next_ones_come(line, caplog):
    worker = known(connect(line.socket.path, current_worker))
    install(worker)
    (frames,) = line.socket._lines[3]
    about = {"sizes": {}, "numbers": {}, "incarnations": {}}
    frames.send({"op": "error", "id": 77, **about})
    frames.send({"op": "said", "id": 78, "said": None})
    frames.send({"op": "saver", "place": {}})
    call = RoleGroup("w")[0].call("a")
    line.sent.get(timeout=10)[1].set_result(Reply(wire.dump(5, "")))
    assert call.result(timeout=10) == 5
    assert [record.message.partition(", as nobody waits for it")[0] for record in caplog.records] == [
        "the answer to a call is dropped",
        "an answer of PrimeMaster is dropped",
        "an address of the saver is dropped",
    ]
