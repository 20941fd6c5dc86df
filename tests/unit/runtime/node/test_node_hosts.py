"""The lines between the hosts of a node and its agent, both ends in one process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernels import NEEDS_ENDS

from dljob.runtime.forked_workers import worker_ends
from dljob.runtime.node import host_channel, node_hosts
from dljob.runtime.node.host_channel import AgentLine, address
from dljob.runtime.node.node_hosts import HostEnd, NodeHosts
from dljob.runtime.node.prestop import SILENT_S
from dljob.runtime.process import process_end
from dljob.runtime.process.messages import AgentRequest, Heartbeat, NodeHeartbeat
from dljob.runtime.process.step_counters import StepCounters, now


def until(check: Callable[[], Any]) -> Any:
    """The first true answer, in good time."""
    end = time.monotonic() + 60
    while not (got := check()):
        assert time.monotonic() < end
        time.sleep(0.005)
    return got


class Host:
    """A host's end: its counters and its line."""

    def __init__(self, where: str, actor: str, ranks: int = 1) -> None:
        self.actor = actor
        self.counters = StepCounters.create(ranks)
        self.counters.count_heartbeat()
        self.line = AgentLine(where, "w", actor, self.counters)
        self.line.renewal()

    def close(self) -> None:
        self.line.close()
        self.counters.close()


@pytest.fixture
def where(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(host_channel, "RETRY_S", 0)
    monkeypatch.setattr(node_hosts, "SILENT_S", 600.0)
    return address(uuid.uuid4().hex, "n1")


@pytest.fixture
def agent(where: str) -> Iterator[NodeHosts]:
    made = NodeHosts(where)
    until(lambda: _listens(where))
    yield made
    made.close()


def _opened(what: str) -> int:
    """How often a file of that name is open in this process."""
    found = 0
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one of this listing
            found += what in str(fd.readlink())
    return found


def _listens(where: str) -> bool:
    """Whether an agent reads what is sent to it: then it has looked for the hosts that were there before."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.settimeout(60)
        if line.connect_ex(where) != 0:
            return False
        line.send(b"no hello")
        return line.recv(1) == b""


@pytest.fixture
def join(agent: NodeHosts, where: str) -> Iterator[Callable[..., Host]]:
    made: list[Host] = []

    def one(actor: str, ranks: int = 1) -> Host:
        made.append(Host(where, actor, ranks))
        return made[-1]

    yield one
    for host in made:
        host.close()


@pytest.fixture
def host(agent: NodeHosts, join: Callable[..., Host]) -> Host:
    made = join("job/w/0/1", 2)
    until(agent.observe)
    agent.accept_request(ask())
    return made


def ask(acked: int = 0, *unknown: str, epoch: int = 1, pause_s: float = 60.0) -> AgentRequest:
    return AgentRequest(epoch, pause_s, 0.2, acked, unknown)


def steps(beacon: Heartbeat) -> dict[int, tuple[int, int]]:
    return {rank: (incarnation, step) for rank, (incarnation, step, _) in beacon.steps.items()}


def test_steps_are_said_until_they_are_heard_and_then_no_more(agent, host):
    assert not agent.has_unreported()
    host.counters.slots[0].put(0, 1, 7, {"loss": 0.5})
    assert agent.has_unreported()
    first = agent.report(ask())
    assert first.pid == os.getpid()
    assert first.hosts == (Heartbeat("w", "job/w/0/1", 1, {0: (1, 7, {"loss": 0.5})}),)
    assert agent.accept_request(ask())
    assert steps(agent.report(ask()).hosts[0]) == {0: (1, 7)}, "nobody said that it was heard"
    host.counters.slots[0].put(0, 1, 8, {})
    assert agent.accept_request(ask(first.number))
    assert agent.has_unreported()
    second = agent.report(ask())
    assert steps(second.hosts[0]) == {0: (1, 8)}, "what came after the report that was heard"
    assert agent.accept_request(ask(second.number))
    assert not agent.has_unreported()
    assert [beacon.steps for beacon in agent.report(ask()).hosts] == [{}]


def test_usage_is_said_until_it_is_heard_and_is_no_news(agent, host):
    host.counters.put_usage(b'{"memory":[[0,7]]}')
    assert not agent.has_unreported()
    first = agent.report(ask())
    assert [beacon.usage for beacon in first.hosts] == [{"memory": [[0, 7]]}]
    assert NodeHeartbeat.unpacked(first.packed()) == first
    assert [beacon.usage for beacon in agent.report(ask()).hosts] == [{"memory": [[0, 7]]}]
    assert agent.accept_request(ask(first.number))
    assert [beacon.usage for beacon in agent.report(ask()).hosts] == [{}]


def test_a_new_master_is_told_all_and_an_old_one_nothing(agent, host):
    host.counters.slots[1].put(1, 3, 9, {})
    agent.accept_request(ask(agent.report(ask()).number))
    assert not agent.has_unreported()
    old = agent.report(ask())
    assert agent.accept_request(ask(epoch=2))
    assert agent.has_unreported()
    assert steps(agent.report(ask(epoch=2)).hosts[0]) == {1: (3, 9)}
    before = host.counters.renewal()
    assert not agent.accept_request(ask(old.number))
    assert host.counters.renewal() == before, "the answer of a master that is over renews nothing"


def test_the_answer_renews_the_lease_from_the_time_of_what_it_answers(agent, host):
    before = now()
    pulse = agent.report(ask())
    after = now()
    assert host.line.renewal() is None, "nothing was answered yet"
    agent.accept_request(ask(pulse.number))
    renewal = host.line.renewal()
    assert renewal is not None
    assert (renewal.epoch, renewal.known) == (1, True)
    assert before <= renewal.sent_at <= after
    assert renewal.sent_at + 60 < renewal.until < renewal.sent_at + 120


def test_an_answer_that_another_master_was_given_renews_nothing(agent, host):
    pulse = agent.report(ask())
    agent.accept_request(ask(pulse.number, epoch=2))
    assert host.line.renewal() is None


def test_a_host_that_nobody_knows_is_told_so_and_no_other(agent, host, join):
    other = join("job/w/1/1")
    until(lambda: len(agent.observe()) == 2)
    agent.accept_request(ask(agent.report(ask()).number, "job/w/1/1"))
    found = [one.line.renewal() for one in (host, other)]
    assert [renewal.known for renewal in found if renewal] == [True, False]


def test_an_agent_that_is_not_asked_any_more_does_not_speak_for_anybody(agent, host, monkeypatch):
    agent.accept_request(ask(agent.report(ask()).number))
    renewal = host.line.renewal()
    assert renewal is not None
    monkeypatch.setattr(host_channel, "now", lambda: renewal.until)
    assert host.line.renewal() is None


def test_a_host_that_is_stopped_is_seen_as_such_and_its_steps_are_still_read(agent, host, monkeypatch):
    host.counters.slots[0].put(0, 1, 3, {})
    monkeypatch.setattr(node_hosts, "now", lambda: host.counters.heart() + 601)
    (beacon,) = agent.report(ask()).hosts
    assert (round(beacon.silent_s), steps(beacon)) == (601, {0: (1, 3)})
    (seen,) = agent.observe()
    assert (seen.actor, seen.role, seen.pid) == ("job/w/0/1", "w", os.getpid())
    assert (round(seen.silent_s), [count.step for count in seen.counts]) == (601, [3])
    monkeypatch.setattr(node_hosts, "now", lambda: host.counters.heart() + 599)
    assert [beacon.silent_s for beacon in agent.report(ask()).hosts] == [0.0]


CHILD = """
import sys, time
from dljob.runtime.node.host_channel import AgentLine
from dljob.runtime.process.step_counters import StepCounters
counters = StepCounters.create(1)
counters.slots[0].begin(0, 1)
counters.count_heartbeat()
line = AgentLine("\\0" + sys.argv[1], "w", "job/w/1/1", counters)
line.renewal()
time.sleep(600)
"""


@NEEDS_ENDS
def test_a_host_that_cannot_connect_is_found_by_an_agent_that_starts_later(where):
    """It is stopped, as if its code held the GIL; then it goes on, and connects."""
    start = CHILD.replace("\nline.renewal()", "\nprint(flush=True)\ninput()\nprint(line.renewal().sent_at, flush=True)")
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", start, where[1:]], **pipes) as child:
        try:
            child.stdout.readline()
            child.send_signal(signal.SIGSTOP)
            agent = NodeHosts(where)
            (seen,) = until(agent.observe)
            assert (seen.role, seen.actor, seen.pid) == ("w", "job/w/1/1", child.pid)
            agent.accept_request(ask())
            agent.accept_request(ask(agent.report(ask()).number))
            child.send_signal(signal.SIGCONT)
            print(file=child.stdin, flush=True)
            assert 0 <= now() - float(child.stdout.readline()) < 60, "its lease was renewed while it was stopped"
            until(lambda: all(key > 0 for key in agent._hosts))
            assert [host.actor for host in agent.report(ask()).hosts] == ["job/w/1/1"]
        finally:
            child.kill()
        until(lambda: not agent.observe())
        agent.close()


@NEEDS_ENDS
def test_a_host_that_was_found_and_ends_without_a_connection_is_gone(where):
    start = CHILD.replace("time.sleep(600)", "print(flush=True)\ntime.sleep(600)")
    with subprocess.Popen([sys.executable, "-c", start, where[1:]], stdout=subprocess.PIPE) as child:
        assert child.stdout
        try:
            child.stdout.readline()
            child.send_signal(signal.SIGSTOP)
            agent = NodeHosts(where)
            until(agent.observe)
        finally:
            child.kill()
    assert agent.report(ask()).hosts == ()
    assert os.waitstatus_to_exitcode(agent.end_of(child.pid).status) == -signal.SIGKILL
    agent.close()


@NEEDS_ENDS
@pytest.mark.parametrize(("unknown", "stopped"), [(True, True), (True, False), (False, True)])
def test_a_stopped_host_that_nobody_knows_is_killed_and_no_other(agent, where, monkeypatch, unknown, stopped):
    with subprocess.Popen([sys.executable, "-c", CHILD, where[1:]]) as child:
        try:
            until(lambda: [host.pid for host in agent.observe()] == [child.pid])
            agent.accept_request(ask())
            if stopped:
                child.send_signal(signal.SIGSTOP)
                later = node_hosts.now() + 601
                monkeypatch.setattr(node_hosts, "now", lambda: later)
            number = agent.report(ask()).number
            agent.accept_request(ask(number, *["job/w/1/1"] * unknown))
            if unknown and stopped:
                assert child.wait(60) == -signal.SIGKILL
                until(lambda: not agent.observe())
            else:
                assert child.poll() is None
        finally:
            child.kill()


@NEEDS_ENDS
def test_the_end_of_a_host_can_be_asked_for_a_while(agent, where, monkeypatch):
    monkeypatch.setattr(node_hosts, "ENDED", 1)
    gone, before = list[int](), _opened("pidfd")
    for number in (signal.SIGKILL, signal.SIGSEGV):
        with subprocess.Popen([sys.executable, "-c", CHILD, where[1:]]) as child:
            try:
                until(lambda pid=child.pid: [host.pid for host in agent.observe()] == [pid])
                assert agent.end_of(child.pid) is None, "it lives"
            finally:
                child.send_signal(number)
        found = until(lambda pid=child.pid: agent.end_of(pid))
        assert (found.role, os.waitstatus_to_exitcode(found.status), found.incarnations) == ("w", -number, ((0, 1),))
        until(lambda: not agent.observe())
        gone.append(child.pid)
    assert [agent.end_of(pid) is None for pid in gone] == [True, False], "so many are remembered"
    assert _opened("pidfd") == before + 1
    agent.close()
    until(lambda: _opened("pidfd") == before)


def test_a_host_exists_until_its_process_has_ended_not_its_connection(agent, where):
    assert not agent.exists(os.getpid()), "no host of this node"
    closes = CHILD.replace("time.sleep(600)", "input()\nline.close()\ntime.sleep(600)")
    with subprocess.Popen([sys.executable, "-c", closes, where[1:]], stdin=subprocess.PIPE) as child:
        try:
            until(lambda: [host.pid for host in agent.observe()] == [child.pid])
            assert agent.exists(child.pid)
            assert child.stdin
            child.stdin.write(b"\n")
            child.stdin.flush()
            until(lambda: not agent.observe())
            assert agent.exists(child.pid), "it has closed its socket alone"
        finally:
            child.kill()
    until(lambda: not agent.exists(child.pid))


def test_who_forked_a_host_tells_its_end_where_the_kernel_does_not(agent, where, monkeypatch):
    noted = {7: 4 << 8}
    monkeypatch.setattr(process_end, "wait_status", lambda _: None)
    monkeypatch.setattr(worker_ends, "wait_status", noted.get)
    with subprocess.Popen([sys.executable, "-c", CHILD, where[1:]]) as child:
        try:
            until(lambda: [host.pid for host in agent.observe()] == [child.pid])
            noted[child.pid] = signal.SIGSEGV
            assert agent.end_of(child.pid) is None, "it lives: somebody of that pid has ended before"
        finally:
            child.kill()
    assert agent.end_of(child.pid) == HostEnd("w", signal.SIGSEGV, ((0, 1),))
    assert agent.end_of(7) == HostEnd("", 4 << 8, ()), "it ended before it could introduce itself"
    assert agent.end_of(8) is None


def test_a_host_finds_the_next_agent_and_hears_of_the_end_of_the_last(agent, host, where):
    agent.accept_request(ask(agent.report(ask()).number))
    assert host.line.renewal() is not None
    agent.close()
    until(lambda: host.line.renewal() is None)
    new = NodeHosts(where)
    assert until(lambda: (host.line.renewal(), new.observe())[1])[0].actor == host.actor
    new.close()


@pytest.mark.parametrize("hello", [b"{", b"{}", json.dumps({"role": "w", "actor": "a"}).encode()])
def test_a_host_that_does_not_introduce_itself_is_dropped(agent, where, hello):
    name = uuid.uuid4().hex
    fd = os.memfd_create(name, os.MFD_CLOEXEC)  # no counters
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.settimeout(60)
        line.connect(where)
        socket.send_fds(line, [hello], [fd])
        assert line.recv(1) == b""
    assert _opened(name) == 1, "it was given a descriptor of its own, and kept it"
    os.close(fd)
    assert agent.observe() == ()


def test_a_process_of_another_user_is_neither_host_nor_agent(agent, join, monkeypatch):
    def stranger(_: socket.socket) -> tuple[int, int]:
        return 1, os.getuid() + 1

    monkeypatch.setattr(node_hosts, "peer", stranger)
    other = join("job/w/1/1")
    until(lambda: host_channel._broken(other.line._line))  # type: ignore[arg-type]
    assert agent.observe() == ()
    monkeypatch.setattr(host_channel, "peer", stranger)
    other.line.renewal()
    assert other.line._line is None


def test_questions_and_answers_come_back_as_they_were_packed():
    asked = AgentRequest(3, 0.5, 0.2, 41, ("job/w/0/1",))
    assert AgentRequest.unpacked(asked.packed()) == asked
    told = Heartbeat("w", "job/w/1/1", 3, {7: (2, 10**20, {"loss": 0.5, "worst": float("inf")}), 8: (1, 3, {})}, 1.5)
    pulse = NodeHeartbeat(4711, 42, (told, Heartbeat("w", "job/w/2/1", 3)))
    assert NodeHeartbeat.unpacked(pulse.packed()) == pulse


def test_a_prestop_request_is_passed_on_and_answered_by_primemaster(agent, where):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.settimeout(60)
        line.connect(where)

        def said() -> dict[str, Any]:
            line.send(b'{"leave": "pod p is told to end"}')
            return json.loads(line.recv(4096))

        assert not agent.has_unreported()
        first = said()
        assert first["may_go"] == ""
        assert 0 <= first["asked_s"] < SILENT_S, "nobody asked this agent yet: PrimeMaster has just made it"
        assert agent.has_unreported()
        assert agent.report(ask()).leaving == "pod p is told to end"
        assert not agent.has_unreported(), "it was told"
        assert agent.report(ask()).leaving == "pod p is told to end", "and is told on, as an answer may be lost"
        agent.accept_request(replace(ask(), may_go="nobody lives there"))
        then = said()
        assert then["may_go"] == "nobody lives there"
        assert 0 <= then["asked_s"] < SILENT_S
    assert AgentRequest.unpacked(replace(ask(), may_go="x").packed()).may_go == "x"
    assert NodeHeartbeat.unpacked(agent.report(ask()).packed()).leaving == "pod p is told to end"
