"""Who vanished without a word is asked about where it lived; whoever only blames a peer is heard a moment later."""

from __future__ import annotations

import asyncio

import pytest

from dljob.master.state import causes
from dljob.master.state import events as ev
from dljob.master.state.views import Clue, HostId, Outcome, Reason
from dljob.runtime.backend.interface import ActorLostError, ActorRef, ActorSpec
from dljob.runtime.controller import evidence_inquiry, worker_hosts
from dljob.runtime.controller.evidence_inquiry import Inquiry
from dljob.runtime.controller.worker_hosts import HostLaunch, WorkerHosts
from dljob.runtime.forked_workers import worker_ends
from dljob.runtime.node import log_tails
from dljob.runtime.process.messages import Report
from dljob.tasks import TaskOwner

OOM = Clue("kernel", "Out of memory: Killed process 41 (python)")
WHO = HostId("w", 1)
BESIDE = ActorRef("w/0/1", None)


AGENT = "j/agent/n1"
GONE = ActorLostError("gone too")
WORDS = "its worker process has died"
OOM_WORDS = "Task was killed due to the node running low on memory."
WITHOUT_A_WORD = Outcome(ok=False, reason=Reason.UNKNOWN, detail=WORDS)


class Asked:
    """A backend whose actors answer `clues`, each as `answers` says by its name, and `watch` from a list."""

    def __init__(self, answers=None, name="memory", reports=(), end=None, *, words=WORDS, here="n0"):
        self.name = name
        self.own_node = lambda: here
        self.end = end
        self.words = words
        self.answers = answers or {}
        self.reports = list(reports)
        self.calls = []

    async def call(self, ref, method, *args):
        self.calls.append((ref.name, method, *args))
        if method == "watch":
            if self.reports:
                return self.reports.pop(0)
            raise ActorLostError(self.words)
        if method == "end_of":
            return await self.end(*args)
        answer = self.answers[ref.name]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def lookup(self, name):
        return ActorRef(name, None) if name in self.answers else None


@pytest.fixture
def told(monkeypatch):
    monkeypatch.setattr(evidence_inquiry, "AFTER_S", 0.0)
    monkeypatch.setattr(evidence_inquiry, "END_S", 0.01)
    return []


def ask(backend, told, beside):
    async def run():
        async def offer(*events):
            told.extend(events)

        inquiry = Inquiry(backend, offer, "j/agent/", TaskOwner(print))
        inquiry.begin(WHO, "n1", 41, beside)
        await asyncio.gather(*inquiry._tasks)
        inquiry.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("beside", "answers", "asked"),
    [
        (BESIDE, {"w/0/1": (OOM,), AGENT: ()}, ["w/0/1"]),
        (None, {AGENT: (OOM,)}, [AGENT]),
        (BESIDE, {"w/0/1": GONE, AGENT: (OOM,)}, ["w/0/1", AGENT]),
    ],
    ids=["a host beside it", "the agent of its node", "the agent, when the host beside it died too"],
)
def test_a_living_host_of_the_node_is_asked_for_evidence(told, beside, answers, asked):
    backend = Asked(answers, "ray")
    ask(backend, told, beside)
    assert backend.calls == [(name, "clues", 41) for name in asked]
    assert told == [ev.CauseLearned("w/1", (OOM,), host=WHO)]


@pytest.mark.parametrize("answers", [{}, {AGENT: GONE}], ids=["there is no agent", "it is gone too"])
def test_a_node_without_living_hosts_is_asked_for_evidence_itself(told, monkeypatch, answers):
    async def on_node(node, function, pid):
        assert (node, function.__name__, pid) == ("n1", "of_the_dead", 41)
        return (OOM,)

    monkeypatch.setattr(log_tails, "on_node", on_node)
    ask(Asked(answers, "ray"), told, None)
    assert told == [ev.CauseLearned("w/1", (OOM,), host=WHO)]


def test_a_host_without_evidence_reports_nothing(told):
    backend = Asked({"w/0/1": (), AGENT: (OOM,)})
    ask(backend, told, BESIDE)
    assert backend.calls == [("w/0/1", "clues", 41)], "who lives and knows nothing has seen no kill"
    for answers in ({AGENT: ()}, {AGENT: GONE}, {AGENT: ValueError("of Ray's")}):
        ask(Asked(answers), told, None)
    assert told == []


def test_an_inquiry_that_nobody_waits_for_ends(told):
    async def run():
        inquiry = Inquiry(Asked({AGENT: (OOM,)}), None, "j/agent/", TaskOwner(print))
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

        backend = Asked({"w/0/1": ()}, reports=[(Report(1, 0, 1, 7, outcome),)])
        own = WorkerHosts(backend, offer, lambda: 1, lambda: None, "j/agent/", owner=TaskOwner(print))
        own.attach(HostId("w", 0), 1, "w/0/1")
        (watched,) = own._watched.values()
        await watched.task

    monkeypatch.setattr(worker_hosts.asyncio, "sleep", sleep)
    asyncio.run(run())
    assert (worker_hosts.BLAME_S in waited) is waits


def lost(backend, told, *, pid=41):
    """What the core hears of a host that is gone."""

    async def run():
        async def offer(*events):
            told.extend(event for event in events if isinstance(event, ev.HostLost))

        backend.answers["w/1/1"] = ()
        own = WorkerHosts(backend, offer, lambda: 1, lambda: None, "j/agent/", owner=TaskOwner(print))
        own.attach(WHO, 1, "w/1/1", node="n1", pid=pid)
        (watched,) = own._watched.values()
        await watched.task
        own.close()

    asyncio.run(run())
    (event,) = told
    return event.outcome


async def killed(*_):
    return 9, "step 7\n"


async def silent(*_):
    await asyncio.Event().wait()


async def ignorant(*_):
    return None


async def broken(*_):
    raise GONE


def test_how_the_process_ended_is_asked_before_the_loss_is_told(told):
    outcome = lost(Asked({AGENT: ()}, end=killed), told)
    assert (outcome.code, outcome.message, causes.classify(outcome).reason) == (137, "ended by SIGKILL", Reason.KILLED)


@pytest.mark.parametrize("end", [silent, ignorant, broken])
def test_a_loss_does_not_wait_for_who_cannot_tell(told, end):
    assert lost(Asked({AGENT: ()}, end=end), told) == WITHOUT_A_WORD


def test_where_no_agent_is_or_no_process_is_known_nobody_is_asked(told):
    backend = Asked(end=killed)
    assert lost(backend, told) == WITHOUT_A_WORD
    told.clear()
    assert lost(Asked({AGENT: ()}, end=killed), told, pid=0) == WITHOUT_A_WORD


def test_who_forked_a_process_of_this_node_has_noted_its_end_where_no_agent_is(told, monkeypatch):
    monkeypatch.setattr(worker_ends, "wait_status", {41: 4 << 8}.get)
    outcome = lost(Asked(name="ray", here="n1"), told)
    assert (outcome.code, outcome.message) == (4, "exited with code 4")
    told.clear()
    assert lost(Asked({AGENT: ()}, "ray", end=ignorant, here="n1"), told) == WITHOUT_A_WORD, "it would have read that"


async def stranger(*_):
    return 11, ""


CRASH = 'Fatal Python error: Segmentation fault\n\nStack (most recent call first):\n  File "/job/f.py", line 4 in load'


@pytest.mark.parametrize("answers", [{}, {AGENT: ()}], ids=["no agent", "an agent that has not met it"])
def test_the_first_process_to_crash_is_told_with_its_line(monkeypatch, answers):
    monkeypatch.setattr(worker_ends, "wait_status", {41: 11}.get)
    logs = {WHO: f"step 7\n{CRASH}\n"}
    owner = TaskOwner(print)
    inquiry = Inquiry(
        Asked(answers, "ray", end=stranger, here="n1"), print, "j/agent/", owner,
        log_reader=lambda host: lambda: logs[host], code_dir="/job",
    )  # fmt: skip
    outcome = asyncio.run(inquiry.ended(WHO, "n1", 41, WITHOUT_A_WORD))
    assert (outcome.code, outcome.frame) == (139, "f.py:4 in load")
    logs[WHO] = "that of the next process"
    late = asyncio.run(inquiry.ended(WHO, "n1", 41, WITHOUT_A_WORD, f"step 7\n{CRASH}\n"))
    assert late == outcome


def test_the_line_of_a_crash_on_another_machine_without_an_agent_is_read_there(monkeypatch):
    logs = {WHO: ""}  # as this machine has none

    async def on_node(node, function, *args):
        assert node == "n1"
        logs[WHO] = f"{CRASH}\n"
        try:
            return function(*args)
        finally:
            logs[WHO] = ""

    monkeypatch.setattr(log_tails, "on_node", on_node)
    monkeypatch.setattr(worker_ends, "wait_status", {41: 11}.get)
    backend, owner = Asked(name="ray", here="n0"), TaskOwner(print)
    inquiry = Inquiry(backend, print, "j/agent/", owner, log_reader=lambda host: lambda: logs[host], code_dir="/job")
    outcome = asyncio.run(inquiry.ended(WHO, "n1", 41, WITHOUT_A_WORD))
    assert (outcome.code, outcome.frame) == (139, "f.py:4 in load")
    late = asyncio.run(inquiry.ended(WHO, "n1", 41, WITHOUT_A_WORD, ""))
    assert (late.code, late.frame) == (139, ""), "the rank's next process may have written that line"


def test_who_forked_a_process_of_another_raylet_of_this_machine_has_noted_its_end(told, monkeypatch):
    monkeypatch.setattr(worker_ends, "wait_status_beside", {41: 9}.get)
    outcome = lost(Asked(name="ray", here="head"), told)
    assert (outcome.code, outcome.message) == (137, "ended by SIGKILL")


@pytest.mark.parametrize("is_slow", [False, True], ids=["it answers", "its answer comes late"])
def test_another_machine_without_an_agent_is_asked_and_a_loss_waits_little_for_its_answer(told, monkeypatch, is_slow):
    monkeypatch.setattr(evidence_inquiry, "END_AGAIN_S", (0.0,))
    asked_nodes = []

    async def on_node(node, function, *args):
        asked_nodes.append(node)
        if is_slow and len(asked_nodes) == 1:
            await asyncio.Event().wait()
        return function(*args) if function is worker_ends.end_of else ()

    async def ask_twice():
        async def offer(*events):
            told.extend(events)

        inquiry = Inquiry(backend, offer, "j/agent/", TaskOwner(print))
        first = await inquiry.ended(WHO, "n1", 41, WITHOUT_A_WORD)
        inquiry.begin_end(WHO, "n1", 41, WITHOUT_A_WORD)
        await asyncio.gather(*inquiry._tasks)
        return first

    monkeypatch.setattr(log_tails, "on_node", on_node)
    monkeypatch.setattr(worker_ends, "wait_status", {41: 9}.get)
    backend = Asked(name="ray")
    assert asyncio.run(ask_twice()).code == (None if is_slow else 137)
    (event,) = told
    assert (asked_nodes, event.end.code, event.end.message) == (["n1", "n1"], 137, "ended by SIGKILL")


@pytest.mark.parametrize(
    ("words", "reason"),
    [("The actor is dead because it was killed by `ray.kill`.", Reason.UNKNOWN), (OOM_WORDS, Reason.OOM_KILLED)],
)
def test_an_end_by_ray_itself_needs_no_inquiry(told, words, reason):
    backend = Asked({AGENT: ()}, end=killed, words=words)
    outcome = lost(backend, told)
    assert (outcome.code, causes.classify(outcome).reason) == (None, reason)
    assert not [call for call in backend.calls if call[1] == "end_of"]


class Spawning(Asked):
    """A backend on which a host's next actor is spawned; its agent says each time whether the last process exists."""

    def __init__(self, *exists):
        super().__init__({AGENT: (), "w/1/1": ()})
        self.exists = list(exists)
        self.spawned = asyncio.Event()

    async def call(self, ref, method, *args):
        if method != "exists":
            return await super().call(ref, method, *args)
        self.calls.append((ref.name, method, *args))
        answer = self.exists.pop(0) if len(self.exists) > 1 else self.exists[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def kill(self, ref):
        self.calls.append((ref.name, "kill"))

    async def spawn(self, spec):
        self.calls.append((spec.name, "spawn"))
        self.spawned.set()
        return ActorRef(spec.name, None)


def spawned_again(backend, *, kind, killed):
    """Lose a host, or kill it, and spawn its next actor; return what was called from the loss to the spawn."""

    async def run():
        async def offer(*_):
            pass

        own = WorkerHosts(backend, offer, lambda: 1, lambda: None, "j/agent/", owner=TaskOwner(print))
        own.attach(WHO, 1, "w/1/1", node="n1", pid=41)
        if killed:
            await own.end("w/1/1")
        else:
            (watched,) = own._watched.values()
            await watched.task
        own.bring_up(WHO, 2, HostLaunch(ActorSpec("w/1/2", "m.Host"), 60.0, kind=kind))
        async with asyncio.timeout(60):
            await backend.spawned.wait()
        own.close()

    asyncio.run(run())
    return [call for call in backend.calls[: backend.calls.index(("w/1/2", "spawn"))] if call[1] == "exists"]


@pytest.fixture
def quick(monkeypatch):
    for name, seconds in {"END_S": 0.01, "GONE_S": 0.1, "GONE_EVERY_S": 0.0}.items():
        monkeypatch.setattr(evidence_inquiry, name, seconds)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("killed", [True, False])
def test_a_process_on_a_device_starts_once_the_last_one_has_ended(killed):
    asked = spawned_again(Spawning(True, True, False), kind="GPU", killed=killed)
    assert asked == [(AGENT, "exists", 41)] * 3
    assert spawned_again(Spawning(True), kind="", killed=killed) == [], "without a device nothing is waited for"


@pytest.mark.usefixtures("quick")
def test_a_process_that_does_not_end_or_cannot_be_asked_for_is_not_waited_for_longer(caplog):
    assert len(spawned_again(Spawning(True), kind="GPU", killed=True)) > 1
    assert len(spawned_again(Spawning(GONE), kind="GPU", killed=True)) == 1
    said = "process 41 on node n1 was not seen to end"
    assert [record.message.startswith(said) for record in caplog.records if "41" in record.message] == [True, True]


def test_an_exit_status_that_comes_late_corrects_the_cause(monkeypatch):
    """A process with much device memory shows its death seconds before it has a status."""
    monkeypatch.setattr(evidence_inquiry, "END_AGAIN_S", (0.0, 0.0, 0.0))
    answers, told = [None, (9, "step 7\n"), (9, "never asked")], []

    async def end(*_):
        return answers.pop(0)

    async def run():
        async def offer(*events):
            told.extend(events)

        inquiry = Inquiry(Asked({AGENT: ()}, end=end), offer, "j/agent/", TaskOwner(print))
        inquiry.begin_end(WHO, "n1", 41, WITHOUT_A_WORD)
        await asyncio.gather(*inquiry._tasks)

    asyncio.run(run())
    (event,) = told
    assert (event.host, event.end.code, event.end.message) == (WHO, 137, "ended by SIGKILL")
    assert len(answers) == 1, "it asks until there is an answer, and no more"


def test_a_status_that_never_comes_is_given_up_in_silence(monkeypatch):
    monkeypatch.setattr(evidence_inquiry, "END_AGAIN_S", (0.0, 0.0))
    told = []

    async def run():
        async def offer(*events):
            told.extend(events)

        inquiry = Inquiry(Asked({AGENT: ()}, end=ignorant), offer, "j/agent/", TaskOwner(print))
        inquiry.begin_end(WHO, "n1", 41, WITHOUT_A_WORD)
        await asyncio.gather(*inquiry._tasks)

    asyncio.run(run())
    assert told == []
