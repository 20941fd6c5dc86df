"""Polling a stub head: what brings a job up at once, what later, and what is believed while nobody answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from shell_kit import JOB, Shell, shell, token

from dljob.kube.head import HeadError, UnknownError
from dljob.kube.ray_jobs import JobApi
from dljob.reconcile.state.model import Watch
from dljob_operator.controller import poller

UID = "u-1"
JOB_ID = "0" * 32
WATCH = Watch("c1", "10.0.0.1", JOB_ID, "hello-1", 1)
PLACED = {"placement": {"units": 1, "ready": 1, "pending": 0}}
NODES = [{"pod": "p", "node": "n", "units": ["actor/0"], "ranks": "actor/0-1"}]


@pytest.fixture
async def it(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shell]:
    for name in ("PAUSE", "FIRST_BACKOFF", "STARTING_BACKOFF", "LONGEST_BACKOFF"):
        monkeypatch.setattr(poller, name, 0.01)
    async with shell() as made:
        made.head.token = token(UID, "c1")
        yield made


async def brought(it: Shell, seconds: float = 5) -> None:
    """Wait until the job is brought up."""
    key = await asyncio.wait_for(it.queue.get(), seconds)
    assert key == JOB
    it.queue.done(key)


async def until(it: Shell, check: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    """Wait until what was heard is so; each piece of news brings the job up."""
    async with asyncio.timeout(5):
        while True:
            views = it.pollers.views(JOB)
            if check(*views):
                return views
            await brought(it)


async def test_nothing_is_known_of_a_job_that_nobody_follows(it: Shell) -> None:
    assert it.pollers.views(JOB) == (None, None)
    it.pollers.follow(JOB, UID, WATCH)
    assert it.pollers.views(JOB) == (None, None)
    assert len(it.pollers) == 1
    it.pollers.follow(JOB, UID, None)
    assert len(it.pollers) == 0


async def test_the_first_answers_come_with_session_and_placement(it: Shell) -> None:
    it.head.jobs["hello-1"] = {"status": "RUNNING", "message": "m", "driver_exit_code": None}
    it.head.places[JOB_ID] = {"version": 1, "nodes": NODES}
    it.head.say(JOB_ID, phase="Running", **PLACED)
    it.pollers.follow(JOB, UID, WATCH)
    master, ray = await until(it, lambda master, _: master and master.snapshot)
    assert master.snapshot["phase"] == "Running"
    assert list(master.placement) == NODES
    assert (master.error, master.age < 5) == ("", True)
    assert (ray.id, ray.status, ray.session) == ("hello-1", "RUNNING", "session_1")


async def test_endpoints_are_asked_for_when_their_mark_changes(it: Shell) -> None:
    row = {"rank": 0, "incarnation": 1, "addresses": {"http": "10.0.0.1:80"}}
    it.head.servers[JOB_ID] = {"engine": [row]}
    it.head.say(JOB_ID, phase="Running", services={"engine": 1})
    it.pollers.follow(JOB, UID, WATCH)
    master, _ = await until(it, lambda master, _: master and master.endpoints)
    assert master.endpoints == {"engine": ({"rank": 0, "ip": "10.0.0.1", "ports": {"http": 80}},)}
    it.head.servers[JOB_ID] = {"engine": []}
    it.head.say(JOB_ID, services={"engine": 2})
    await until(it, lambda master, _: master.endpoints == {"engine": ()})


async def test_endpoints_that_were_not_told_are_asked_for_again(it: Shell) -> None:
    path = f"GET /v1/jobs/{JOB_ID}/endpoints"

    async def unanswered(_: web.Request) -> web.Response:
        return web.json_response({"error": "PrimeMaster does not answer now"}, status=503)

    it.head.handlers[path] = unanswered
    it.head.say(JOB_ID, phase="Running", services={"engine": 1})
    it.pollers.follow(JOB, UID, WATCH)
    master, _ = await until(it, lambda master, _: master and master.error)
    assert (master.endpoints, master.snapshot) == (None, {})
    del it.head.handlers[path]
    master, _ = await until(it, lambda master, _: master.endpoints is not None)
    assert (master.endpoints, master.error) == ({}, "")


async def test_a_change_of_state_brings_the_job_up_at_once(it: Shell) -> None:
    it.head.say(JOB_ID, phase="Starting")
    it.pollers.follow(JOB, UID, WATCH)
    await until(it, lambda master, _: master and master.snapshot)
    it.head.say(JOB_ID, progress={"step": 1})
    await until(it, lambda master, _: "progress" in master.snapshot)  # other progress waits for 15 s from now on
    while it.queue.take():
        it.queue.done(JOB)
    it.head.say(JOB_ID, phase="Running")
    await brought(it, 3)
    master, _ = it.pollers.views(JOB)
    assert master is not None
    assert master.snapshot["phase"] == "Running"


async def test_a_placement_that_was_not_told_is_asked_for_again(it: Shell) -> None:
    """Which pod a Ray node is can be seen only while it lives: a node that freezes later could not be named."""
    it.head.places[JOB_ID] = {"version": 1, "nodes": NODES}
    path, asked = f"GET /v1/jobs/{JOB_ID}/placement", []

    async def unanswered(_: web.Request) -> web.Response:
        asked.append(1)
        return web.json_response({"error": "PrimeMaster does not answer now"}, status=503)

    it.head.handlers[path] = unanswered
    it.head.say(JOB_ID, phase="Running", **PLACED)
    it.pollers.follow(JOB, UID, WATCH)
    await until(it, lambda master, _: master and master.snapshot)
    it.head.say(JOB_ID, progress={"step": 1})
    await until(it, lambda master, _: "progress" in master.snapshot)
    async with asyncio.timeout(5):
        while len(asked) < 2:
            await it.head.polled.wait()
            it.head.polled.clear()
    while it.queue.take():
        it.queue.done(JOB)
    del it.head.handlers[path]
    it.head.say(JOB_ID, progress={"step": 2})
    master, _ = await until(it, lambda master, _: master.placement)
    assert (list(master.placement), master.snapshot["progress"]) == (NODES, {"step": 2})


async def test_progress_brings_it_up_later(it: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "REMIND", 0.4)
    it.head.say(JOB_ID, phase="Running", progress={"step": 1})
    it.pollers.follow(JOB, UID, WATCH)
    await until(it, lambda master, _: master and master.snapshot)
    it.head.say(JOB_ID, progress={"step": 2})
    await until(it, lambda master, _: master.snapshot["progress"]["step"] == 2)  # the first is told at once
    it.head.say(JOB_ID, progress={"step": 3})
    loop = asyncio.get_running_loop()
    began = loop.time()
    while it.pollers.views(JOB)[0].snapshot["progress"]["step"] != 3:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.01)
    assert it.queue.take() is None
    await brought(it)
    assert loop.time() - began > 0.15


async def test_an_answer_of_ray_from_before_the_submission_does_not_count(
    it: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a job that was just posted counts as not there: a deleted DLJob would let go of what then runs."""
    asked, answers = asyncio.Event(), asyncio.Queue[HeadError]()

    async def get(_ray: JobApi, _submission: str) -> None:
        asked.set()
        raise await answers.get()

    monkeypatch.setattr(JobApi, "get", get)
    it.head.away = True
    it.pollers.follow(JOB, UID, WATCH)
    await asked.wait()
    it.pollers.follow(JOB, UID, WATCH, "hello-1")
    answers.put_nowait(UnknownError(404, "no such submission"))
    _, ray = await until(it, lambda master, _: master)
    assert ray.status == "PENDING"
    answers.put_nowait(UnknownError(404, "no such submission"))
    await until(it, lambda _, ray: ray.status == "MISSING")


async def test_while_the_gateway_is_silent_ray_is_asked(it: Shell) -> None:
    it.head.away = True
    it.pollers.follow(JOB, UID, WATCH)
    master, ray = await until(it, lambda master, ray: master and ray)
    assert "PrimeMaster does not answer" in master.error
    assert master.snapshot == {}
    assert ray.status == "MISSING"
    told = {"dljob.io/spec-hash": "0123"}
    it.head.jobs["hello-1"] = {"status": "FAILED", "message": "exit 2", "driver_exit_code": 2, "metadata": told}
    it.head.logs["hello-1"] = 'x\n{"dljob": "refused", "reason": "InvalidSpec", "message": "m", "hint": "h"}'
    _, ray = await until(it, lambda _, ray: ray.status == "FAILED")
    assert (ray.exit_code, ray.message, ray.spec) == (2, "exit 2", "0123")
    assert ray.refusal == {"reason": "InvalidSpec", "message": "m", "hint": "h"}
    assert ray.tail.startswith("x\n")


async def test_the_answer_of_an_ended_attempt_counts_as_silence(it: Shell) -> None:
    """Else Ray is never asked about the launcher of a job that is resumed on a RayCluster that stays."""
    it.head.say(JOB_ID, phase="Stopped", attempt=1, services={"engine": 1}, **PLACED)
    it.head.jobs["hello-2"] = {"status": "FAILED", "message": "exit 2", "driver_exit_code": 2}
    it.pollers.follow(JOB, UID, replace(WATCH, submission="hello-2", attempt=2))
    master, ray = await until(it, lambda master, ray: master and ray)
    assert (master.snapshot, master.placement, master.endpoints) == ({}, (), None)
    assert master.error == "PrimeMaster of attempt 2 has not begun: attempt 1 answers"
    assert (ray.id, ray.exit_code) == ("hello-2", 2)
    it.head.say(JOB_ID, phase="Running", attempt=2)
    master, _ = await until(it, lambda master, _: not master.error)
    assert master.snapshot["phase"] == "Running"


async def test_the_last_snapshot_stays_and_ages_while_nobody_answers(it: Shell) -> None:
    it.head.say(JOB_ID, phase="Running")
    it.pollers.follow(JOB, UID, WATCH)
    await until(it, lambda master, _: master and master.snapshot)
    it.head.down = True
    it.head.say(JOB_ID, phase="Failed")  # wakes the poll that waits; the next one is refused
    master, _ = await until(it, lambda master, _: master.error)
    assert "broken" in master.error
    assert master.snapshot["phase"] in {"Running", "Failed"}
    await asyncio.sleep(0.05)
    later, _ = it.pollers.views(JOB)
    assert later is not None
    assert later.age > master.age
    it.head.down = False
    master, _ = await until(it, lambda master, _: not master.error)
    assert master.snapshot["phase"] == "Failed"


async def test_silence_brings_the_job_up_again_and_again(it: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "REMIND_SILENT", 0.05)
    it.head.away = it.head.ray_down = True
    it.pollers.follow(JOB, UID, WATCH)
    for _ in range(4):
        await brought(it)
    _, ray = it.pollers.views(JOB)
    assert ray is not None
    assert "starting" in ray.error
    assert ray.status == ""


async def test_a_submission_that_ray_took_is_pending_before_anybody_asks(it: Shell) -> None:
    it.pollers.follow(JOB, UID, WATCH, submitted="hello-1")
    _, ray = it.pollers.views(JOB)
    assert ray is not None
    assert (ray.id, ray.status) == ("hello-1", "PENDING")


async def test_another_head_is_asked_from_scratch(it: Shell) -> None:
    it.head.say(JOB_ID, phase="Running")
    it.pollers.follow(JOB, UID, WATCH)
    await until(it, lambda master, _: master and master.snapshot)
    it.pollers.follow(JOB, UID, WATCH)
    assert it.pollers.views(JOB)[0] is not None  # the same watch: nothing is forgotten
    it.pollers.follow(JOB, UID, Watch("c1", "10.0.0.2", JOB_ID, "hello-2", 2))
    assert it.pollers.views(JOB) == (None, None)
    assert len(it.pollers) == 1


async def test_an_answer_without_sense_does_not_end_the_asking(it: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def nonsense(*_: object) -> bool:
        raise KeyError("version")

    with monkeypatch.context() as patch:
        patch.setattr(poller, "significant", nonsense)
        it.head.say(JOB_ID, phase="Starting")
        it.pollers.follow(JOB, UID, WATCH)
        await until(it, lambda master, _: master and master.snapshot)
        it.head.say(JOB_ID, phase="Starting", reason="x")
        await asyncio.sleep(0.05)
    master, _ = await until(it, lambda master, _: master.snapshot.get("reason") == "x")
    assert master.error == ""


@pytest.mark.parametrize("body", [b"", b"[]"])
async def test_an_answer_of_another_form_is_an_error(it: Shell, body: bytes) -> None:
    """Without an error the policies would wait for ever for such a head: before a stop, a deadline or a deletion."""

    async def odd(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    it.head.handlers[f"GET /v1/jobs/{JOB_ID}/status"] = odd
    it.pollers.follow(JOB, UID, WATCH)
    master, ray = await until(it, lambda master, ray: master and ray)
    assert (master.snapshot, ray.status) == ({}, "MISSING")
    assert "no JSON object" in master.error


async def test_an_answer_that_cannot_be_read_counts_as_silence(it: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(snapshot: object) -> dict[str, object]:
        raise TypeError(snapshot)

    monkeypatch.setattr(poller, "digest", unreadable)
    it.head.say(JOB_ID, phase="Starting")
    it.pollers.follow(JOB, UID, WATCH)
    master, _ = await until(it, lambda master, _: master)
    assert (master.snapshot, master.error) == ({}, "unreadable answer: TypeError")


MANY = b'{"version":1,"x":[' + b"{}," * 30_000 + b"{}]}"


async def many(_: web.Request) -> web.Response:
    return web.Response(body=MANY, content_type="application/json")


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[float]:
    """The long pauses for heads that harm, none of which takes any time."""
    found, sleep = asyncio.Queue[float](), asyncio.sleep

    async def pause(seconds: float) -> None:
        await (found.put(seconds) if seconds >= poller.LEFT_ALONE else sleep(seconds))

    monkeypatch.setattr(poller.asyncio, "sleep", pause)
    return found


async def test_a_head_that_misbehaves_is_left_alone(it: Shell, pauses: asyncio.Queue[float]) -> None:
    it.head.handlers[f"GET /v1/jobs/{JOB_ID}/status"] = many
    it.pollers.follow(JOB, UID, WATCH)
    async with asyncio.timeout(5):
        assert [await pauses.get() for _ in range(4)] == [60.0, 120.0, 240.0, 480.0]
    master, _ = it.pollers.views(JOB)
    assert master is not None
    assert (master.misbehaves, master.snapshot) == (True, {})
    assert master.error.endswith("answers with more than 20000 values")
    assert it.queue.take() == JOB
    it.queue.done(JOB)
    del it.head.handlers[f"GET /v1/jobs/{JOB_ID}/status"]
    it.head.say(JOB_ID, phase="Running")
    master, _ = await until(it, lambda master, _: master.snapshot)
    assert (master.misbehaves, master.error) == (False, "")


async def test_a_head_that_always_has_important_news_is_asked_once_a_second(
    it: Shell, pauses: asyncio.Queue[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these answers costs a pass, a write of the status, and Events."""
    asked: list[str] = []

    async def toggled(_: web.Request) -> web.Response:
        asked.append(("Running", "Recovering")[len(asked) % 2])
        return web.json_response({"attempt": 1, "version": len(asked), "phase": asked[-1]})

    monkeypatch.setattr(poller, "EVERY", 1000.0)
    it.head.handlers[f"GET /v1/jobs/{JOB_ID}/status"] = toggled
    it.pollers.follow(JOB, UID, WATCH)
    async with asyncio.timeout(5):
        pause = await pauses.get()
    assert len(asked) == poller.BURST + 1
    assert 900 < pause <= 1000


async def test_a_bad_placement_is_asked_for_less_and_less_often(it: Shell, pauses: asyncio.Queue[float]) -> None:
    """The good snapshots before it do not count: each takes one of few slots that all heads share."""
    path = f"GET /v1/jobs/{JOB_ID}/placement"

    async def more(_: web.Request) -> web.Response:
        return web.Response(body=MANY.replace(b"{},", b"{}," * 4), content_type="application/json")

    it.head.handlers[path] = more
    it.head.say(JOB_ID, phase="Running", **PLACED)
    it.pollers.follow(JOB, UID, WATCH)
    async with asyncio.timeout(5):
        assert [await pauses.get() for _ in range(3)] == [60.0, 120.0, 240.0]
    del it.head.handlers[path]
    master, _ = await until(it, lambda master, _: not master.error)
    assert not master.misbehaves


@pytest.mark.parametrize("between", ["an error", "too many pods"])
async def test_a_placement_that_is_refused_otherwise_forgives_no_bad_one(
    it: Shell, pauses: asyncio.Queue[float], between: str
) -> None:
    """A head that answers badly each second time would never be left alone for longer than the first pause."""
    it.pollers._pods = lambda _cluster: 1
    asked: list[int] = []

    async def alternate(request: web.Request) -> web.Response:
        it.head.say(JOB_ID, phase=("Running", "Recovering")[len(asked) % 2])
        asked.append(1)
        if len(asked) % 2:
            return web.Response(body=MANY.replace(b"{},", b"{}," * 4), content_type="application/json")
        if between == "an error":
            return web.json_response({"error": "PrimeMaster does not answer now"}, status=503)
        return web.json_response({"version": 1, "nodes": [{**NODES[0], "pod": f"p{n}"} for n in range(17)]})

    it.head.handlers[f"GET /v1/jobs/{JOB_ID}/placement"] = alternate
    it.head.say(JOB_ID, phase="Running", **PLACED)
    it.pollers.follow(JOB, UID, WATCH)
    async with asyncio.timeout(5):
        assert [await pauses.get() for _ in range(3)] == [60.0, 120.0, 240.0]


async def test_a_job_api_that_misbehaves_is_left_alone_too(it: Shell) -> None:
    it.head.handlers["GET /api/version"] = many
    it.pollers.follow(JOB, UID, WATCH)
    master, _ = await until(it, lambda master, _: master and master.misbehaves)
    assert "more than 20000 values" in master.error


async def test_more_places_than_pods_are_not_believed(it: Shell) -> None:
    it.pollers._pods = lambda _cluster: 1
    it.head.places[JOB_ID] = {"version": 1, "nodes": [{**NODES[0], "pod": f"p{n}"} for n in range(17)]}
    it.head.say(JOB_ID, phase="Running", **PLACED)
    it.pollers.follow(JOB, UID, WATCH)
    master, _ = await until(it, lambda master, _: master and master.snapshot)
    assert master.placement == ()
    it.head.places[JOB_ID] = {"version": 2, "nodes": NODES}
    it.head.say(JOB_ID, progress={"step": 2})
    master, _ = await until(it, lambda master, _: master.placement)
    assert list(master.placement) == NODES


async def test_a_task_that_ends_unasked_is_told_of_and_begun_anew(
    it: Shell, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> float:
        raise RuntimeError("a bug in the pause")

    with monkeypatch.context() as patch:
        patch.setattr(poller.Pollers, "_missed", broken)
        it.head.away = True
        it.pollers.follow(JOB, UID, WATCH)
        async with asyncio.timeout(5):
            while len(it.pollers):
                await brought(it)
    assert "default/hello: polling of its head failed" in caplog.text
    assert "a bug in the pause" in caplog.text
    it.head.away = False
    it.head.say(JOB_ID, phase="Running")
    it.pollers.follow(JOB, UID, WATCH)
    master, _ = await until(it, lambda master, _: master and master.snapshot)
    assert master.snapshot["phase"] == "Running"
