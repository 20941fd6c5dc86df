"""Who vanished without a word is asked about where it lived; whoever only blames a peer is heard a moment later."""

from __future__ import annotations

import asyncio

import pytest

from dljob.master import events as ev
from dljob.master.views import Clue, HostId, Outcome, Reason
from dljob.runtime import evidence_inquiry, hosts, tails
from dljob.runtime.backend import ActorLostError, ActorRef
from dljob.runtime.evidence_inquiry import Inquiry
from dljob.runtime.hosts import Hosts
from dljob.runtime.messages import Report

OOM = Clue("kernel", "Out of memory: Killed process 41 (python)")
WHO = HostId("w", 1)
BESIDE = ActorRef("w/0/1", None)


class Asked:
    """A backend whose actors answer `clues`, and `watch` from a list."""

    def __init__(self, answer=(), name="memory", reports=()):
        self.name = name
        self.answer = answer
        self.reports = list(reports)
        self.calls = []

    async def call(self, ref, method, *args):
        self.calls.append((ref.name, method, *args))
        if method == "watch":
            if self.reports:
                return self.reports.pop(0)
            raise ActorLostError("its worker process has died")
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def lookup(self, name):
        return ActorRef(name, None)


@pytest.fixture
def told(monkeypatch):
    monkeypatch.setattr(evidence_inquiry, "AFTER_S", 0.0)
    return []


def ask(backend, told, beside):
    async def run():
        async def offer(*events):
            told.extend(events)

        inquiry = Inquiry(backend, offer)
        inquiry.begin(WHO, "n1", 41, beside)
        await asyncio.gather(*inquiry._tasks)
        inquiry.close()

    asyncio.run(run())


def test_a_host_beside_it_is_asked(told):
    backend = Asked((OOM,))
    ask(backend, told, BESIDE)
    assert backend.calls == [("w/0/1", "clues", 41)]
    assert told == [ev.CauseLearned("w/1", (OOM,))]


def test_without_a_host_beside_it_the_node_is_asked(told, monkeypatch):
    async def on_node(node, function, pid):
        assert (node, function.__name__, pid) == ("n1", "of_the_dead", 41)
        return (OOM,)

    monkeypatch.setattr(tails, "on_node", on_node)
    ask(Asked(name="ray"), told, None)
    assert told == [ev.CauseLearned("w/1", (OOM,))]


@pytest.mark.parametrize("answer", [(), ActorLostError("gone too")])
def test_whoever_knows_nothing_says_nothing(told, answer):
    ask(Asked(answer), told, BESIDE)
    ask(Asked(), told, None)
    assert told == []


def test_an_inquiry_that_nobody_waits_for_ends(told):
    async def run():
        inquiry = Inquiry(Asked((OOM,)), None)
        inquiry.begin(WHO, "n1", 41, BESIDE)
        (task,) = inquiry._tasks
        inquiry.close()
        await asyncio.wait([task])
        return task.cancelled()

    assert asyncio.run(run())


@pytest.mark.parametrize(
    ("outcome", "waits"),
    [
        (None, False),
        (Outcome(ok=True), False),
        (Outcome(ok=False, reason=Reason.USER_ERROR, error_type="KeyError"), False),
        (Outcome(ok=False, reason=Reason.USER_ERROR, error_type="PeerLostError", message="w/1 is gone"), True),
    ],
)
def test_only_a_failure_that_blames_a_peer_waits_for_that_peers_own(monkeypatch, outcome, waits):
    waited = []

    async def sleep(seconds):
        waited.append(seconds)

    async def run():
        async def offer(*_):
            pass

        backend = Asked(reports=[(Report(1, 0, 1, 7, outcome),)])
        own = Hosts(backend, offer, lambda: 1, lambda: None)
        own.attach(HostId("w", 0), 1, "w/0/1")
        (watched,) = own._watched.values()
        await watched.task

    monkeypatch.setattr(hosts.asyncio, "sleep", sleep)
    asyncio.run(run())
    assert (hosts.BLAME_S in waited) is waits
